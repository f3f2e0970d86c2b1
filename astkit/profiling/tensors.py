"""The most bytes that tensors hold at once while something runs: exact, whatever the heap does."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

from astkit.profiling.window import quieten

_EVENT = "[memory]"


def peak_tensor_bytes(run: Callable[[], object]) -> int:
    """Bytes on the CPU beyond those held before ``run``, at the moment when they are most.

    Counted where torch takes and gives back memory, so that what an allocator keeps for later does
    not hide a small peak, as it hides it from `peak_memory`. Runs several times slower meanwhile.
    """
    quieten()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as window:
        run()
    held = most = 0
    results = window.profiler.kineto_results if window.profiler is not None else None
    for event in results.events() if results is not None else ():
        if event.name() == _EVENT:
            held += event.nbytes()
            most = max(most, held)
    return most
