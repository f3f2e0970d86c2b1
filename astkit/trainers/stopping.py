"""The time budget of a process, at whose end a run ends before its own."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path

from astkit import distributed

TIME_BUDGET = "ASTKIT_TIME_BUDGET_H"
_BEGUN = time.monotonic()


class TimeIsUp(RuntimeError):  # noqa: N818 - not an error
    """The process's time budget is spent; the run's checkpoints hold its state."""

    def __init__(self, step: int, folder: Path | None) -> None:
        saved = "nothing was saved, since the run had no checkpoints"
        if folder is not None:
            saved = f"saved in {folder}: run it again with resume=True to continue"
        hours = os.environ.get(TIME_BUDGET)
        super().__init__(f"the time budget of {hours} h is over after step {step}; {saved}")


def time_is_up() -> bool:
    """Whether the time budget of a process is spent, for example in hosted notebooks.

    ``ASTKIT_TIME_BUDGET_H`` sets it in hours, counted from the import of ``astkit.trainers``.
    0 sets no limit. Raises ``ValueError`` unless these are a number of 0 or more.
    """
    hours = os.environ.get(TIME_BUDGET)
    if not hours:
        return False
    limit = math.nan
    with suppress(ValueError):
        limit = float(hours) * 3600
    if not limit >= 0:
        raise ValueError(f"{TIME_BUDGET} is {hours!r}: give a number of hours, 0 or more")
    return limit > 0 and distributed.total(time.monotonic() - _BEGUN >= limit)[0] > 0
