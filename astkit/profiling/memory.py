"""Peak memory of a process or an accelerator, and of the tensors of one call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_memory(device: torch.device | str = "cpu") -> int | None:
    """Peak bytes so far: of tensors on an accelerator, or of this process on the CPU.

    Of an accelerator since ``torch.accelerator.reset_peak_memory_stats``; of the process since its
    start, without its child processes. On Linux, a process that another one started counts the size
    of that one at that time. ``None`` where the system keeps no such number.
    """
    device = torch.device(device)
    if device.type != "cpu":
        return torch.accelerator.memory_stats(device).get("allocated_bytes.all.peak")
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def peak_tensor_bytes(run: Callable[[], object]) -> int:
    """Peak bytes of CPU tensors during ``run``, above those allocated before.

    Counts torch's allocations, so memory that the process used earlier does not hide a small peak,
    unlike in `peak_memory`. ``run`` takes several times as long.

    Raises ``RuntimeError`` within another profile, whose events this one would not get.
    """
    if torch.autograd.profiler._is_profiler_enabled:
        raise RuntimeError("run is measured within another profile: leave that one first")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it logs its starts and stops as errors
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as window:
        run()
    allocated = most = 0
    results = window.profiler.kineto_results if window.profiler is not None else None
    for event in results.events() if results is not None else ():
        if event.name() == "[memory]":
            allocated += event.nbytes()
            most = max(most, allocated)
    return most
