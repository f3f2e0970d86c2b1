"""System settings of a run: threads, page faults, cuDNN, determinism. Each is recorded, with why.

`tuned` sets them for the length of a block and puts back what the system lets it put back.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch

ThreadChoice = Literal["auto"] | int
Switch = Literal["auto", "on", "off"]
Record = dict[str, Any]

# glibc, malloc.h: the numbers of the options that mallopt(3) takes
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
# the most that glibc lets either threshold be, or grow to on its own, on 64 bits: mallopt(3)
_CEILING = 4 * 1024 * 1024 * 8
_OFF = {_MMAP_THRESHOLD: _CEILING, _TRIM_THRESHOLD: 2 * _CEILING, _MMAP_MAX: 65_536}
# never trim, never map: tensors above 32 MiB would be mapped anew each time whatever the threshold
_ON = {_MMAP_THRESHOLD: _CEILING, _TRIM_THRESHOLD: -1, _MMAP_MAX: 0}
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")
_LEFT_BEHIND = (
    "glibc no longer adapts its thresholds in this process: what comes after runs with the most"
    " they adapt to (32 MiB mapped, 64 MiB trimmed), and with holes in its heap"
)
_WORTH = 1.05
_ROUNDS = 5
_PROBE_BYTES = 32 * 1024 * 1024
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"

# what this process was last told: mallopt cannot be asked, and blocks may nest
_raised = False


@contextmanager
def tuned(
    *,
    device: str | torch.device = "cpu",
    threads: ThreadChoice = "auto",
    allocator: Switch = "auto",
    deterministic: bool = False,
    fixed_shapes: bool = False,
    probe: Callable[[], object] | None = None,
    decided: Mapping[str, Any] | None = None,
) -> Iterator[Record]:
    """Run a block with the system set for training on ``device``; yields what was set, and why.

    The record holds plain values only: one entry each for "threads", "allocator",
    "cudnn_benchmark" and "deterministic", with ``value``, ``why`` and what was measured.

    Args:
        device: where the run trains.
        threads: of torch, never more than the processors this process may run on; "auto" leaves
            torch's own number where it is within them: threads in excess wait for each other.
        allocator: "on" lets glibc keep the memory of freed tensors, which otherwise goes back to
            the system and is zeroed page by page at every step. "auto" does so where ``probe``
            gains 5 % or more, on CPU runs only. Memory stays at its peak until the block ends.
        deterministic: only algorithms that give the same bits each time; what has none raises.
        fixed_shapes: whether all batches have one size, so that cuDNN may time its algorithms once
            (on CUDA, unless ``deterministic``).
        probe: some work like a training step (forward and backward on a batch, say), to be
            repeated 7 times; its page faults are counted, and timed against what one costs here.
        decided: an earlier record; its choice of allocator is taken over without a probe, so that a
            resumed run goes on as it began.

    Raises:
        ValueError: for a setting that is not among these.
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
            "allocator": _allocator(allocator, device, probe, decided, undo),
            "cudnn_benchmark": _cudnn(device, fixed_shapes and not deterministic, undo),
            "deterministic": _deterministic(deterministic, device, undo),
        }


def allowed_cpus() -> int:
    """How many logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


def _allocator(
    wanted: Switch,
    device: torch.device,
    probe: Callable[[], object] | None,
    decided: Mapping[str, Any] | None,
    undo: ExitStack,
) -> Record:
    if _raised:
        return {"value": "on", "why": "a block around this one keeps memory already"}
    obstacle = _obstacle()
    if wanted != "off" and obstacle:
        record: Record = {"value": "off", "why": obstacle}
    elif wanted != "auto":
        record = {"value": wanted, "why": "as asked"}
    elif decided is not None:
        record = dict(decided["allocator"]) | {"decided": "earlier"}
    elif device.type != "cpu":
        record = {"value": "off", "why": f"the tensors of this run are {device.type}'s to allocate"}
    elif probe is None:
        record = {"value": "off", "why": "there was no probe to measure with"}
    else:
        record = _measure(probe)
    if record["value"] == "on":
        _keep_memory(True)
        undo.callback(_keep_memory, False)
        record["left_behind"] = _LEFT_BEHIND
    return record


def _obstacle() -> str | None:
    """Why this process's malloc is not to be told anything; ``None`` where it may be."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return f"only glibc on Linux has these thresholds, and this is {platform.system()}"
    if "malloc" in os.environ.get("LD_PRELOAD", ""):
        return "another allocator is loaded in place of glibc's (LD_PRELOAD)"
    own = [name for name in _OWN_SETTINGS if name in os.environ]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        own.append("GLIBC_TUNABLES")
    return f"the environment sets them already ({', '.join(own)})" if own else None


