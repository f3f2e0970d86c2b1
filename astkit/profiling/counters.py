"""Counters of energy: NVML for GPUs, RAPL for CPUs, zeus for Apple silicon, Jetson and AMD GPUs.

NVML's counter is a GPU's whole board; GPUs older than Volta have none. RAPL's zones overlap: psys
holds the packages, a package holds its core and uncore (with dram beside it), and one package may
be listed twice, as ``intel-rapl`` and ``intel-rapl-mmio``. So packages alone are added up, each
once. zeus is used where it is installed and the other two do not reach; on Jetson it starts a
process, so a script needs its ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

Snapshot = tuple[float, ...]

STEP_S = 0.1
"""NVML's and zeus's counters move about this often."""
POWERCAP = Path("/sys/class/powercap")
PLAUSIBLE_WATTS = 1000.0
"""Above this a package's counter is not believed to have run on: it tells a wrap from a reset."""
MIRROR_UJ = 1e6
"""Dies of one package whose counters agree to a joule show one counter (AMD Zen 1 and 2)."""

# zeus's fields in millijoules; Jetson's total holds its parts, Apple gives parts alone
_SOC_FIELDS = (("total_energy_mj",), ("cpu_total_mj", "gpu_mj", "dram_mj", "ane_mj"))


class UnavailableError(Exception):
    """Joules cannot be had from a counter; the text is the reason, without a full stop."""


class EnergyCounter:
    """Cumulative counters in millijoules, read at the edges of windows.

    Attributes:
        backend: where the numbers come from.
        scope: what draws the energy.
        step_s: seconds between two movements of the counter.
    """

    step_s = STEP_S

    def __init__(
        self,
        backend: str,
        scope: str,
        get: Callable[[], Snapshot],
        close: Callable[[], object] = lambda: None,
    ) -> None:
        self.backend, self.scope, self._get, self._close = backend, scope, get, close

    def read(self) -> Snapshot:
        """All counters now. Raises ``UnavailableError``."""
        try:
            return self._get()
        except UnavailableError:
            raise
        except Exception as error:  # whatever breaks in there, a run goes on without its joules
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

    def close(self) -> None:
        """Give back what the counter holds; it is not read afterwards."""
        self._close()


class _Zone(NamedTuple):
    name: str
    folder: Path
    range_uj: int  # where the counter starts again at 0; 0 where the kernel does not say

    def energy_uj(self) -> int:
        try:
            with open(self.folder / "energy_uj") as file:
                return int(file.read())
        except PermissionError:
            raise UnavailableError(
                "RAPL is there but only root may read it: run `sudo chmod a+r"
                f" {self.folder.parent}/*/energy_uj` (lasts until the next boot)"
            ) from None
        except (OSError, ValueError) as error:
            raise UnavailableError(f"RAPL's {self.name} cannot be read ({error})") from None

    def passed_uj(self, before: float, after: float, seconds: float) -> float:
        """Microjoules from ``before`` to ``after``, through at most one wrap."""
        most = PLAUSIBLE_WATTS * 1e6 * (seconds + 1)  # a second more, for windows within one step
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
    """All CPU packages of the machine, added up, with everything that runs on them.

    Raises ``UnavailableError`` where there is no package zone (virtual machines mostly have none)
    or where it may not be read.
    """

    step_s = 0.001

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = _packages(root)
        super().__init__("rapl", "CPU", lambda: tuple(zone.energy_uj() for zone in self._zones))
        if not self._zones:
            raise UnavailableError(f"no readable RAPL counter here ({root} holds no CPU package)")
        self._zones = _without_mirrors(self._zones)
        self.scope = "CPU " + " + ".join(zone.name for zone in self._zones)

    def joules(self, before: Snapshot, after: Snapshot, seconds: float) -> float:
        """Exact through one wrap of each package; refused where more than one may have happened."""
        pairs = zip(self._zones, before, after, strict=True)
        return sum(zone.passed_uj(old, new, seconds) for zone, old, new in pairs) / 1e6


