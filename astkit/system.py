"""System settings of a run: threads and allocator."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

# option numbers of mallopt(3), from glibc's malloc.h, and its largest threshold on 64 bits
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_CEILING = 4 * 1024 * 1024 * 8
# never trim, never map: otherwise tensors above 32 MiB are mapped anew at each allocation
_KEEPING = {_MMAP_THRESHOLD: _CEILING, _TRIM_THRESHOLD: -1, _MMAP_MAX: 0}
_USUAL = {_MMAP_THRESHOLD: _CEILING, _TRIM_THRESHOLD: 2 * _CEILING, _MMAP_MAX: 65_536}
_SET_BY_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")

_threads: list[int] = []
"""Numbers of threads, outside and in each open context; of several, any may end first."""


@contextmanager
def tuned(threads: int | None = None, keep_memory: bool = False) -> Iterator[None]:
    """Set torch's threads and glibc's allocator in a context.

    Args:
        threads: number of torch threads; torch's own number by default. Never more than the
            processors available, since excess threads wait for each other.
        keep_memory: keep the memory of freed tensors, which otherwise returns to the system and is
            zeroed page by page at every step. Memory then stays at its peak until the context ends.
            Without effect where `can_keep_memory` is false.
    """
    if not _threads:
        _threads.append(torch.get_num_threads())
    own = min(threads or _threads[0], allowed_cpus())
    _threads.append(own)
    torch.set_num_threads(own)
    keep_memory = keep_memory and can_keep_memory()
    if keep_memory:
        _mallopt(_KEEPING)
    try:
        yield
    finally:
        _threads.remove(own)
        torch.set_num_threads(_threads[-1])
        if len(_threads) == 1:
            _threads.clear()
        if keep_memory:
            _mallopt(_USUAL).malloc_trim(0)  # return cached memory


def can_keep_memory() -> bool:
    """Whether glibc allocates on Linux, with settings that the user did not choose."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    replaced = "malloc" in os.environ.get("LD_PRELOAD", "")
    tuned = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    return not (replaced or tuned or any(name in os.environ for name in _SET_BY_USER))


def _mallopt(options: dict[int, int]) -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    for option, value in options.items():
        libc.mallopt(option, value)
    return libc


def allowed_cpus() -> int:
    """Number of logical processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def text_of(path: Path) -> str:
    """Content of a file of the system; empty if it cannot be read."""
    with suppress(OSError):
        return path.read_text()
    return ""
