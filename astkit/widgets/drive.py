"""Controlled run: pause, single steps, stop, and interrupts between cells."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from astkit import files
from astkit.widgets import frontend


class Run:
    """Controls a trainer's loop.

    ``pause``, ``resume``, ``step`` and ``stop`` are thread-safe: they set a flag that
    is read between batches.

    Attributes:
        trainer: a `Trainer`.
        status: "ready", "running", "paused", "finished", "stopped", "interrupted", "out of time"
            or "failed".
        error: the exception that ended the run before its budget was spent, if any.
    """

    def __init__(self, trainer: Any, after: Callable[[Run], None] = lambda run: None) -> None:
        self.trainer = trainer
        self.status = "ready"
        self.error: BaseException | None = None
        self._after = after
        self._ending = ""
        self._paused, self._single = threading.Event(), threading.Event()
        self._task: asyncio.Task[None] | None = None

    def pause(self) -> None:
        """Pause after the current batch."""
        self._paused.set()

    def resume(self) -> None:
        """Continue."""
        self._paused.clear()

    def step(self) -> None:
        """Train on one batch and pause."""
        self._paused.set()
        self._single.set()

    def stop(self, why: str = "stopped") -> None:
        """End the run after the current batch."""
        self._ending = self._ending or why

    def begin(self, pace: float | None = None) -> None:
        """Train as a task of the running event loop, at most ``pace`` batches per second."""
        self._task = asyncio.create_task(self._drive(1 / pace if pace else 0.0))

    async def finished(self) -> Run:
        """Wait for the end; an interrupt ends both the run and the wait.

        Raises the error that ended the run early, such as `TimeIsUp`.
        """
        while self._task is not None and not self._task.done():
            try:
                await asyncio.shield(self._task)
            except asyncio.CancelledError:
                self.stop("interrupted")
                task = asyncio.current_task()
                if task is not None:
                    task.uncancel()
        return self._ended()

    def drain(self) -> None:
        """Train to the end before returning; an interrupt ends the run after the current batch.

        Raises the error that ended the run early, such as `TimeIsUp`.
        """
        with _Interrupts(self.stop, inside_cell=True), self._kept() as steps:
            for _ in steps:
                self._after(self)
                if self._ending:
                    break
        self._ended()

    async def _drive(self, rest_s: float) -> None:
        with _Interrupts(self.stop, inside_cell=False) as interrupts, self._kept() as steps:
            for record in steps:
                interrupts.watch()
                self._after(self)
                if record.phase == "train":
                    self._single.clear()
                await asyncio.sleep(rest_s)  # the kernel handles messages now
                while self._paused.is_set() and not self._single.is_set() and not self._ending:
                    self.status = "paused"
                    interrupts.watch()
                    self._after(self)
                    await asyncio.sleep(0.05)
                self.status = "running"
                if self._ending:
                    break

    @contextmanager
    def _kept(self) -> Iterator[Generator[Any]]:
        """The trainer's batches; exceptions are stored, since they would end the event loop.

        Closing the generator closes the observers, so that a board draws its last frame.
        """
        from astkit.trainers import TimeIsUp  # imports torch, which figures do not require

        self.status = "running"
        try:
            with closing(self.trainer.steps()) as steps:
                yield steps
        except (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
            self.stop("interrupted")
        except BaseException as error:  # SystemExit, too
            self.error = error
            self._ending = "out of time" if isinstance(error, TimeIsUp) else "failed"
        self.status = self._ending or "finished"
        self._after(self)

    def _ended(self) -> Run:
        if self.error is None:
            return self
        if self.status == "out of time":  # not an error: a notebook shows only the message
            sentence = f"{type(self.error).__name__}: {self.error}"
            vars(self.error)["_render_traceback_"] = lambda: [sentence]
        raise self.error

    def record(self) -> dict[str, Any]:
        """Status, metrics and changes of settings as plain values; ``steered``: by hand."""
        history = self.trainer.history
        events = [asdict(event) for event in self.trainer.steering.events]
        return {
            "status": self.status,
            "error": None if self.error is None else repr(self.error),
            "steered": self.trainer.steering.steered,
            "events": events,
            "training_steps": self.trainer.position.step,
            "steps": history.steps,
            "epochs": history.epochs,
        }

    def save(self, path: str | Path) -> None:
        """Write `record` as JSON, atomically."""
        files.write_atomic(Path(path), json.dumps(self.record(), indent=1) + "\n")


class _Interrupts:
    """Makes the kernel's interrupt (SIGINT) end a run, and restores the handler afterwards.

    Inside a cell the handler is set immediately, since ipykernel's own would wait for the next
    ``await``. ipykernel sets its idle handler whenever a cell ends, so ``watch`` replaces it after
    each batch.
    """

    def __init__(self, stop: Callable[[str], None], inside_cell: bool) -> None:
        self._stop, self._inside_cell = stop, inside_cell
        self._kernel: Any = frontend.kernel()
        self._mine = threading.current_thread() is threading.main_thread()
        self._idle: Any = getattr(self._kernel, "saved_sigint_handler", None)
        self._before: Any = None

    def __enter__(self) -> _Interrupts:
        if self._mine and self._inside_cell:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._stop("interrupted")

    def watch(self) -> None:
        """Replace the idle handler if no cell runs."""
        if self._mine and self._idle is not None and signal.getsignal(signal.SIGINT) is self._idle:
            signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *exception: object) -> None:
        if not self._mine:
            return
        if self._inside_cell:
            signal.signal(signal.SIGINT, self._before)
            return
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._idle)
        if getattr(self._kernel, "saved_sigint_handler", None) == self._handle:
            self._kernel.saved_sigint_handler = self._idle
