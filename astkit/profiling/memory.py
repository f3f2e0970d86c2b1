"""Peak memory of a block, on the CPU and on an accelerator; ``None`` with a reason, never 0.

CPU: Linux keeps the most that a process ever had resident (``VmHWM`` in ``/proc/self/status``), and
writing 5 to ``/proc/self/clear_refs`` sets it back (proc_pid_clear_refs(5)). Where that is refused,
a thread samples the resident memory, which misses peaks between two samples. Either counts all
threads of this process and none of its children, such as the workers of a DataLoader; the kernel
adds its counters up by and by, so some hundred kilobytes may be missing.

Accelerator: the statistics of torch's caching allocator, so what this process's tensors take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

PROC = Path("/proc/self")
PERIOD_S = 0.01
"""Seconds between two samples, where the kernel's own peak cannot be had."""


@dataclass(frozen=True)
class MemoryReading:
    """The peak of a block; ``bytes`` is ``None`` where ``reason`` says why.

    Attributes:
        bytes: the most that was in use at any time in the block.
        baseline: what was in use when the block began, in bytes.
        backend: where the numbers come from.
        reason: why there are none, or what to know of them.
        reserved: the most that torch's allocator held of an accelerator, in bytes: what other
            processes could not have. ``None`` on the CPU.
    """

    bytes: int | None
    baseline: int | None
    backend: str | None
    reason: str | None = None
    reserved: int | None = None

    @property
    def grown(self) -> int | None:
        """Bytes of the peak above the baseline."""
        if self.bytes is None or self.baseline is None:
            return None
        return self.bytes - self.baseline


class Resident(NamedTuple):
    """What this process has in memory now, in bytes; ``anonymous`` is what tensors lie in.

    ``total = anonymous + file + shared``; ``shared`` holds what DataLoader workers hand over.
    """

    total: int
    anonymous: int
    file: int
    shared: int


def resident() -> Resident | None:
    """VmRSS, RssAnon, RssFile and RssShmem of ``/proc/self/status``; ``None`` where there is none.

    Source: proc_pid_status(5), which calls them inaccurate by a few pages.
    """
    sizes = _status()
    names = ("VmRSS", "RssAnon", "RssFile", "RssShmem")
    return Resident(*(sizes[name] for name in names)) if sizes.keys() >= set(names) else None


@dataclass
class _Source:
    """Where a peak comes from; one source serves every block that is open on its device.

    ``reset`` forgets all peaks before now; ``peaks`` are the most bytes used, and reserved, since.
    """

    backend: str
    now: Callable[[], int]
    reset: Callable[[], object]
    peaks: Callable[[], tuple[int, int | None]]
    close: Callable[[], object] = lambda: None
    note: str | None = None


class _Sampler:
    """A thread that samples the resident memory."""

    def __init__(self) -> None:
        self.peak, self._stopped = _rss(), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stopped.wait(PERIOD_S):
            self.peak = max(self.peak, _rss())

    def reset(self) -> None:
        self.peak = _rss()

    def peaks(self) -> tuple[int, None]:
        return max(self.peak, _rss()), None

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()


class PeakMemory:
    """Measures the peak memory of a block, and of what other threads do in the meantime::

        with peak_memory(device) as peak:
            train()
        peak.reading.bytes, peak.reading.baseline, peak.reading.backend

    Blocks may lie in one another or overlap: each has its own peak. The kernel's, or torch's, own
    peak is reset where a block begins, so do not rely on it beside. Work that is queued on an
    accelerator needs no waiting for: its memory is taken when it is queued. ``device`` is "cpu" for
    this process's memory, otherwise an accelerator.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = _numbered(torch.device(device))
        self._source: _Source | None = None
        self._reading = MemoryReading(None, None, None, "the block has not begun")

    @property
    def reading(self) -> MemoryReading:
        """The reading of the whole block; within the block, of what is past of it."""
        with _lock:
            self._take()
            return self._reading

    def __enter__(self) -> PeakMemory:
        with _lock:
            others = [block for block in _open if block.device == self.device]
            source = others[0]._source if others else _source(self.device)
            if isinstance(source, str):
                self._reading = MemoryReading(None, None, None, source)
            elif source is not None:
                for block in others:
                    block._take()  # what the reset below makes the source forget
                source.reset()
                now = source.now()
                self._source = source
                self._reading = MemoryReading(now, now, source.backend, source.note)
                _open.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        with _lock:
            if self._source is None:
                return
            self._take()
            source, self._source = self._source, None
            _open.remove(self)
            if all(block._source is not source for block in _open):
                source.close()

    def _take(self) -> None:
        """Put the source's present peak into the reading."""
        if self._source is None:
            return
        (used, held), known = self._source.peaks(), self._reading
        reserved = None if held is None else max(held, known.reserved or 0)
        self._reading = replace(known, bytes=max(used, known.bytes or 0), reserved=reserved)


_open: list[PeakMemory] = []
_lock = threading.RLock()


def peak_memory(device: torch.device | str = "cpu") -> PeakMemory:
    """A context manager that measures the peak memory of its block; see `PeakMemory`."""
    return PeakMemory(device)


def _numbered(device: torch.device) -> torch.device:
    """``device`` with its index, so that "cuda" and "cuda:0" are one."""
    if device.type == "cpu":
        return torch.device("cpu")
    if device.index is not None or not torch.accelerator.is_available():
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())


def _source(device: torch.device) -> _Source | str:
    """A source for ``device``, or why there is none."""
    if device.type == "cpu":
        return _cpu_source()
    accelerator = torch.accelerator
    seen = accelerator.current_accelerator() if accelerator.is_available() else None
    if seen is None or seen.type != device.type:
        return f"torch sees no {device.type} device here"
    torch.empty(1, device=device)  # an allocator that nobody has used yet has no statistics
    if "allocated_bytes.all.peak" not in accelerator.memory_stats(device):
        return f"torch keeps no memory statistics for {device.type} devices"
    used, held = accelerator.max_memory_allocated, accelerator.max_memory_reserved
    return _Source(
        "torch.accelerator",
        partial(accelerator.memory_allocated, device),
        partial(accelerator.reset_peak_memory_stats, device),
        lambda: (used(device), held(device)),
    )


def _cpu_source() -> _Source | str:
    kernel = _Source(
        "VmHWM",
        lambda: _status()["VmRSS"],
        lambda: (PROC / "clear_refs").write_text("5"),
        lambda: (_status()["VmHWM"], None),
    )
    try:
        kernel.reset()
        kernel.peaks()
    except (OSError, KeyError) as error:
        try:
            sampler = _Sampler()
        except (OSError, ImportError):
            return "resident memory cannot be read: there is no /proc/self here and no psutil"
        note = f"sampled every {PERIOD_S * 1e3:g} ms, so a lower bound: the kernel's peak cannot"
        note += f" be set back ({error})"
        return _Source("sampled RSS", _rss, sampler.reset, sampler.peaks, sampler.close, note)
    return kernel


def _status() -> dict[str, int]:
    """The sizes in ``/proc/self/status``, in bytes; empty where there is no such file."""
    try:
        lines = (PROC / "status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


def _rss() -> int:
    """Resident bytes of this process. Raises ``ImportError`` without /proc and psutil."""
    known = _status().get("VmRSS")
    if known is not None:
        return known
    psutil: Any = import_module("psutil")
    return int(psutil.Process().memory_info().rss)
