"""Energy: joules from a counter, or ``None`` with the reason; no estimates.

NVML counts the whole board of an NVIDIA GPU (Volta or newer), RAPL the package of a CPU with all
its processes. A counter moves in steps (NVML about every 100 ms, RAPL every ms), so both ends of a
measurement are up to one step off: at most 2 % in 100 steps, or in 25 steps between two pauses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

POWERCAP = Path("/sys/class/powercap")
STEPS = 25
"""Minimum number of counter steps between two pauses, on average; four times as many in a total."""


@dataclass(frozen=True)
class EnergyReading:
    """Joules over ``window_s`` seconds, or the ``reason`` for their absence.

    ``backend`` is the counter ("nvml" or "rapl") and ``scope`` what it covers.
    """

    joules: float | None
    backend: str | None
    scope: str
    window_s: float
    reason: str | None = None

    def __str__(self) -> str:
        if self.joules is None:
            return f"joules not measured: {self.reason}"
        return f"{self.joules:,.1f} J ({self.backend}, {self.scope}, {self.window_s:.1f} s)"


class EnergyCounter(NamedTuple):
    """Cumulative joules: ``step_s`` seconds between updates, ``range_j`` joules before it wraps."""

    backend: str
    scope: str
    read: Callable[[], float]
    step_s: float
    range_j: float | None = None


@dataclass
class _Account:
    joules: float = 0.0
    seconds: float = 0.0
    stretches: int = 0
    reason: str | None = None


class EnergyMeter:
    """Accumulates the joules of named windows::

        with meter.window("training"):
            step()
        print(meter.reading("training"))

    ``device`` "auto" is the available accelerator, else the CPU. Without a ``counter`` only time is
    measured, and each reading is ``None`` with the reason. Synchronise the device before each edge:
    queued work is counted in the next window. A counter may wrap once in a window.
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.counter: EnergyCounter | None = None
        self._clock, self._missing = time.perf_counter, ""
        self._accounts: dict[str, _Account] = {}
        self._open, self._last, self._ended = False, "", 0.0
        if str(device) == "auto":
            device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
        try:
            self.counter = _open_counter(torch.device(device))
        except Exception as error:  # of the system, a driver or torch
            self._missing = f"no energy counter of {device} ({error})"

    @contextmanager
    def window(self, name: str = "training") -> Iterator[None]:
        """Measure a block under ``name``. Raises ``RuntimeError`` inside another window."""
        if self._open:
            raise RuntimeError(f"window {self._last!r} is still open: leave it first")
        account, began = self._accounts.setdefault(name, _Account()), self._clock()
        step_s = 0.0 if self.counter is None else self.counter.step_s
        if name != self._last or began - self._ended > step_s:
            account.stretches += 1
        before = self._read(account)
        self._last, self._open = name, True
        try:
            yield
        finally:
            self._open, self._ended = False, self._clock()
            after = self._read(account)
            account.seconds += self._ended - began
            if self.counter is not None and before is not None and after is not None:
                wrapped = self.counter.range_j or 0.0 if after < before else 0.0
                account.joules += after - before + wrapped
                if after - before + wrapped < 0:
                    account.reason = "the counter was reset within a window"

    def _read(self, account: _Account) -> float | None:
        try:
            return None if self.counter is None else self.counter.read()
        except Exception as error:  # a driver error must not end the run
            account.reason = f"the counter cannot be read ({error})"
            return None

    def reading(self, name: str = "training") -> EnergyReading:
        """The total of ``name`` so far; ``None`` with the reason if incomplete or too short."""
        account = self._accounts.get(name, _Account())
        if self.counter is None:
            return EnergyReading(None, None, "none", account.seconds, self._missing)
        least = STEPS * max(4, account.stretches) * self.counter.step_s
        reason = account.reason
        if reason is None and account.seconds < least:
            pauses = f"{account.seconds:.2f} s with {account.stretches - 1} pauses"
            reason = f"too short: {pauses}, and at least {least:g} s are needed"
        if reason is None and account.joules == 0:
            reason = f"the counter did not move in {account.seconds:.1f} s"
        joules = account.joules if reason is None else None
        return EnergyReading(joules, *self.counter[:2], account.seconds, reason)


def _open_counter(device: torch.device) -> EnergyCounter:
    """The energy counter of ``device``; raises an exception, whose message is the reason."""
    if device.type == "cpu":
        return _rapl(POWERCAP)
    if device.type != "cuda" or torch.version.hip is not None:
        raise LookupError("only NVML and RAPL are read")
    nvml: Any = import_module("pynvml")  # of the package nvidia-ml-py
    nvml.nvmlInit()
    properties = torch.cuda.get_device_properties(device)
    # by UUID, since NVML ignores CUDA_VISIBLE_DEVICES
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")

    def read() -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3

    read()
    return EnergyCounter("nvml", f"{device} ({properties.name}), whole board", read, 0.1)


def _rapl(root: Path) -> EnergyCounter:
    # a package contains its cores, and psys the package, so only packages count
    names = {zone: (zone / "name").read_text() for zone in root.glob("intel-rapl:*")}
    packages = [zone for zone, name in names.items() if name.startswith("package-")]
    if len(packages) != 1:
        raise LookupError(f"{root} has {len(packages)} CPU packages, and RAPL is read of one")
    package = packages[0]

    def read() -> float:
        return int((package / "energy_uj").read_text()) / 1e6

    read()  # since 2020 only root may: sudo chmod a+r, until the next boot
    wraps = int((package / "max_energy_range_uj").read_text()) / 1e6
    return EnergyCounter("rapl", "CPU package, all processes", read, 0.001, wraps)
