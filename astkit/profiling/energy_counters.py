"""Energy counters: NVML for NVIDIA GPUs, RAPL for CPUs.

NVML counts a GPU's whole board; GPUs older than Volta have no counter. RAPL zones overlap: psys
contains the packages, a package contains its cores, and a package may be listed twice, as
``intel-rapl`` and ``intel-rapl-mmio``. Therefore only packages are summed, each once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

Snapshot = tuple[float, ...]

POWERCAP = Path("/sys/class/powercap")
PLAUSIBLE_WATTS = 1000.0
"""Power above which a decrease is a reset of the counter, not a wrap."""
MIRROR_UJ = 1e6
"""Dies of one package whose counters agree to within a joule share a counter (AMD Zen 1, 2)."""


class UnavailableError(Exception):
    """A counter cannot be read; the message is the reason, without a full stop."""


class EnergyCounter:
    """Cumulative counters in millijoules, read at the start and end of windows.

    ``backend`` is their source, ``scope`` what they measure, ``step_s`` the seconds between two
    updates, which are approximate for NVML.
    """

    step_s = 0.1

    def __init__(self, backend: str, scope: str, get: Callable[[], Snapshot]) -> None:
        self.backend, self.scope, self._get = backend, scope, get

    def read(self) -> Snapshot:
        """Read all counters. Raises ``UnavailableError``."""
        try:
            return self._get()
        except UnavailableError:
            raise
        except Exception as error:  # a driver error must not end the run
            raise UnavailableError(
                f"{self.backend} of {self.scope} cannot be read ({error})"
            ) from None

    def joules(self, before: Snapshot, after: Snapshot, seconds: float) -> float:
        """Joules between two readings ``seconds`` apart. Raises ``UnavailableError``."""
        passed = [new - old for old, new in zip(before, after, strict=True)]
        if min(passed) < 0:
            raise UnavailableError(
                f"{self.backend} of {self.scope} went back: it was reset within a window"
            )
        return sum(passed) / 1e3


class _Zone(NamedTuple):
    name: str
    folder: Path
    range_uj: int  # value at which the counter wraps to 0; 0 if unknown

    def energy_uj(self) -> int:
        try:
            with open(self.folder / "energy_uj") as file:
                return int(file.read())
        except PermissionError:
            raise UnavailableError(
                "RAPL exists but only root may read it: run `sudo chmod a+r"
                f" {self.folder.parent}/*/energy_uj` (lasts until the next boot)"
            ) from None
        except (OSError, ValueError) as error:
            raise UnavailableError(f"RAPL's {self.name} cannot be read ({error})") from None

    def passed_uj(self, before: float, after: float, seconds: float) -> float:
        """Microjoules from ``before`` to ``after``, allowing for one wrap."""
        most = PLAUSIBLE_WATTS * 1e6 * (seconds + 1)  # plus a second, for windows within one step
        passed = after - before
        if passed < 0:
            passed += self.range_uj
            if not 0 <= passed <= most:
                raise UnavailableError(
                    f"RAPL's {self.name} went back: it was reset within a window"
                )
        if self.range_uj and passed + self.range_uj <= most:
            raise UnavailableError(
                f"RAPL's {self.name} may have wrapped unseen in {seconds:.0f} s: close a window at"
                f" least every {self.range_uj / 1e6 / PLAUSIBLE_WATTS:.0f} s"
            )
        return passed


class RaplCounter(EnergyCounter):
    """All CPU packages of the machine, summed, including all processes.

    Raises ``UnavailableError`` if there is no package zone (as in most virtual machines) or
    it is not readable.
    """

    step_s = 0.001

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = _packages(root)
        if not self._zones:
            raise UnavailableError(f"no readable RAPL counter here ({root} holds no CPU package)")
        scope = "CPU " + " + ".join(zone.name for zone in self._zones)
        super().__init__("rapl", scope, lambda: tuple(zone.energy_uj() for zone in self._zones))

    def joules(self, before: Snapshot, after: Snapshot, seconds: float) -> float:
        """Exact across one wrap per package; raises if more than one is possible."""
        pairs = zip(self._zones, before, after, strict=True)
        return sum(zone.passed_uj(old, new, seconds) for zone, old, new in pairs) / 1e6


def _packages(root: Path) -> list[_Zone]:
    """The package zones, sorted by name, without duplicates of the same counter."""
    zones: dict[str, _Zone] = {}
    # in this order intel-rapl follows its duplicate intel-rapl-mmio and replaces it
    for folder in sorted(root.glob("*:*")):
        with suppress(OSError):  # zones of other kinds have no name
            name, range_uj = (folder / "name").read_text().strip(), 0
            if re.fullmatch(r"package-\d+(-die-\d+)?", name):
                with suppress(OSError, ValueError):
                    range_uj = int((folder / "max_energy_range_uj").read_text())
                zones[name] = _Zone(name, folder, range_uj)
    kept: dict[_Zone, int] = {}
    for zone in sorted(zones.values()):
        package, energy = zone.name.partition("-die")[0], zone.energy_uj()
        dies = [uj for other, uj in kept.items() if other.name.partition("-die")[0] == package]
        if all(abs(energy - uj) >= MIRROR_UJ for uj in dies):
            kept[zone] = energy
    return list(kept)


def open_counter(device: torch.device) -> EnergyCounter:
    """The energy counter of ``device``; raises ``UnavailableError`` with the reason if none."""
    if device.type == "cpu":
        return RaplCounter()
    if device.type == "cuda" and torch.version.hip is None:
        return _open_nvml(device)
    raise UnavailableError(f"no energy counter is known for this {device.type} device")


def _open_nvml(device: torch.device) -> EnergyCounter:
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        raise UnavailableError(
            "no NVML: install the extra 'energy' of astkit (pip install -e '.[energy]' in a clone)"
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UnavailableError(f"no NVML ({error})") from None
    try:
        index = torch.cuda.current_device() if device.index is None else device.index
        properties = torch.cuda.get_device_properties(index)
        # by UUID, since NVML ignores CUDA_VISIBLE_DEVICES
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    # torch raises the latter two if it finds no such GPU
    except (nvml.NVMLError, AssertionError, RuntimeError) as error:
        nvml.nvmlShutdown()
        raise UnavailableError(f"NVML reads no energy of {device} ({error})") from None
    return EnergyCounter(
        "nvml",
        f"GPU {index} ({properties.name}), whole board",
        lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(handle),),
    )  # NVML is released when the process ends
