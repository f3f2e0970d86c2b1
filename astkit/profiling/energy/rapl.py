"""CPU energy from RAPL, through Linux's powercap files.

Zones overlap: psys holds the packages, a package holds its core and uncore (and has a dram beside
it), and one package may be listed twice, as ``intel-rapl`` and ``intel-rapl-mmio``. So packages
alone are added up, each once. AMD processors show theirs under the same names. A package counts
everything that runs on it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from astkit.profiling.energy.reading import Snapshot, UnavailableError

POWERCAP = Path("/sys/class/powercap")
PLAUSIBLE_WATTS = 1000.0
"""Above this a package's counter is not believed to have run on: it tells a wrap from a reset."""
MIRROR_UJ = 1e6
"""Dies of one package whose counters agree to a joule show one counter (AMD Zen 1 and 2)."""

_PACKAGE = re.compile(r"(package-\d+)(-die-\d+)?")


class _Zone(NamedTuple):
    name: str
    counter: Path  # microjoules
    range_uj: int  # where the counter starts again at 0; 0 where the kernel does not say


class RaplCounter:
    """All CPU packages of the machine, added up.

    Raises ``UnavailableError`` where there is no package zone (virtual machines mostly have none)
    or where it may not be read.
    """

    backend = "rapl"
    step_s = 0.001

    def __init__(self, root: Path = POWERCAP) -> None:
        self._root = root
        self._zones = _packages(root)
        if not self._zones:
            raise UnavailableError(f"no readable RAPL counter here ({root} holds no CPU package)")
        self._zones = _without_mirrors(self._zones, self.read())
        self.scope = "CPU " + " + ".join(zone.name for zone in self._zones)

    def read(self) -> Snapshot:
        """Microjoules of each package."""
        return tuple(self._energy_uj(zone) for zone in self._zones)

    def joules(self, before: Snapshot, after: Snapshot, seconds: float) -> float:
        """Exact through one wrap of each package; refused where more than one may have happened."""
        pairs = zip(self._zones, before, after, strict=True)
        return sum(_passed(zone, old, new, seconds) for zone, old, new in pairs) / 1e6

    def close(self) -> None:
        """Nothing is held."""

    def _energy_uj(self, zone: _Zone) -> int:
        try:
            with open(zone.counter) as file:
                return int(file.read())
        except PermissionError:
            raise UnavailableError(
                "RAPL is there but only root may read it: run"
                f" `sudo chmod a+r {self._root}/*/energy_uj` (lasts until the next boot)"
            ) from None
        except (OSError, ValueError) as error:
            raise UnavailableError(f"RAPL's {zone.name} cannot be read ({error})") from None


def _packages(root: Path) -> list[_Zone]:
    zones: dict[str, _Zone] = {}
    # in this order intel-rapl comes after its twin intel-rapl-mmio and takes its place
    for folder in sorted(root.glob("*:*")):
        try:
            name = (folder / "name").read_text().strip()
        except OSError:
            continue
        if _PACKAGE.fullmatch(name):
            zones[name] = _Zone(name, folder / "energy_uj", _range_uj(folder))
    return sorted(zones.values())


def _range_uj(folder: Path) -> int:
    try:
        return int((folder / "max_energy_range_uj").read_text())
    except (OSError, ValueError):
        return 0


def _without_mirrors(zones: list[_Zone], energies: Snapshot) -> list[_Zone]:
    kept: list[tuple[str, float]] = []
    single = []
    for zone, energy in zip(zones, energies, strict=True):
        package = zone.name.partition("-die")[0]
        if not any(package == other and abs(energy - uj) < MIRROR_UJ for other, uj in kept):
            kept.append((package, energy))
            single.append(zone)
    return single


def _passed(zone: _Zone, before: float, after: float, seconds: float) -> float:
    """Microjoules from ``before`` to ``after``, through at most one wrap."""
    most = PLAUSIBLE_WATTS * 1e6 * (seconds + 1)  # a second more, for windows within one step
    passed = after - before
    if passed < 0:
        passed += zone.range_uj
        if not 0 <= passed <= most:
            raise UnavailableError(f"RAPL's {zone.name} went back: it was reset within a window")
    if zone.range_uj and passed + zone.range_uj <= most:
        raise UnavailableError(
            f"RAPL's {zone.name} may have wrapped unseen in {seconds:.0f} s: close a window at"
            f" least every {zone.range_uj / 1e6 / PLAUSIBLE_WATTS:.0f} s"
        )
    return passed
