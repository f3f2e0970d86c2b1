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
    cudnn_benchmark: bool | Literal["auto"] = "auto",
    deterministic: bool = False,
    fixed_shapes: bool = False,
    probe: Callable[[], object] | None = None,
    decided: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
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
        cudnn_benchmark: let cuDNN time its algorithms once for every shape; "auto" does so on CUDA
            where ``fixed_shapes`` says that there are few.
        deterministic: only algorithms that give the same bits each time; what has none raises.
        fixed_shapes: whether all batches have one size, as they have not behind a gate.
        probe: some work like a training step (forward and backward on a batch, say), to be
            repeated 7 times; its page faults are counted, and timed against what one costs here.
        decided: an earlier record; its choice of allocator is taken over without a probe, so that a
            resumed run keeps it.

    Raises:
        ValueError: for a setting that is not among these, or ``deterministic`` together with
            ``cudnn_benchmark``.
    """
    device = torch.device(device)
    _check(threads, allocator, cudnn_benchmark, deterministic)
    with ExitStack() as around:
        yield {
            "threads": around.enter_context(_threads(threads)),
            "allocator": around.enter_context(_allocator(allocator, device, probe, decided)),
            "cudnn_benchmark": around.enter_context(
                _cudnn(cudnn_benchmark, device, fixed_shapes and not deterministic)
            ),
            "deterministic": around.enter_context(_deterministic(deterministic, device)),
        }


def allowed_cpus() -> int:
    """How many logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check(threads: object, allocator: object, benchmark: object, deterministic: bool) -> None:
    whole = isinstance(threads, int) and not isinstance(threads, bool) and threads >= 1
    if threads != "auto" and not whole:
        raise ValueError(f"threads is {threads!r}: give 'auto' or a whole number of 1 or more")
    if allocator not in ("auto", "on", "off"):
        raise ValueError(f"allocator is {allocator!r}: choose 'auto', 'on' or 'off'")
    if benchmark != "auto" and not isinstance(benchmark, bool):
        raise ValueError(f"cudnn_benchmark is {benchmark!r}: choose 'auto', True or False")
    if benchmark is True and deterministic:
        raise ValueError(
            "cudnn_benchmark is True and so is deterministic, but timing picks another algorithm"
            " from run to run: leave one of them out"
        )


@contextmanager
def _threads(wanted: ThreadChoice) -> Iterator[dict[str, Any]]:
    before, allowed = torch.get_num_threads(), allowed_cpus()
    asked = before if wanted == "auto" else wanted
    value = min(asked, allowed)
    source = "torch's own number" if wanted == "auto" else "as asked"
    why = (
        source
        if value == asked
        else f"{source} was {asked}, but this process may run on {allowed} processors only"
    )
    if value != before:
        torch.set_num_threads(value)
    try:
        yield {"value": value, "before": before, "allowed": allowed, "why": why}
    finally:
        if value != before:
            torch.set_num_threads(before)


@contextmanager
def _allocator(
    wanted: Switch,
    device: torch.device,
    probe: Callable[[], object] | None,
    decided: Mapping[str, Any] | None,
) -> Iterator[dict[str, Any]]:
    if _raised:
        yield {"value": "on", "why": "a block around this one keeps memory already"}
        return
    record = _decide(wanted, device, probe, decided)
    if record["value"] == "off":
        yield record
        return
    _keep_memory(True)
    try:
        yield record | {"left_behind": _LEFT_BEHIND}
    finally:
        _keep_memory(False)


def _decide(
    wanted: Switch,
    device: torch.device,
    probe: Callable[[], object] | None,
    decided: Mapping[str, Any] | None,
) -> dict[str, Any]:
    obstacle = _obstacle()
    if wanted != "off" and obstacle:
        return {"value": "off", "why": obstacle}
    if wanted != "auto":
        return {"value": wanted, "why": "as asked"}
    if decided is not None:
        return dict(decided["allocator"]) | {"decided": "earlier"}
    if device.type != "cpu":
        return {"value": "off", "why": f"the tensors of this run are {device.type}'s to allocate"}
    if probe is None:
        return {"value": "off", "why": "there was no probe to measure with"}
    return _measure(probe)


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


def _measure(probe: Callable[[], object]) -> dict[str, Any]:
    """What page faults cost ``probe``: their number a call times the seconds that one takes.

    The two cannot be timed in turns: once memory was kept, freed pieces stay in the heap for the
    other arm too. So the process is measured as it is, and is not touched unless it pays.
    """
    calls = [_timed(probe) for _ in range(_ROUNDS + 2)][2:]  # the heap finds its size first
    seconds = statistics.median(taken for taken, _ in calls)
    faults = statistics.median(number for _, number in calls)
    fault = statistics.median(_fault_seconds() for _ in range(_ROUNDS))
    share = min(0.99, faults * fault / seconds)
    ratio = 1 / (1 - share)
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
        del view  # or the mapping cannot close
        del write
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
    for option, value in (_ON if keep else _OFF).items():
        _libc().mallopt(option, value)
    if not keep:
        _libc().malloc_trim(0)  # what was kept goes back now
    _raised = keep


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@contextmanager
def _cudnn(
    wanted: bool | Literal["auto"], device: torch.device, fixed_shapes: bool
) -> Iterator[dict[str, Any]]:
    cuda, before = device.type == "cuda", torch.backends.cudnn.benchmark
    value = cuda and (fixed_shapes if wanted == "auto" else wanted)
    if not cuda:
        why = f"cuDNN has no part in a run on {device.type}"
    elif wanted != "auto":
        why = "as asked"
    else:
        why = "few shapes" if value else "many shapes, each to be timed anew, or deterministic"
    if cuda:
        torch.backends.cudnn.benchmark = value
    try:
        yield {"value": value, "why": why}
    finally:
        if cuda:
            torch.backends.cudnn.benchmark = before


@contextmanager
def _deterministic(wanted: bool, device: torch.device) -> Iterator[dict[str, Any]]:
    enabled = torch.are_deterministic_algorithms_enabled()
    if not wanted:
        yield {"value": enabled, "why": "as it was"}
        return
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    why = "as asked"
    new = device.type == "cuda" and _CUBLAS not in os.environ
    if new:
        # cuBLAS gives the same bits each time only with a workspace of its own
        os.environ[_CUBLAS] = ":4096:8"
        if torch.cuda.is_initialized():
            why += f"; CUDA was in use already, so set {_CUBLAS}=:4096:8 before Python starts"
    torch.use_deterministic_algorithms(True)
    try:
        yield {"value": True, "why": why}
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        if new:
            del os.environ[_CUBLAS]