def _packages(root: Path) -> list[_Zone]:
    zones: dict[str, _Zone] = {}
    # in this order intel-rapl comes after its twin intel-rapl-mmio and takes its place
    for folder in sorted(root.glob("*:*")):
        with suppress(OSError):  # a zone of another kind has no name
            name, range_uj = (folder / "name").read_text().strip(), 0
            if re.fullmatch(r"package-\d+(-die-\d+)?", name):
                with suppress(OSError, ValueError):
                    range_uj = int((folder / "max_energy_range_uj").read_text())
                zones[name] = _Zone(name, folder, range_uj)
    return sorted(zones.values())


def _without_mirrors(zones: list[_Zone]) -> list[_Zone]:
    kept: dict[_Zone, int] = {}
    for zone in zones:
        package, energy = zone.name.partition("-die")[0], zone.energy_uj()
        others = (uj for other, uj in kept.items() if other.name.partition("-die")[0] == package)
        if all(abs(energy - uj) >= MIRROR_UJ for uj in others):
            kept[zone] = energy
    return list(kept)


def open_counter(device: torch.device) -> EnergyCounter:
    """The counter of ``device``: NVML, RAPL, or zeus where those two do not reach.

    Raises ``UnavailableError`` with the reason where nothing can be read.
    """
    attempts: list[Callable[[], EnergyCounter]] = []
    if device.type == "cpu":
        attempts.append(RaplCounter)
    elif device.type == "cuda" and torch.version.hip is None:
        attempts.append(partial(_open_nvml, device))
    # on x86 there is nothing of these two that zeus could read and they could not
    if not (attempts and platform.machine().lower() in ("x86_64", "amd64")):
        attempts.append(partial(_open_zeus, device))
    reasons = []
    for attempt in attempts:
        try:
            return attempt()
        except UnavailableError as error:
            reasons.append(str(error))
    raise UnavailableError("; ".join(reasons))


def _open_nvml(device: torch.device) -> EnergyCounter:
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        raise UnavailableError(
            "no NVML: install astkit[energy], which brings nvidia-ml-py"
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UnavailableError(f"no NVML ({error})") from None
    try:
        index = torch.cuda.current_device() if device.index is None else device.index
        properties = torch.cuda.get_device_properties(index)
        # by its UUID, because NVML knows nothing of CUDA_VISIBLE_DEVICES
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
        scope = f"GPU {index} ({properties.name}), whole board"
        energy = partial(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        energy()
    # torch raises the latter two where it sees no such GPU
    except (nvml.NVMLError, AssertionError, RuntimeError) as error:
        nvml.nvmlShutdown()
        raise UnavailableError(f"NVML reads no energy of {device} ({error})") from None
    return EnergyCounter("nvml", scope, lambda: (energy(),), nvml.nvmlShutdown)


def _open_zeus(device: torch.device) -> EnergyCounter:
    try:
        zeus: Any = import_module("zeus.device")
    except ImportError:
        raise UnavailableError("no zeus, which reads Apple, Jetson and AMD") from None
    try:
        if device.type == "cuda" and torch.version.hip is not None:
            energy, index = zeus.get_gpus().get_total_energy_consumption, device.index or 0
            energy(index)
            return EnergyCounter("zeus-amd", f"GPU {index}", lambda: (energy(index),))
        energy = zeus.get_soc().get_total_energy_consumption
        present = energy()
    except Exception as error:  # zeus has an exception a platform, and none is ours to handle
        raise UnavailableError(f"zeus reads nothing of {device} ({error})") from None
    for names in _SOC_FIELDS:
        fields = [name for name in names if getattr(present, name, None) is not None]
        if fields:
            break
    else:
        raise UnavailableError("zeus finds a system on chip but no counter on it")

    def millijoules() -> Snapshot:
        now = energy()
        return tuple(getattr(now, name) for name in fields)

    parts = " + ".join(name.removesuffix("_mj") for name in fields)
    return EnergyCounter("zeus-soc", f"system on chip ({parts})", millijoules)
