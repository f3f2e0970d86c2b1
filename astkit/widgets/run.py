"""A run of a trainer that can be paused, stopped and awaited, in a notebook between its cells."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from astkit import files
from astkit.interrupts import deferred_interrupt
from astkit.widgets import frontend

LOOK_S = 0.02  # between two looks whether a paused run goes on

RUNNING: WeakKeyDictionary[Any, Run] = WeakKeyDictionary()
"""The runs that train, by trainer."""


class Run:
    """A trainer's run, and the switches that control it.

    ``pause``, ``resume``, ``step`` and ``stop`` set a flag that is read between batches, and may
    be called from any thread. ``await run`` waits for the end in a notebook, where
    `Dashboard.start` returns before; it raises what training raised, and ``KeyboardInterrupt``
    after an interrupt.

    Attributes:
        trainer: a `Trainer`.
        status: "ready", "running", "paused", "waiting" (while another cell runs), "finished",
            "stopped", "interrupted" or "failed".
        error: the exception that ended the run, or ``None``.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.status = "ready"
        self.error: BaseException | None = None
        self._interrupted = False
        self._paused, self._single, self._stopped = False, False, False
        self._busy, self._awaited = False, 0  # whether a cell runs, and cells that await this run
        self._task: asyncio.Task[None] | None = None
        self._screen: Any = None

    def __repr__(self) -> str:
        return f"Run({self.status}, {self.trainer!r})"

    def pause(self) -> None:
        """Pause after the current batch."""
        self._paused = True

    def resume(self) -> None:
        """Continue."""
        self._paused = False

    def step(self) -> None:
        """Train on one batch and pause."""
        self._paused = self._single = True

    def stop(self) -> None:
        """End the run after the current batch."""
        self._stopped = True

    def drive(self, screen: Any = None) -> None:
        """Train to the end, shown by a `Screen` if there is one. Raises what training raises."""
        with self._training(), deferred_interrupt() as interrupted:
            with closing(self.trainer.steps()) as steps:
                for _ in steps:
                    if screen is not None:
                        screen.follow()
                    if self._stopped or interrupted():
                        break
            self._interrupted = interrupted()
        if screen is not None:
            screen.end()
        self.wait()

    def begin(self, screen: Any, pace: float | None = None) -> None:
        """Train as a task of the running event loop, a batch at a time, shown by a `Screen`.

        ``pace``: maximum batches per second while controls are shown.
        """

        def busy() -> None:
            self._busy = True
            if self.status == "running":
                self.status = "waiting"
                screen.follow(now=True)

        def free() -> None:
            self._busy = False
            screen.expect()

        self._busy, self._screen = frontend.in_cell(), screen
        RUNNING[self.trainer] = self
        self._task = asyncio.get_running_loop().create_task(self._train(screen, pace))
        events = frontend.cell_events()
        if events is not None:
            events.register("pre_execute", busy)
            events.register("post_execute", free)
            self._task.add_done_callback(lambda _: events.unregister("pre_execute", busy))
            self._task.add_done_callback(lambda _: events.unregister("post_execute", free))

    async def _train(self, screen: Any, pace: float | None) -> None:
        with self._training():
            await self._turn(screen, 0.0)
            with closing(self.trainer.steps()) as steps:
                for record in () if self._over() else steps:
                    if record.phase == "train":
                        self._single = False
                    screen.follow()
                    await self._turn(screen, 1 / pace if pace and not screen.pictures else 0.0)
                    if self._over():
                        break
        await screen.leave()

    async def _turn(self, screen: Any, seconds: float) -> None:
        """Leave the event loop to others; wait while the run is paused or a cell runs."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # between two cells
            signal.signal(signal.SIGINT, _interrupt)
        began, shown = time.perf_counter(), ""
        await asyncio.sleep(seconds)
        while (status := self._waits()) and not self._over():
            if status != shown:
                self.status = shown = status
                self.trainer.report()
                screen.follow(now=True)
            elif not screen.pictures:
                screen.follow()
            await asyncio.sleep(LOOK_S)
        screen.started += max(0.0, time.perf_counter() - began - seconds)
        self.status = "running"

    def _waits(self) -> str:
        """What the run waits for: "paused", "waiting" for a cell, or "" for nothing."""
        if self._busy and not self._awaited:
            return "waiting"
        return "paused" if self._paused and not self._single else ""

    def _over(self) -> bool:
        return self._stopped or self._interrupted

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Keep how the block ended; errors are raised by `wait`."""
        RUNNING[self.trainer] = self
        self.status = "running"
        try:
            yield
        except BaseException as error:  # an event loop must not see an interrupt either
            self.error = error
            self._interrupted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        finally:
            RUNNING.pop(self.trainer, None)
        if self._interrupted:
            self.status, self.error = "interrupted", KeyboardInterrupt()
        elif self.error is not None:
            self.status = "failed"
        else:
            self.status = "stopped" if self._stopped else "finished"

    def wait(self) -> Run:
        """The run when it is over; raises what ended it.

        Raises ``RuntimeError`` in a notebook where it still trains, which this would block.
        """
        if self._task is not None and not self._task.done():
            raise RuntimeError("wait: the run trains between cells of this notebook: await run")
        if self.error is not None:
            raise self.error
        return self

    async def _ended(self) -> Run:
        if self._task is not None and not self._task.done():
            self._awaited += 1
            try:
                await asyncio.shield(self._task)
            except asyncio.CancelledError:  # the kernel was interrupted
                self._interrupted = True
                await self._task
            finally:
                self._awaited -= 1
        if self._screen is not None:
            self._screen.again()
        return self.wait()

    def __await__(self) -> Generator[Any, None, Run]:
        return self._ended().__await__()

    def record(self) -> dict[str, Any]:
        """Status, metrics and changes of settings (``steered``: if any) as plain values."""
        history, events = self.trainer.history, self.trainer.steering.events
        return {
            "status": self.status,
            "steered": bool(events),
            "events": [asdict(event) for event in events],
            "training_steps": self.trainer.step,
            "steps": history.steps,
            "epochs": history.epochs,
        }

    def save(self, path: str | Path) -> None:
        """Write `record` as JSON, atomically."""
        files.write_json(path, self.record())


def _interrupt(number: int, frame: FrameType | None) -> None:
    """An interrupt between two cells ends the runs that train then."""
    for run in list(RUNNING.values()):
        run._interrupted = True
