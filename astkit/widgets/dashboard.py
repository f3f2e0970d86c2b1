"""Dashboard: a live board with controls for a running training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from astkit.widgets import frontend
from astkit.widgets.board import LiveBoard
from astkit.widgets.run import RUNNING, Run

if TYPE_CHECKING:
    from astkit.widgets.screen import Screen


class Dashboard:
    """Shows a run in a notebook while it trains, and lets its gate be steered::

        run = Dashboard().start(trainer)  # the cell returns, and training goes on
        await run  # in a later cell: waits for the end

    `start` trains between two cells, in the kernel's own event loop: the run pauses while another
    cell runs. Without a front end (papermill, nbval, scripts) it trains to the end before it
    returns, as `run` does everywhere. The joules of a trainer without a meter are measured where
    its device has a counter. When a run ends, a picture takes the place of the controls.

    Args:
        live: ``False`` shows nothing, ``True`` shows controls even if no front end was detected.
        pace: maximum batches per second while controls are shown; ``None`` for no limit.

    Attributes:
        board: what is shown of the run.
        last: the latest run, however it ended; ``None`` before the first.
    """

    def __init__(self, live: bool | None = None, pace: float | None = None) -> None:
        self.live, self.pace = live, pace
        self.board = LiveBoard()
        self.last: Run | None = None

    def start(self, trainer: Any) -> Run:
        """Begin to train; returns the `Run`, to be awaited. Raises: see `run`."""
        if frontend.mode(self.live) != "ask" or not frontend.has_loop():
            return self.run(trainer)
        run, screen = self._open(trainer, controls=True)
        run.begin(screen, self.pace)
        return run

    def run(self, trainer: Any) -> Run:
        """Train to the end of the budget, with a picture and without controls.

        An interrupt ends the run after the current batch, and is raised when the state is saved.
        Raises ``RuntimeError`` for a trainer that is running.
        """
        run, screen = self._open(trainer, controls=False)
        run.drive(screen)
        return run

    def _open(self, trainer: Any, controls: bool) -> tuple[Run, Screen]:
        from astkit.profiling import EnergyMeter  # these import torch
        from astkit.widgets.screen import Screen

        if trainer in RUNNING:
            raise RuntimeError("trainer: its run has not ended: await it, or end it by run.stop()")
        if self.board not in trainer.reports.observers:
            if self.board.series:  # of another run
                self.board = LiveBoard()
            if frontend.mode(self.live) == "off":  # nobody looks: no reports for it
                trainer.reports.observers.append(self.board)
            else:
                trainer.reports.add(self.board, accelerator=trainer.device.type != "cpu")
        if trainer.ledger.meter is None and not trainer.step:  # a part's joules are not the run's
            trainer.ledger.meter = EnergyMeter(trainer.device)
        self.last = run = Run(trainer)
        return run, Screen(run, self.board, frontend.mode(self.live), controls)
