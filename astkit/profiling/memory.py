"""Peak memory of a block, on the CPU and on an accelerator; ``None`` with a reason if unknown.

CPU: Linux records the maximum resident memory of a process (``VmHWM`` in ``/proc/self/status``);
writing 5 to ``/proc/self/clear_refs`` resets it (proc_pid_clear_refs(5)). It covers all threads of
this process but no child processes, such as DataLoader workers; the kernel updates its
counters with a delay, so some hundred kilobytes may be missing.

Accelerator: the statistics of torch's caching allocator, i.e. tensors of this process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

PROC = Path("/proc/self")


@dataclass(frozen=True)
class MemoryReading:
    """The peak of a block in ``bytes``, or the ``reason`` for its absence.

    ``baseline``: bytes in use at the start of the block; ``backend``: source of the numbers,
    "VmHWM" or "torch.accelerator".
    """

    bytes: int | None = None
    baseline: int | None = None
    backend: str | None = None
    reason: str | None = None

    @property
    def grown(self) -> int | None:
        """Bytes of the peak above the baseline."""
        if self.bytes is None or self.baseline is None:
            return None
        return self.bytes - self.baseline


@dataclass(frozen=True)
class _Source:
    """Source of a peak; ``reset`` discards earlier peaks, ``peak`` is the peak since then."""

    backend: str
    now: Callable[[], int]
    reset: Callable[[], object]
    peak: Callable[[], int]


class PeakMemory:
    """Measures the peak memory of a block, including other threads::

        with peak_memory(device) as peak:
            train()
        peak.reading.bytes, peak.reading.baseline, peak.reading.backend

    Blocks may be nested or overlap: each has its own peak. The peak of the kernel, or of torch, is
    reset at the start of a block, so other code must not rely on it. Accelerators need no
    synchronisation: memory is allocated when work is queued. ``device`` is "cpu" for this process's
    memory, otherwise an accelerator.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        if self.device.type == "cpu":
            self.device = torch.device("cpu")
        elif self.device.index is None and torch.accelerator.is_available():
            # so that "cuda" and "cuda:0" are one device
            self.device = torch.device(self.device.type, torch.accelerator.current_device_index())
        self._source: _Source | None = None
        self._reading = MemoryReading(reason="the block has not begun")

    @property
    def reading(self) -> MemoryReading:
        """The reading of the whole block; within the block, so far."""
        with _lock:
            self._take()
            return self._reading

    def __enter__(self) -> PeakMemory:
        with _lock:
            for block in _open:
                if block.device == self.device:
                    block._take()  # before the reset below
            try:
                source = _source(self.device)
                source.reset()
                now = source.now()
                self._source, self._reading = source, MemoryReading(now, now, source.backend)
                self._take()
            except (OSError, LookupError) as error:
                reason = f"peak memory cannot be measured here: {error}"
                self._source, self._reading = None, MemoryReading(reason=reason)
            else:
                _open.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        with _lock:
            if self._source is not None:
                self._take()
                self._source = None
                _open.remove(self)

    def _take(self) -> None:
        """Update the reading with the source's current peak."""
        if self._source is not None:
            known = self._reading.bytes or 0
            self._reading = replace(self._reading, bytes=max(self._source.peak(), known))


peak_memory = PeakMemory

_open: list[PeakMemory] = []
_lock = threading.RLock()


def _source(device: torch.device) -> _Source:
    """A source for ``device``; raises ``LookupError`` with the reason if there is none."""
    if device.type == "cpu":
        return _Source(
            "VmHWM",
            partial(_status, "VmRSS"),
            lambda: (PROC / "clear_refs").write_text("5"),
            partial(_status, "VmHWM"),
        )
    accelerator = torch.accelerator
    seen = accelerator.current_accelerator() if accelerator.is_available() else None
    if seen is None or seen.type != device.type:
        raise LookupError(f"torch finds no {device.type} device")
    torch.empty(1, device=device)  # the allocator has no statistics before its first use
    if "allocated_bytes.all.peak" not in accelerator.memory_stats(device):
        raise LookupError(f"torch keeps no memory statistics for {device.type} devices")
    return _Source(
        "torch.accelerator",
        partial(accelerator.memory_allocated, device),
        partial(accelerator.reset_peak_memory_stats, device),
        partial(accelerator.max_memory_allocated, device),
    )


def _status(name: str) -> int:
    """The value ``name`` of ``/proc/self/status``, in bytes."""
    for line in (PROC / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{PROC / 'status'} has no {name}")
