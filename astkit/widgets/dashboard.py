"""Dashboard: a live board with controls for a running training."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astkit import files
from astkit.widgets import frontend
from astkit.widgets.board import LiveBoard

if TYPE_CHECKING:
    from astkit.widgets.strip import Strip


class Run:
    """A trainer's run, and the switches that control it.

    ``pause``, ``resume``, ``step`` and ``stop`` may be called from any thread: they set a flag that
    is read between batches.

    Attributes:
        trainer: a `Trainer`.
        status: "ready", "running", "paused", "finished", "stopped", "interrupted" or "failed".
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.status = "ready"
        self._paused, self._single, self._stopped = (threading.Event() for _ in range(3))

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

    def stop(self) -> None:
        """End the run after the current batch."""
        self._stopped.set()

    def drive(self, strip: Strip | None = None, pace: float | None = None) -> None:
        """Train to the end; ``strip`` is kept up to date.

        ``pace``: maximum batches per second. An interrupt ends the run after the current batch;
        other errors are raised.
        """
        from astkit.trainers.limits import interrupt_held  # imports torch

        follow = (lambda: None) if strip is None else strip.follow
        self.status, ending = "running", "failed"
        try:
            with closing(self.trainer.steps()) as steps, interrupt_held() as interrupted:
                for record in steps:
                    if record.phase == "train":
                        self._single.clear()
                    follow()
                    time.sleep(1 / pace if pace and not (strip and strip.closed) else 0.0)
                    while self._waits() and not interrupted():
                        self.status = "paused"
                        follow()
                        time.sleep(0.05)
                    self.status = "running"
                    if self._stopped.is_set() or interrupted():
                        break
                ending = "interrupted" if interrupted() else "finished"
            ending = "stopped" if self._stopped.is_set() else ending
        finally:
            self.status = ending
            follow()

    def _waits(self) -> bool:
        return self._paused.is_set() and not self._single.is_set() and not self._stopped.is_set()

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


class Dashboard:
    """Shows a run in a notebook while it trains, and lets its gate be steered::

        run = Dashboard().run(trainer)

    The cell ends with the run. An interrupt, or the stop button, ends it after the current batch;
    everything up to there is kept. Without a front end (papermill, nbval) only the board is drawn,
    and in scripts nothing.

    Args:
        live: ``False`` shows neither board nor controls, ``True`` shows controls even if no
            front end was detected.
        pace: maximum batches per second while controls are shown; ``None`` for no limit.
    """

    def __init__(self, live: bool | None = None, pace: float | None = None) -> None:
        self.live, self.pace = live, pace
        self.board = LiveBoard(live)

    def run(self, trainer: Any) -> Run:
        """Train to the end of the budget; returns the `Run` with its record."""
        if self.board not in trainer.reports.observers:
            if self.board.series:  # of another run
                self.board = LiveBoard(self.live)
            trainer.reports.observers.append(self.board)
        run = Run(trainer)
        if frontend.mode(self.live) == "ask":
            from astkit.widgets.strip import Strip

            run.drive(Strip(run), self.pace)
        else:
            run.drive()
        return run