def _measure(probe: Callable[[], object]) -> Record:
    """What page faults cost ``probe``: their number a call times the seconds that one takes.

    The two cannot be timed in turns: once memory was kept, freed pieces stay in the heap for the
    other arm too. So the process is measured as it is, and is not touched unless it pays.
    """
    calls = [_timed(probe) for _ in range(_ROUNDS + 2)][2:]  # the heap finds its size first
    seconds, faults = (statistics.median(part) for part in zip(*calls, strict=True))
    fault = statistics.median(_fault_seconds() for _ in range(_ROUNDS))
    ratio = 1 / (1 - min(0.99, faults * fault / seconds))
    return {
        "value": "on" if ratio >= _WORTH else "off",
        "ratio": ratio,
        "faults": faults,
        "seconds_a_fault": fault,
        "seconds_a_call": seconds,
        "rounds": _ROUNDS,
        "why": f"{faults:.0f} page faults of {1e6 * fault:.2f} us in a call of"
        f" {1e3 * seconds:.1f} ms: without them it runs {ratio:.2f}x as fast (n = {_ROUNDS});"
        f" {_WORTH} is worth it",
    }


def _fault_seconds() -> float:
    """Seconds that a page fault takes: fresh memory is written once, and then once more."""
    with mmap.mmap(-1, _PROBE_BYTES) as memory:
        view = ctypes.c_char.from_buffer(memory)
        write = partial(ctypes.memset, ctypes.addressof(view), 1, _PROBE_BYTES)
        fresh, faults = _timed(write)
        again, _ = _timed(write)
        del view, write  # or the mapping cannot close
    return max(0.0, fresh - again) / max(1, faults)


def _timed(call: Callable[[], object]) -> tuple[float, int]:
    """Seconds and page faults of one call."""
    import resource  # Windows has none, and never comes here

    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _keep_memory(keep: bool) -> None:
    global _raised
    libc = ctypes.CDLL(None)
    for option, value in (_ON if keep else _OFF).items():
        libc.mallopt(option, value)
    if not keep:
        libc.malloc_trim(0)  # what was kept goes back now
    _raised = keep


def _cudnn(device: torch.device, fixed_shapes: bool, undo: ExitStack) -> Record:
    if device.type != "cuda":
        return {"value": False, "why": f"cuDNN has no part in a run on {device.type}"}
    undo.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    torch.backends.cudnn.benchmark = fixed_shapes
    many = "many shapes, each to be timed anew, or deterministic"
    return {"value": fixed_shapes, "why": "few shapes" if fixed_shapes else many}


def _deterministic(wanted: bool, device: torch.device, undo: ExitStack) -> Record:
    enabled = torch.are_deterministic_algorithms_enabled()
    if not wanted:
        return {"value": enabled, "why": "as it was"}
    why = "as asked"
    if device.type == "cuda" and _CUBLAS not in os.environ:
        # cuBLAS gives the same bits each time only with a workspace of its own
        os.environ[_CUBLAS] = ":4096:8"
        undo.callback(os.environ.pop, _CUBLAS, None)
        if torch.cuda.is_initialized():
            why += f"; CUDA was in use already, so set {_CUBLAS}=:4096:8 before Python starts"
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    undo.callback(torch.use_deterministic_algorithms, enabled, warn_only=warn_only)
    torch.use_deterministic_algorithms(True)
    return {"value": True, "why": why}
