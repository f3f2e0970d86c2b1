"""Tables of run folders: means, intervals, paired differences. Needs pandas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from astkit.runs.intervals import Interval, mean_interval, paired_difference, split_error
from astkit.runs.record import Record, flat

SEEDS = ("seed", "seeds")
NONE = "–"  # shown for a parameter that a run does not have
SPLIT = "test split ±"
_WORDS = ("device", "energy_backend", "joules_reason", "time", "run")  # no group columns


class Found(NamedTuple):
    """Contents of a folder of runs.

    ``runs``: one row per run, sorted by folder: name, seed, status, parameters that differ
    between runs, and the error, if any. ``rows``: measurements of complete runs, one row per unit,
    with the same parameters. ``varied``: names of those parameters, without seeds.
    """

    runs: pd.DataFrame
    rows: pd.DataFrame
    varied: list[str]


def collect(root: str | Path, name: str | None = None) -> Found:
    """All runs below ``root``, or only those named ``name``.

    Failed, unfinished, stale and damaged runs are only in ``runs``. Raises
    ``FileNotFoundError`` if the folder contains no runs.
    """
    runs, damaged = [], []
    for path in sorted(Path(root).glob("*/config.json")):
        try:
            run = Record(path.parent)
            if name in (None, run.config["name"]):
                runs.append((run, run.config, run.result, _why(run)))
        except ValueError as error:
            damaged.append({"run": path.parent.name, "status": "damaged", "why": str(error)})
    if not runs and not damaged:
        called = "" if name is None else f" called {name}"
        raise FileNotFoundError(f"{root} contains no runs{called}: create some with astkit sweep")
    given = [config["parameters"] for _, config, _, _ in runs]
    varied = [
        key
        for key in dict.fromkeys(key for each in given for key in each)
        if key not in SEEDS and len({_short(each.get(key, NONE)) for each in given}) > 1
    ]
    several = len({config["name"] for _, config, _, _ in runs}) > 1
    varied = ["name"] * several + varied
    lines, rows = [], []
    for run, config, result, why in runs:
        named = {**config["parameters"], "name": config["name"]}
        settings = {key: _short(named.get(key, NONE)) for key in varied}
        line = {"run": run.folder.name, "name": config["name"], "seed": config["seed"]}
        lines.append({**line, **settings, "status": run.status, "why": why})
        if run.status == "complete":
            rows += [{**settings, **row} for row in flat(result.get("rows", ()))]
    return Found(pd.DataFrame(lines + damaged), pd.DataFrame(rows), varied)


def table(
    found: Found,
    metric: str | None = None,
    by: Sequence[str] | None = None,
    control: str | None = None,
) -> pd.DataFrame:
    """One row per group: seeds (n), mean and difference to the control, with 95 % intervals.

    Args:
        found: from `collect`; rows of runs with manual changes are excluded.
        metric: a numeric column; by default the test accuracy, else the first one.
        by: columns to group by; by default the parameters that differ between runs, and the text
            columns that differ between rows, such as the arm.
        control: value of the last column of ``by``, as text, to compare with, at equal values of
            the other columns and paired by seed; "dense" by default if it occurs.

    Several rows of one seed count once, with their mean. For intervals see `mean_interval`; "test
    split ±" is the test split's sampling error (`split_error`), if the rows hold its size as
    ``test_rows``. Raises ``ValueError`` for runs without rows or numbers, and for an unknown column
    or control.
    """
    rows = _rows(found)
    metric, columns = _metric(rows, found.varied, metric), list(by) if by else _groups(rows, found)
    if unknown := [column for column in columns if column not in rows]:
        raise ValueError(f"by names {', '.join(unknown)}: choose from {', '.join(map(str, rows))}")
    if not columns:
        columns, rows = ["runs"], rows.assign(runs="all")
    groups = dict(list(rows.groupby(columns, sort=False, dropna=False)))
    control = _control(rows[columns[-1]], control)
    lines = []
    for key, group in groups.items():
        mean, low, high, n = mean_interval(_by_seed(group, metric).values())
        line: dict[str, Any] = dict(zip(columns, key, strict=True))
        line |= {"n": n, metric: mean, "low": low, "high": high}
        if metric == "test_accuracy" and "test_rows" in group and group["test_rows"].notna().any():
            line[SPLIT] = split_error(mean, int(group["test_rows"].max())) if n else math.nan
        if control is not None:
            gap = _gap(group, groups.get((*key[:-1], control)), metric)
            line |= {f"minus {control}": gap.mean, "from": gap.low, "to": gap.high}
        lines.append(line)
    return pd.DataFrame(lines).set_index(columns)


def _rows(found: Found) -> pd.DataFrame:
    if found.rows.empty:
        raise ValueError("no complete run has rows: see the table of runs for their status")
    return found.rows[found.rows["steered"].ne(True)] if "steered" in found.rows else found.rows


def _metric(rows: pd.DataFrame, varied: Sequence[str], metric: str | None) -> str:
    numbers = [str(name) for name in rows.select_dtypes("number") if name not in (*SEEDS, *varied)]
    if not numbers:
        raise ValueError(
            "no complete run has a column of numbers: pass rows to the record's finish"
        )
    metric = metric or ("test_accuracy" if "test_accuracy" in numbers else numbers[0])
    if metric not in numbers:
        raise ValueError(f"metric is {metric!r}: choose one of {', '.join(numbers)}")
    return metric


def _groups(rows: pd.DataFrame, found: Found) -> list[str]:
    """The parameters that differ, and the text columns that differ."""
    texts = [
        str(column)
        for column in rows
        if column not in _WORDS and rows[column].map(lambda value: isinstance(value, str)).all()
    ]
    columns = dict.fromkeys([*(name for name in found.varied if name in rows), *texts])
    return [column for column in columns if rows[column].nunique(dropna=False) > 1]


def _control(values: pd.Series, control: str | None) -> Any:
    """The value that ``control`` names, which a command line gives as text."""
    known = {str(value): value for value in values.unique()}
    if control is None:
        return known.get("dense")
    if str(control) not in known:
        names = ", ".join(known)
        raise ValueError(f"control is {control!r}: choose a value of {values.name}: {names}")
    return known[str(control)]


def _gap(group: pd.DataFrame, other: pd.DataFrame | None, metric: str) -> Interval:
    if other is None or other is group or "seed" not in group:
        return mean_interval([])
    return paired_difference(_by_seed(group, metric), _by_seed(other, metric))


def _by_seed(group: pd.DataFrame, metric: str) -> dict[Any, float]:
    """Mean by seed, since several rows of one seed are not independent; rows without one alone."""
    rows = pd.Series([f"row {at}" for at in group.index], group.index)
    seeds = group.get("seed", rows).astype(object)
    return dict(group.groupby(seeds.where(seeds.notna(), rows), sort=False)[metric].mean())


def _short(value: Any) -> Any:
    """A value to group by: numbers and strings unchanged, anything else as a string."""
    return value if isinstance(value, bool | int | float | str) else str(value)


def _why(run: Record) -> str:
    if run.status == "stale":
        return str(run.read("stale.json").get("why", ""))
    error = run.read("error.json")
    first = str(error.get("message", "")).strip().partition("\n")[0]
    return f"{error.get('type', 'error')}: {first}" if error else ""
