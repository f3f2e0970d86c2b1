"""System settings of a run: threads, allocator, cuDNN; with the reason of each."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

ThreadChoice = Literal["auto"] | int
Switch = Literal["auto", "on", "off"]
Record = dict[str, Any]

# option numbers of mallopt(3), from glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
# maximum of both thresholds on 64 bits, also when glibc adapts them: mallopt(3)
_CEILING = 4 * 1024 * 1024 * 8
_OFF = {_MMAP_THRESHOLD: _CEILING, _TRIM_THRESHOLD: 2 * _CEILING, _MMAP_MAX: 65_536}
# never trim, never map: otherwise tensors above 32 MiB are mapped anew at each allocation
_ON = {_MMAP_THRESHOLD: _CEILING, _TRIM_THRESHOLD: -1, _MMAP_MAX: 0}
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")

# current setting of this process: mallopt cannot be queried, and contexts may nest
_raised = False


@contextmanager
def tuned(
    *,
    device: str | torch.device = "cpu",
    threads: ThreadChoice = "auto",
    allocator: Switch = "auto",
    fixed_shapes: bool = False,
) -> Iterator[Record]:
    """Configure the system for training on ``device`` in a context; yields what was set, and why.

    The record has plain values only: one entry each for "threads", "allocator" and
    "cudnn_benchmark", with ``value`` and ``why``.

    Args:
        threads: number of torch threads, limited to the processors available, since excess
            threads wait for each other; "auto" uses torch's number within that limit.
        allocator: "on" makes glibc keep the memory of freed tensors, which otherwise returns to the
            system and is zeroed page by page at every step; memory then stays at its peak until
            exit, and glibc no longer adapts its thresholds afterwards. "auto" is "on" for
            the CPU.
        fixed_shapes: whether all batches have one shape, so that cuDNN may benchmark its algorithms
            once (on CUDA, unless torch or cuDNN is set to deterministic algorithms).

    Raises ``ValueError`` for invalid settings.
    """
    device = torch.device(device)
    whole = isinstance(threads, int) and not isinstance(threads, bool) and threads >= 1
    if threads != "auto" and not whole:
        raise ValueError(f"threads is {threads!r}: give 'auto' or a whole number of 1 or more")
    if allocator not in ("auto", "on", "off"):
        raise ValueError(f"allocator is {allocator!r}: choose 'auto', 'on' or 'off'")
    with ExitStack() as undo:
        yield {
            "threads": _threads(threads, undo),
            "allocator": _allocator(allocator, device, undo),
            "cudnn_benchmark": _cudnn(device, fixed_shapes, undo),
        }


def allowed_cpus() -> int:
    """Number of logical processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def text_of(path: Path) -> str:
    """Content of a file of the system; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _threads(wanted: ThreadChoice, undo: ExitStack) -> Record:
    before, allowed = torch.get_num_threads(), allowed_cpus()
    asked = before if wanted == "auto" else wanted
    value = min(asked, allowed)
    why = "torch's own number" if wanted == "auto" else "as asked"
    if value != asked:
        why += f" was {asked}, but this process may run on {allowed} processors only"
    if value != before:
        torch.set_num_threads(value)
        undo.callback(torch.set_num_threads, before)
    return {"value": value, "before": before, "allowed": allowed, "why": why}


def _allocator(wanted: Switch, device: torch.device, undo: ExitStack) -> Record:
    if _raised:  # malloc settings are per process
        return {"value": "on", "why": "an outer context already keeps memory"}
    if wanted == "off":
        return {"value": "off", "why": "as asked"}
    if obstacle := _obstacle():
        return {"value": "off", "why": obstacle}
    if wanted == "auto" and device.type != "cpu":
        return {"value": "off", "why": f"{device.type} memory is allocated by torch"}
    _keep_memory(True)
    undo.callback(_keep_memory, False)
    return {"value": "on", "why": "as asked" if wanted == "on" else "a run on the CPU with glibc"}


def _obstacle() -> str | None:
    """Why this process's malloc settings cannot be changed; ``None`` if they can."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return f"only glibc on Linux has these thresholds, and this is {platform.system()}"
    if "malloc" in os.environ.get("LD_PRELOAD", ""):
        return "another allocator replaces glibc's (LD_PRELOAD)"
    own = [name for name in _OWN_SETTINGS if name in os.environ]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        own.append("GLIBC_TUNABLES")
    return f"the environment sets them already ({', '.join(own)})" if own else None


def _keep_memory(keep: bool) -> None:
    global _raised
    libc = ctypes.CDLL(None)
    for option, value in (_ON if keep else _OFF).items():
        libc.mallopt(option, value)
    if not keep:
        libc.malloc_trim(0)  # return cached memory
    _raised = keep


def _cudnn(device: torch.device, fixed_shapes: bool, undo: ExitStack) -> Record:
    if device.type != "cuda":
        return {"value": False, "why": f"a run on {device.type} does not use cuDNN"}
    before = torch.backends.cudnn.benchmark
    if torch.backends.cudnn.deterministic:
        return {"value": before, "why": "cudnn.deterministic is set, so it was left as it was"}
    fixed_shapes = fixed_shapes and not torch.are_deterministic_algorithms_enabled()
    undo.callback(setattr, torch.backends.cudnn, "benchmark", before)
    torch.backends.cudnn.benchmark = fixed_shapes
    many = "many shapes, each of which would be timed, or deterministic"
    return {"value": fixed_shapes, "why": "few shapes" if fixed_shapes else many}
