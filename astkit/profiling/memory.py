"""Peak memory of the tensors of one call."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_tensor_bytes(run: Callable[[], object]) -> int:
    """Peak bytes of CPU tensors during ``run``, above those allocated before.

    Counts torch's allocations, so memory that the process used earlier does not hide a small peak.
    ``run`` takes several times as long.

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
