"""GPU energy from NVML, through ``pynvml`` (package nvidia-ml-py, extra ``energy``).

Volta and newer GPUs count millijoules since the driver was loaded; for others power is polled and
integrated. Both mean the whole board, and all that runs on it. No privileges are needed.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

from astkit.profiling.energy.reading import EnergyCounter, Snapshot, UnavailableError

STEP_S = 0.1
"""The counter moves about every 100 ms, and power is polled as often."""
HOLE_STEPS = 10
"""Polls that may be missing in a row before the energy between two is no longer taken as known."""


class NvmlEnergy:
    """A GPU's cumulative energy counter."""

    backend = "nvml"
    step_s = STEP_S

    def __init__(self, nvml: Any, handle: Any, scope: str) -> None:
        self._nvml, self._handle, self.scope = nvml, handle, scope

    def read(self) -> Snapshot:
        """Millijoules since the driver was loaded."""
        try:
            return (self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle),)
        except self._nvml.NVMLError as error:
            raise UnavailableError(f"NVML's energy counter cannot be read ({error})") from None

    def joules(self, before: Snapshot, after: Snapshot, seconds: float) -> float:
        """Difference of the counter, which a reload of the driver sets back."""
        if after[0] < before[0]:
            raise UnavailableError("NVML's energy counter went back: it was reset within a window")
        return (after[0] - before[0]) / 1e3

    def close(self) -> None:
        """Leave NVML as it was found."""
        self._nvml.nvmlShutdown()


class NvmlPower:
    """Power polled by a background thread and integrated by the trapezoidal rule.

    Args:
        nvml: the pynvml module.
        handle: of the GPU.
        scope: what draws the power.
        clock: seconds, monotonic.
        period_s: seconds between two polls; ``None`` polls at readings only.
    """

    backend = "nvml-power"
    step_s = STEP_S

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        scope: str,
        *,
        clock: Callable[[], float] = time.perf_counter,
        period_s: float | None = STEP_S,
    ) -> None:
        self._nvml, self._handle, self.scope, self._clock = nvml, handle, scope, clock
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._at, self._watts = clock(), self._power()
        self._joules, self._holes = 0.0, 0
        if period_s is not None:
            arguments = (weakref.ref(self), self._stopped, period_s)
            threading.Thread(target=_poll, args=arguments, daemon=True).start()

    def read(self) -> Snapshot:
        """Joules since the start, and how often polling stopped for too long."""
        with self._lock:
            try:
                watts = self._power()
            except self._nvml.NVMLError as error:
                raise UnavailableError(f"NVML's power cannot be read ({error})") from None
            now = self._clock()
            self._joules += (watts + self._watts) / 2 * (now - self._at)
            self._holes += now - self._at > HOLE_STEPS * STEP_S
            self._at, self._watts = now, watts
            return (self._joules, self._holes)

    def joules(self, before: Snapshot, after: Snapshot, seconds: float) -> float:
        """Difference of the integral; refused where polls are missing in it."""
        if after[1] != before[1]:
            raise UnavailableError(
                f"NVML's power was not polled for more than {HOLE_STEPS * STEP_S:g} s in a window"
            )
        return after[0] - before[0]

    def close(self) -> None:
        """Stop the thread and leave NVML as it was found."""
        self._stopped.set()
        self._nvml.nvmlShutdown()

    def _power(self) -> float:
        return self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3  # milliwatts


def _poll(counter: weakref.ref[NvmlPower], stopped: threading.Event, period_s: float) -> None:
    # a weak reference, so that a counter that nobody closed ends its thread when it is dropped
    while not stopped.wait(period_s):
        alive = counter()
        if alive is None:
            return
        with suppress(UnavailableError):  # leaves a hole, which the window's reader is told of
            alive.read()
        del alive


def open_nvml(device: torch.device) -> EnergyCounter:
    """The energy counter of a CUDA ``device``, else its polled power.

    The board is found by its UUID, because NVML knows nothing of ``CUDA_VISIBLE_DEVICES``.
    Raises ``UnavailableError``.
    """
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
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
        scope = f"GPU {index} ({properties.name}), whole board"
        try:
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            return NvmlEnergy(nvml, handle, scope)
        except nvml.NVMLError_NotSupported:
            return NvmlPower(nvml, handle, scope)
    # torch raises the latter two where it sees no such GPU
    except (nvml.NVMLError, AssertionError, RuntimeError) as error:
        nvml.nvmlShutdown()
        raise UnavailableError(
            f"NVML reads neither energy nor power of {device} ({error})"
        ) from None
