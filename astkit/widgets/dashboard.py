"""Dashboard: a live board with controls for a running training."""

from __future__ import annotations

import asyncio
from typing import Any

from astkit.widgets import frontend
from astkit.widgets.board import LiveBoard
from astkit.widgets.drive import Run

STEERED_SHARE = 0.1  # maximum share of time spent on drawing while controls are shown
ANSWER_S = 3.0  # seconds to wait for an answer of the front end


class Dashboard:
    """Controls a run from a notebook.

    In one cell::

        run = await Dashboard().start(trainer)

    and in a later one ``await run.finished()``. With a front end the first cell returns immediately
    and training continues between the kernel's messages. Without one (papermill, nbval, scripts)
    ``start`` returns at the end of the run.

    Args:
        live: ``False`` shows neither board nor controls, ``True`` shows controls even if no
            front end was detected; ``ASTKIT_LIVE`` (0 or 1) overrides it.
        pace: maximum batches per second while controls are shown; ``None`` for no limit.
    """

    def __init__(self, live: bool | None = None, pace: float | None = None) -> None:
        if pace is not None and not pace > 0:
            raise ValueError(f"pace is {pace}: pass batches a second above 0, or None")
        self.live, self.pace = live, pace
        self.board = LiveBoard(live)
        self.run: Run | None = None
        self._strip: Any = None

    async def start(self, trainer: Any) -> Run:
        """Start a run; returns immediately if controls are shown, else at the end of the run.

        Raises ``RuntimeError`` while an earlier run of this dashboard is active, and without a
        front end the error that ended the run early, such as `TimeIsUp`.
        """
        if self.run is not None and self.run.status in ("running", "paused"):
            raise RuntimeError(
                "this dashboard already steers a run: stop it, or use another dashboard"
            )
        if self.run is not None and self.run.trainer is not trainer:
            self.board = LiveBoard(self.live)  # the curves of the other run end where they are
        if self.board not in trainer.observers:
            trainer.observers.append(self.board)
        self.run = run = Run(trainer, lambda run: self._strip and self._strip.follow())
        self._strip = None
        if frontend.mode(self.live) == "ask" and await self._answered(run):
            self.board.max_share = STEERED_SHARE
            run.begin(self.pace)
            await asyncio.sleep(0)
        else:
            run.drain()
        return run

    async def _answered(self, run: Run) -> bool:
        try:
            from astkit.widgets.strip import Strip
        except ImportError as error:
            print(f"no controls ({error.name} is not installed): training runs to its end")
            return False
        strip = Strip(run)
        if await strip.answered(ANSWER_S):
            self._strip = strip
            return True
        strip.close(f"no front end answered within {ANSWER_S:g} s: training ran to its end")
        return False
