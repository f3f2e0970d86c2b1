"""Input tables of figures: validation, and windows of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

NAMES = {"arm", "class", "controller", "family", "stream"}  # columns with names given by users
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
    """A copy of ``table`` as a data frame; missing columns ``arm`` and ``seed`` are added.

    Args:
        picture: name of the figure function, for error messages.
        columns: required columns.
        phase: if the table has a column ``phase``, as metrics files do, keep only these rows.
        alone: a column that must have a single value.
        key: columns whose values must be unique within a seed.

    Raises ``ValueError`` for a missing column, no rows, several values of ``alone`` or duplicates
    of ``key``.
    """
    frame = pd.DataFrame(table)
    if phase is not None and "phase" in frame:
        frame = frame[frame["phase"] == phase]
    if frame.empty:
        kind = f"{phase!r} " if phase is not None else ""
        raise ValueError(f"{picture} was given a table without {kind}rows: train first")
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
            f"{picture} was given the same {' and '.join(key)} twice for one seed: number the runs"
            " in a column seed"
        )
    for name in NAMES & set(frame):
        frame[name] = frame[name].map(_literal)
    return frame


def _literal(name: Any) -> Any:
    """``name`` escaped so that matplotlib does not parse it as math."""
    return name.replace("$", r"\$") if isinstance(name, str) else name


def windows(steps: pd.Series[Any], count: int) -> pd.Series[Any]:
    """For each step, the first step of its window; ``count`` windows of equal length."""
    present = np.unique(steps.to_numpy())
    starts = np.array([part[0] for part in np.array_split(present, min(count, len(present)))])
    place = np.searchsorted(starts, steps.to_numpy(), side="right") - 1
    return pd.Series(starts[place], index=steps.index, name="window")
