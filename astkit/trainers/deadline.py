"""A time limit for a whole process, as hosted notebooks have one: a run is saved before it is over.

The environment variable ``ASTKIT_TIME_BUDGET_H`` gives it in hours, counted from the moment when
the trainers were imported.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

BUDGET = "ASTKIT_TIME_BUDGET_H"
_BEGUN = time.monotonic()


class TimeIsUp(RuntimeError):  # noqa: N818 - an end, not an error
    """A run was left because the time budget is over; what it has done is in its checkpoints."""

    def __init__(self, step: int, folder: Path | None) -> None:
        saved = (
            "nothing was saved, since it had no checkpoints"
            if folder is None
            else f"saved in {folder}: run it again with resume=True to go on"
        )
        hours = os.environ.get(BUDGET)
        super().__init__(f"the time budget of {hours} h is over after step {step}; {saved}")


def time_is_up() -> bool:
    """Whether the process's time budget, if it has one, is over.

    Raises ``ValueError`` for a budget that is no number of hours.
    """
    hours = os.environ.get(BUDGET)
    if not hours:
        return False
    try:
        limit = float(hours) * 3600
    except ValueError:
        raise ValueError(f"{BUDGET} is {hours!r}: give hours, such as 8.5") from None
    return limit > 0 and time.monotonic() - _BEGUN >= limit
