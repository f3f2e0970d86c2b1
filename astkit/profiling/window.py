"""torch.profiler on a few batches of a run, and on what tensors hold at once."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

from astkit import logs
from astkit.files import write_atomic

LOGGED = 5
"""Operators that a log record names."""


class ProfilerWindow:
    """Runs ``torch.profiler`` for ``active`` batches of a run, once, and then never again.

    It is an observer, so give it to a trainer; in another loop call ``step()`` after each batch and
    ``close()`` at the end::

        window = ProfilerWindow(folder="runs/profile")
        Trainer(model, data, budget=Budget(epochs=1), observers=[window]).run()
        pandas.DataFrame(window.operators())

    It draws no random numbers and changes no result. While it profiles, a batch takes longer (1.2
    times with convolutions, up to twice with small operators), so take timings without it. What
    happens between two batches of the window, such as a validation, is part of it.

    Args:
        wait: batches to leave out first. The first one of a run is unlike the others (FLOPs are
            counted, kernels chosen), so at least 1.
        warmup: batches after these with the profiler on and its results thrown away.
        active: batches to profile.
        folder: where ``trace.json.gz`` is written (chrome://tracing and ui.perfetto.dev open it);
            ``None`` writes none. An existing one is replaced.

    Attributes:
        batches: how many batches there were so far.
        trace: the path of the trace, once written.

    Raises ``ValueError`` for a count below 1.
    """

    def __init__(
        self,
        wait: int = 2,
        warmup: int = 2,
        active: int = 4,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        for name, value in (("wait", wait), ("warmup", warmup), ("active", active)):
            if value < 1:
                raise ValueError(f"{name} is {value}, but counts batches: give 1 or more")
        self.wait, self.warmup, self.active = wait, warmup, active
        self.folder = None if folder is None else Path(folder)
        self.batches = 0
        self.trace: Path | None = None
        self._profiler: profile | None = None
        self._operators: list[dict[str, Any]] | None = None

    @property
    def done(self) -> bool:
        """Whether the window is over."""
        return self._operators is not None

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Count a training batch, as an observer."""
        if phase == "train":
            self.step()

    def step(self) -> None:
        """Count a batch: start, continue or end."""
        if self.done:
            return
        self.batches += 1
        if self._profiler is not None:
            self._profiler.step()
            if self.done:
                self.close()
        elif self.batches == self.wait:
            plan = schedule(wait=0, warmup=self.warmup, active=self.active, repeat=1)
            _quieten()
            self._profiler = profile(schedule=plan, on_trace_ready=self._collect)
            self._profiler.start()

    def close(self) -> None:
        """The run has ended: keep what was profiled; a window that has not begun starts over."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()
        if not self.done:
            self.batches = 0

    def operators(self, top: int | None = None) -> list[dict[str, Any]]:
        """The operators of the window, the most expensive first, at most ``top``.

        One mapping each, made for ``pandas.DataFrame``: ``name``; ``calls``; ``self_cpu_ms`` and
        ``self_device_ms``, milliseconds without the operators it called, on the device those of the
        kernels that it launched; ``share`` of the device's time, or of the CPU's where no device
        worked. Python's own time is in no operator.

        Raises ``ValueError`` where no batch was profiled.
        """
        if self._operators is None:
            raise ValueError(
                f"no batch was profiled: the window begins after wait + warmup ="
                f" {self.wait + self.warmup} batches, so let the run go on for longer or lower wait"
            )
        return self._operators[:top]

    def _collect(self, profiler: profile) -> None:
        if self.batches <= self.wait + self.warmup:
            return  # the run was left just where the window begins
        self._operators = _operators(profiler)
        if self.folder is not None:
            self.trace = write_atomic(self.folder / "trace.json.gz", _trace(profiler))
        logs.record(
            logs.PROFILING,
            "profiled",
            lambda: {row["name"]: f"{row['share']:.1%}" for row in self.operators(LOGGED)},
        )


def _operators(profiler: profile) -> list[dict[str, Any]]:
    events = [event for event in profiler.key_averages() if not event.is_user_annotation]
    # a kernel is an event of its own and counted for the operator that launched it as well
    called = [event for event in events if event.device_type.name == "CPU"]
    kernels = [event for event in events if event.device_type.name != "CPU"]
    on_device = sum(kernel.self_device_time_total for kernel in kernels)
    spent = "self_device_time_total" if on_device else "self_cpu_time_total"
    total = on_device or sum(event.self_cpu_time_total for event in called)
    called.sort(key=lambda event: -getattr(event, spent))
    return [
        {
            "name": event.key,
            "calls": event.count,
            "self_cpu_ms": event.self_cpu_time_total / 1e3,
            "self_device_ms": event.self_device_time_total / 1e3,
            "share": getattr(event, spent) / total,
        }
        for event in called
    ]


def _trace(profiler: profile) -> bytes:
    # torch writes to a path only, and not atomically
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return gzip.compress(path.read_bytes())


def peak_tensor_bytes(run: Callable[[], object]) -> int:
    """Bytes on the CPU beyond those held before ``run``, at the moment when they are most.

    Counted where torch takes and gives back memory, so that what an allocator keeps for later does
    not hide a small peak, as it hides it from `peak_memory`. Runs several times slower meanwhile.
    """
    _quieten()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as window:
        run()
    held = most = 0
    results = window.profiler.kineto_results if window.profiler is not None else None
    for event in results.events() if results is not None else ():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def _quieten() -> None:
    """Silence the profiler's own library, which reports its starts and stops as errors."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
