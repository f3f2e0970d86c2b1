"""Energy through ``zeus`` where NVML and RAPL do not reach: Apple Silicon, Jetson, AMD GPUs.

zeus is used where it is installed and is no requirement. On Jetson it starts a process of its own,
so a script needs its ``if __name__ == "__main__"``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from astkit.profiling.energy.reading import Snapshot, UnavailableError

# zeus's fields in millijoules; Jetson's total holds its parts, Apple gives parts alone
_SOC_FIELDS = (
    ("total_energy_mj",),
    ("cpu_total_mj", "gpu_mj", "dram_mj", "ane_mj"),
)


class ZeusCounter:
    """Millijoule counters of zeus, added up."""

    step_s = 0.1

    def __init__(self, backend: str, scope: str, millijoules: Callable[[], Snapshot]) -> None:
        self.backend, self.scope, self._millijoules = backend, scope, millijoules

    def read(self) -> Snapshot:
        """Millijoules of each part."""
        try:
            return self._millijoules()
        except Exception as error:  # whatever breaks in there, a run goes on without its joules
            raise UnavailableError(f"zeus cannot read {self.scope} ({error})") from None

    def joules(self, before: Snapshot, after: Snapshot, seconds: float) -> float:
        """Sum of the differences, none of which may be negative."""
        passed = [new - old for old, new in zip(before, after, strict=True)]
        if min(passed) < 0:
            raise UnavailableError(f"zeus's counter of {self.scope} went back within a window")
        return sum(passed) / 1e3

    def close(self) -> None:
        """zeus keeps its handles to itself."""


def open_zeus(device: torch.device) -> ZeusCounter:
    """What zeus reads of ``device``. Raises ``UnavailableError`` where that is nothing."""
    try:
        zeus: Any = import_module("zeus.device")
    except ImportError:
        raise UnavailableError("no zeus, which reads Apple, Jetson and AMD") from None
    try:
        if device.type == "cuda" and torch.version.hip is not None:
            return _amd(zeus.get_gpus(), device.index or 0)
        return _soc(zeus.get_soc())
    except UnavailableError:
        raise
    except Exception as error:  # zeus has an exception a platform, and none is ours to handle
        raise UnavailableError(f"zeus reads nothing of {device} ({error})") from None


def _amd(gpus: Any, index: int) -> ZeusCounter:
    gpus.get_total_energy_consumption(index)
    return ZeusCounter(
        "zeus-amd", f"GPU {index}", lambda: (gpus.get_total_energy_consumption(index),)
    )


def _soc(soc: Any) -> ZeusCounter:
    present = soc.get_total_energy_consumption()
    for names in _SOC_FIELDS:
        fields = [name for name in names if getattr(present, name, None) is not None]
        if fields:
            break
    else:
        raise UnavailableError("zeus finds a system on chip but no counter on it")

    def millijoules() -> Snapshot:
        now = soc.get_total_energy_consumption()
        return tuple(getattr(now, name) for name in fields)

    parts = " + ".join(name.removesuffix("_mj") for name in fields)
    return ZeusCounter("zeus-soc", f"system on chip ({parts})", millijoules)
