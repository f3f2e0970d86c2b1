"""Tables for figures: checks of what a figure needs, and windows of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

NAMES = {"arm", "class", "controller", "family", "stream"}  # columns that users name rows in
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
    """A copy of ``table`` as a frame, with ``arm`` and ``seed`` added where they are missing.

    Args:
        picture: the function's name, for the message.
        columns: required columns.
        phase: where the table has a column ``phase``, as a metrics file has, keep these rows.
        alone: a column that may hold one value only.
        key: columns whose values may not repeat within a seed.

    Raises ``ValueError`` for a missing column, no rows, several values of ``alone`` or a repeated
    ``key``.
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
    """``name`` such that matplotlib takes no part of it for a formula."""
    return name.replace("$", r"\$") if isinstance(name, str) else name


def windows(steps: pd.Series[Any], count: int) -> pd.Series[Any]:
    """For each step the first step of its window, of ``count`` windows of equally many steps."""
    present = np.unique(steps.to_numpy())
    starts = np.array([part[0] for part in np.array_split(present, min(count, len(present)))])
    place = np.searchsorted(starts, steps.to_numpy(), side="right") - 1
    return pd.Series(starts[place], index=steps.index, name="window")
