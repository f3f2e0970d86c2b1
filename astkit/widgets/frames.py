"""Tables for pictures: checked for what a picture needs, and brought down to its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

Table = pd.DataFrame | Sequence[Mapping[str, Any]]
"""A tidy table, or its rows as mappings."""


def read(
    table: Table,
    picture: str,
    columns: Sequence[str],
    *,
    phase: str | None = None,
    alone: str | None = None,
    key: Sequence[str] = (),
) -> pd.DataFrame:
    """``table`` as a frame of its own that has ``columns`` and at least one row.

    A table of one run may leave out ``arm`` and ``seed``; they are filled in.

    Args:
        picture: who asks, for the message.
        columns: what must be there.
        phase: where the table has a column ``phase``, as a metrics file has, keep this one.
        alone: a column that may hold one value only, where the picture can show no more.
        key: columns that tell the rows of one seed apart.

    Raises ``ValueError`` for a missing column, for no rows, for several values of ``alone``, for
    a ``key`` that comes twice.
    """
    frame = pd.DataFrame(table)
    if phase is not None and "phase" in frame:
        frame = frame[frame["phase"] == phase]
    if frame.empty:
        kind = f"{phase!r} " if phase is not None else ""
        raise ValueError(f"{picture} was given a table without {kind}rows: let the run go on first")
    missing = [column for column in columns if column not in frame]
    if missing:
        raise ValueError(
            f"{picture} needs the column{'s' if len(missing) > 1 else ''} {', '.join(missing)},"
            f" but the table has {', '.join(map(str, frame.columns))}"
        )
    several = list(frame[alone].unique()) if alone in frame else []
    if len(several) > 1:
        raise ValueError(
            f"{picture} shows one {alone} at a time, but the table holds"
            f" {', '.join(map(repr, several))}: pass the rows of one of them"
        )
    one_run: dict[str, Any] = {"arm": "run", "seed": 0}
    frame = frame.assign(**{k: v for k, v in one_run.items() if k not in frame})
    if key and frame.duplicated([*key, "seed"]).any():
        raise ValueError(
            f"{picture} was given the same {' and '.join(key)} twice for one seed: tell the runs"
            " apart by a column seed"
        )
    return frame


def windows(steps: pd.Series[Any], count: int) -> pd.Series[Any]:
    """For each step the first step of its window, of ``count`` windows with equally many steps."""
    present = np.unique(steps.to_numpy())
    starts = np.array([part[0] for part in np.array_split(present, min(count, len(present)))])
    place = np.searchsorted(starts, steps.to_numpy(), side="right") - 1
    return pd.Series(starts[place], index=steps.index, name="window")
