"""Input tables of figures: validation, and windows of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

Table = pd.DataFrame | Sequence[Mapping[str, Any]]
"""A tidy table, or its rows as mappings."""


def read(table: Table, picture: str, columns: Sequence[str]) -> pd.DataFrame:
    """A copy of ``table`` as a data frame; missing columns ``arm`` and ``seed`` are added.

    ``picture``: name of the figure function, for error messages. Raises ``ValueError`` for a table
    without rows or without one of ``columns``.
    """
    frame = pd.DataFrame(table)
    if frame.empty:
        raise ValueError(f"{picture} was given a table without rows: train first")
    missing = [column for column in columns if column not in frame]
    if missing:
        raise ValueError(
            f"{picture} needs the column{'s' if len(missing) > 1 else ''} {', '.join(missing)},"
            f" but the table has {', '.join(map(str, frame.columns))}"
        )
    one_run: dict[str, Any] = {"arm": "run", "seed": 0}
    return frame.assign(**{name: one_run[name] for name in one_run if name not in frame})


def windows(steps: pd.Series[Any], count: int) -> pd.Series[Any]:
    """For each step, the first step of its window; ``count`` windows of equal length."""
    present = np.unique(steps.to_numpy())
    starts = np.array([part[0] for part in np.array_split(present, min(count, len(present)))])
    place = np.searchsorted(starts, steps.to_numpy(), side="right") - 1
    return pd.Series(starts[place], index=steps.index, name="window")
