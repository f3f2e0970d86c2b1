"""torch.profiler on some batches of a run, and the peak memory of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

from astkit import logs
from astkit.files import write_atomic

LOGGED = 5
"""Number of operators in a log record."""


class ProfilerWindow:
    """Runs ``torch.profiler`` on ``active`` batches of a run, once.

    As an observer of a trainer, or in a custom loop: call ``step()`` after each batch and
    ``close()`` at the end::

        window = ProfilerWindow(folder="runs/profile")
        Trainer(model, data, budget=Budget(epochs=1), observers=[window]).run()
        pandas.DataFrame(window.operators())

    Before them, ``wait`` batches are skipped, at least 1, since the first one also counts FLOPs and
    selects kernels, and ``warmup`` batches are profiled without a result. ``trace.json.gz``, for
    chrome://tracing and ui.perfetto.dev, is written to ``folder`` if given.

    Results do not change. A profiled batch takes 1.2 (convolutions) to 2 times as long (small
    operators), so measure timings without it. Work between two batches of the window, such as a
    validation, is also profiled. Raises ``ValueError`` for a count below 1.
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
        self._profiler: profile | None = None
        self._operators: list[dict[str, Any]] | None = None

    @property
    def done(self) -> bool:
        """Whether the window has ended."""
        return self._operators is not None

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Count a training batch, as an observer."""
        if phase == "train":
            self.step()

    def step(self) -> None:
        """Count a batch: start, continue or end the window."""
        if self._profiler is not None:
            self._profiler.step()
            if self.done:
                self.close()
        elif not self.done:
            _quieten()
            plan = schedule(wait=self.wait - 1, warmup=self.warmup, active=self.active, repeat=1)
            self._profiler = profile(schedule=plan, on_trace_ready=self._collect)
            self._profiler.start()

    def close(self) -> None:
        """End of the run: store the profile so far; a window that has not begun starts over."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()

    def operators(self, top: int | None = None) -> list[dict[str, Any]]:
        """Rows of the operators of the window, by decreasing cost, at most ``top``.

        ``name``; ``calls``; ``self_cpu_ms`` and ``self_device_ms``, milliseconds excluding called
        operators, on the device those of its kernels; ``share`` of the device's time, or of the
        CPU's if no kernel ran, without time in Python. Raises ``ValueError`` if no batch was
        profiled.
        """
        if self._operators is None:
            raise ValueError(
                f"no batch was profiled: the window begins after wait + warmup ="
                f" {self.wait + self.warmup} batches, so train longer or lower wait"
            )
        return self._operators[:top]

    def _collect(self, profiler: profile) -> None:
        if profiler.step_num < self.wait + self.warmup:
            return  # the run ended at the start of the window
        self._operators = _operators(profiler)
        if self.folder is not None:
            with TemporaryDirectory() as folder:  # torch does not write atomically
                path = Path(folder) / "trace.json.gz"
                profiler.export_chrome_trace(str(path))
                write_atomic(self.folder / path.name, path.read_bytes())
        logs.record(
            logs.PROFILING,
            "profiled",
            lambda: {row["name"]: f"{row['share']:.1%}" for row in self.operators(LOGGED)},
        )


def _operators(profiler: profile) -> list[dict[str, Any]]:
    events = [event for event in profiler.key_averages() if not event.is_user_annotation]
    # a kernel is a separate event and also counted for the operator that launched it
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


def peak_tensor_bytes(run: Callable[[], object]) -> int:
    """Peak bytes of CPU tensors during ``run``, above those held before.

    Counts torch's allocations, so memory cached by the allocator does not hide a small peak,
    unlike in `peak_memory`. ``run`` takes several times as long.
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
    """Silence Kineto, which logs its starts and stops as errors."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
