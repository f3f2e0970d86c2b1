"""Tables for pictures: read, checked for what a picture needs, and brought down to its size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Table = pd.DataFrame | Sequence[Mapping[str, Any]] | str | PathLike[str]
"""A tidy table, its rows as mappings, or the path of a file with one JSON object a line."""

_ONE_RUN: dict[str, Any] = {"arm": "run", "seed": 0}


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
        phase: of a file that holds several ("train", "validate", "epoch"), keep this one.
        alone: a column that may hold one value only, where the picture can show no more.
        key: columns that tell the rows of one seed apart.

    Raises ``ValueError`` for a missing column, for no rows, for several values of ``alone``, for
    a ``key`` that comes twice, for a line that is no JSON object.
    """
    frame = pd.DataFrame(_rows(table))
    if phase is not None and "phase" in frame:
        frame = frame[frame["phase"] == phase].copy()
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
    frame = frame.assign(**{k: v for k, v in _ONE_RUN.items() if k not in frame})
    if key and frame.duplicated([*key, "seed"]).any():
        raise ValueError(
            f"{picture} was given the same {' and '.join(key)} twice for one seed: tell the runs"
            " apart by a column seed"
        )
    return frame


def _rows(table: Table) -> Any:
    if not isinstance(table, str | PathLike):
        return table
    rows = []
    for number, text in enumerate(Path(table).read_text().splitlines(), start=1):
        try:
            rows += [dict(json.loads(text))] if text.strip() else []
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"line {number} of {table} is no JSON object: give a file with one object a line"
            ) from error
    return rows


def only(table: pd.DataFrame, column: str, wanted: Sequence[str] | None) -> list[str]:
    """The values of ``column`` in order of appearance, or those ``wanted``.

    Raises ``ValueError`` for a wanted one that is not there.
    """
    there = list(table[column].unique())
    unknown = [name for name in wanted or () if name not in there]
    if unknown:
        raise ValueError(
            f"the table has no {column} {', '.join(map(repr, unknown))}: choose among"
            f" {', '.join(map(repr, there))}"
        )
    return list(wanted or there)


def by_pass(runs: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Mean, lowest and highest of ``columns`` over seeds after each pass; index: passes, from 1.

    A pass that the budget cut short counts as one. Where seeds end at different passes, the last
    rows are of those that got there.
    """
    number = (runs.groupby("seed").cumcount() + 1).rename("epoch")
    return runs.groupby(number)[list(columns)].agg(["mean", "min", "max"])


def windows(steps: pd.Series[Any], count: int) -> pd.Series[Any]:
    """For each step the first step of its window, of ``count`` windows with equally many steps."""
    present = np.unique(steps.to_numpy())
    starts = np.array([part[0] for part in np.array_split(present, min(count, len(present)))])
    place = np.searchsorted(starts, steps.to_numpy(), side="right") - 1
    return pd.Series(starts[place], index=steps.index, name="window")
