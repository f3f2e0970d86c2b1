"""One short profiled window of a run: its most expensive operators, and a trace to look at."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import profile, schedule

from astkit import logs
from astkit.files import write_atomic

LOGGED = 5
"""Operators that a log record names."""


class ProfilerWindow:
    """Runs ``torch.profiler`` for ``active`` batches of a run, once, and then never again.

    It is an observer, so give it to a trainer; in a loop of your own call ``step()`` after each
    batch and ``close()`` at the end::

        window = ProfilerWindow(folder="runs/profile")
        Trainer(model, data, budget=Budget(epochs=1), observers=[window]).run()
        pandas.DataFrame(window.operators())

    It draws no random numbers and changes no result. While it profiles, a batch takes longer (1.2
    times with convolutions, up to twice with small operators), so take timings without it. What
    happens between two batches of the window, a validation for one, is in it as well: a window
    that is shorter than a pass, and starts with one, has none.

    Args:
        wait: batches to leave alone first. The first one of a run is unlike the others (FLOPs are
            counted, kernels chosen), so at least 1.
        warmup: batches after these with the profiler on and its results thrown away.
        active: batches to profile.
        folder: where ``trace.json.gz`` goes, for chrome://tracing or ui.perfetto.dev, which open it
            as it is; ``None`` writes none. One that is there is replaced.

    Attributes:
        batches: how many batches it was told of.
        trace: the path of the trace, once written.

    Raises ``ValueError`` for a window that cannot be.
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
        """A batch is done: start, go on or end."""
        if self.done:
            return
        self.batches += 1
        if self._profiler is not None:
            self._profiler.step()
            if self.done:
                self.close()
        elif self.batches == self.wait:
            plan = schedule(wait=0, warmup=self.warmup, active=self.active, repeat=1)
            quieten()
            self._profiler = profile(schedule=plan, on_trace_ready=self._collect)
            self._profiler.start()

    def close(self) -> None:
        """The run has ended or was left: keep what was profiled; a window not begun begins anew."""
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


def quieten() -> None:
    """Silence the profiler's own library, which reports its starts and stops as errors."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
