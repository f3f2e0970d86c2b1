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
        before = signal.getsignal(signal.SIGINT)  # ipykernel's waits for the next await
        with _interrupts(self.stop, before) as watch, self._kept() as steps:
            watch()
            for _ in steps:
                self._after(self)
                if self._ending:
                    break
        self._ended()

    async def _drive(self, rest_s: float) -> None:
        idle = getattr(frontend.kernel(), "saved_sigint_handler", None)  # set as a cell ends
        with _interrupts(self.stop, idle) as watch, self._kept() as steps:
            for record in steps:
                watch()
                self._after(self)
                if record.phase == "train":
                    self._single.clear()
                await asyncio.sleep(rest_s)  # the kernel handles messages now
                while self._paused.is_set() and not self._single.is_set() and not self._ending:
                    self.status = "paused"
                    watch()
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


@contextmanager
def _interrupts(stop: Callable[[str], None], theirs: Any) -> Iterator[Callable[[], None]]:
    """Yields a function that lets interrupts (SIGINT) call ``stop`` if ``theirs`` handles them.

    At the end ``theirs`` is the handler again.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        stop("interrupted")

    def watch() -> None:
        mine = threading.current_thread() is threading.main_thread()
        if mine and theirs is not None and signal.getsignal(signal.SIGINT) is theirs:
            signal.signal(signal.SIGINT, handle)

    try:
        yield watch
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, theirs)
        kernel: Any = frontend.kernel()
        if getattr(kernel, "saved_sigint_handler", None) is handle:  # a cell runs
            kernel.saved_sigint_handler = theirs
