"""The dashboard: a live board with controls, to steer a run while it goes on."""

from __future__ import annotations

import asyncio
from typing import Any

from astkit.widgets import frontend
from astkit.widgets.board import LiveBoard
from astkit.widgets.drive import Run

STEERED_SHARE = 0.1  # of the time that drawing may take while controls are in use


class Dashboard:
    """Steers a run from a notebook.

    In one cell::

        run = await Dashboard().start(trainer)

    and in a later one ``await run.finished()``. With a front end the first cell returns at once and
    training continues between the kernel's messages. Without one (papermill, nbval, scripts)
    ``start`` returns when the run has ended.

    Args:
        board: draws the run; a `LiveBoard` by default.
        live: ``False`` shows neither board nor controls, ``True`` shows controls even where no
            front end was recognised; ``ASTKIT_LIVE`` (0 or 1) overrides it.
        wait_s: seconds to wait for a front end's answer.
        pace: most batches a second while controls are shown; ``None`` for full speed.
    """

    def __init__(
        self,
        board: LiveBoard | None = None,
        live: bool | None = None,
        wait_s: float = 3.0,
        pace: float | None = None,
    ) -> None:
        if pace is not None and not pace > 0:
            raise ValueError(f"pace is {pace}: pass batches a second above 0, or None")
        self.live, self.wait_s, self.pace = live, wait_s, pace
        self.board = board or LiveBoard(live=live)
        self.run: Run | None = None
        self._strip: Any = None

    async def start(self, trainer: Any) -> Run:
        """Begin a run; returns at once if controls are shown, else when the run has ended.

        Raises ``RuntimeError`` while an earlier run of this dashboard goes on, and without a front
        end what ended the run early, such as `TimeIsUp`.
        """
        if self.run is not None and self.run.status in ("running", "paused"):
            raise RuntimeError(
                "this dashboard already steers a run: stop it, or use another dashboard"
            )
        if self.board not in trainer.observers:
            trainer.observers.append(self.board)
        self.run = run = Run(trainer, lambda run: self._strip and self._strip.follow())
        self._strip = None
        if frontend.mode(self.live) == "ask" and await self._answered(run):
            self.board.max_share = max(self.board.max_share, STEERED_SHARE)
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
        if await strip.answered(self.wait_s):
            self._strip = strip
            return True
        strip.close(f"no front end answered within {self.wait_s:g} s: training ran to its end")
        return False
