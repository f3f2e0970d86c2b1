"""Tables of run folders: means, intervals, paired differences. Needs pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from astkit.checks import check_choice
from astkit.comparison.statistics import mean_interval, paired_difference
from astkit.comparison.verdict import unit
from astkit.runs.record import Record, flat

CONTROL = "dense"
SEEDS = ("seed", "seeds")
NONE = "–"  # shown for a parameter that a run does not have
_WORDS = ("device", "energy_backend", "joules_reason", "time", "run")  # no group columns
_COLUMNS = ("run", "name", "status", "why")  # of every run, whatever its parameters are called


class Runs(NamedTuple):
    """Contents of a folder of runs.

    ``folders``: one row per run, sorted by folder: name, seed, status, parameters that differ
    between runs, and the error, if any. ``rows``: measurements of complete runs, one row per unit,
    with the same parameters. ``varied``: names of those parameters, without seeds. A parameter
    named like a column of runs is called "status (parameter)"; a measurement named like a
    parameter that differs "rate (measured)". A row without a seed has its run's parameter.
    """

    folders: pd.DataFrame
    rows: pd.DataFrame
    varied: list[str]


def collect(root: str | Path) -> Runs:
    """All runs below ``root``; failed, unfinished and damaged ones are only in ``folders``.

    Raises ``FileNotFoundError`` if the folder contains no runs.
    """
    lines: list[dict[str, Any]] = []
    complete: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for path in sorted(Path(root).expanduser().glob("*/config.json")):
        record = Record(path.parent)
        line: dict[str, Any] = {"run": path.parent.name}
        try:
            config, status = record.config, record.status
            rows = flat(record.result.get("rows", [])) if status == "complete" else []
            values = {
                f"{key} (parameter)" if key in _COLUMNS else key: _short(value)
                for key, value in config["parameters"].items()
            }
            line |= {"name": config["name"], **values, "seed": config["seed"]}
            line |= {"status": status, "why": record.reason}
            seed = {"seed": values["seed"]} if "seed" in values else {}
            complete.append((line, [{**seed, **row} for row in rows]))
        except (LookupError, TypeError, ValueError) as error:
            line |= {"status": "damaged", "why": str(error)}
        lines.append(line)
    if not lines:
        raise FileNotFoundError(f"{root} contains no runs: create some with astkit run")
    every = pd.DataFrame([line for line, _ in complete], dtype=object).where(pd.notna, NONE)
    names = [name for name in every if name == "name" or name not in (*_COLUMNS, *SEEDS)]
    varied = [str(name) for name in names if every[name].nunique() > 1]
    columns = dict.fromkeys(["run", "name", "seed", *varied, "status", "why"])
    measured = [
        {key: line.get(key, NONE) for key in varied}
        | {f"{key} (measured)" if key in varied else key: row[key] for key in row}
        for line, rows in complete
        for row in rows
    ]
    return Runs(pd.DataFrame(lines).reindex(columns=list(columns)), pd.DataFrame(measured), varied)


def summary_table(runs: Runs, metric: str | None = None) -> pd.DataFrame:
    """One row per group: seeds (n), mean and difference to dense, with 95 % intervals.

    A group has the same values of the parameters that differ between runs, and of the text columns
    that tell groups of rows apart, such as the method. A group is compared with the one that has
    "dense" in one of these columns, the last where there are several, and equal values in the
    others, paired by seed.
    Several rows of one seed count once, with their mean. For intervals see `mean_interval`; they
    cover seeds, not the sampling error of the test rows.

    ``metric``: a numeric column; by default the test accuracy, else the first one. Raises
    ``ValueError`` for runs without rows or numbers.
    """
    rows = runs.rows
    if rows.empty:
        raise ValueError("no complete run has rows: see the table of runs for their status")
    others = (*SEEDS, *runs.varied)
    numbers = [str(name) for name in rows.select_dtypes("number") if name not in others]
    if not numbers:
        raise ValueError("no complete run has a column of numbers: pass rows to `finish`")
    metric = metric or ("test_accuracy" if "test_accuracy" in numbers else numbers[0])
    check_choice("metric", metric, numbers)
    columns = _groups(rows, runs.varied)
    if not columns:
        columns, rows = ["runs"], rows.assign(runs="all")
    rows = rows.fillna(dict.fromkeys(columns, NONE))
    # one measurement of each seed; a row without one counts for itself
    own = pd.Series([f"row {at}" for at in rows.index], rows.index)
    seeds = rows.get("seed", own).astype(object)
    seeds = seeds.where(seeds.notna(), own)
    by_seed = {
        key: dict(group.groupby(seeds, sort=False)[metric].mean())
        for key, group in rows.groupby(columns, sort=False, dropna=False)
    }
    limits = (0.0, 1.0) if unit(metric)[0] > 1 else None
    compared = (rows[columns] == CONTROL).any(axis=None)
    lines = []
    for key, values in by_seed.items():
        mean, low, high, n = mean_interval(values.values(), limits=limits)
        line: dict[str, Any] = dict(zip(columns, key, strict=True))
        line |= {"n": n, metric: mean, "low": low, "high": high}
        if compared:
            # the group with "dense" in the last column in which there is one
            likes = ((*key[:at], CONTROL, *key[at + 1 :]) for at in reversed(range(len(key))))
            control = next((like for like in likes if like in by_seed), key)
            gap = paired_difference(values, by_seed[control] if control != key else {})
            line |= {f"minus {CONTROL}": gap.mean, "from": gap.low, "to": gap.high}
        lines.append(line)
    return pd.DataFrame(lines).set_index(columns)


def _groups(rows: pd.DataFrame, varied: Sequence[str]) -> list[str]:
    """The parameters that differ, and the texts, such as the method, that tell groups apart.

    A text does not if the other columns determine it, as the method does the name of the metric, or
    if it belongs to one run, as the name of a file does: none of its values occurs with two seeds.
    """
    texts = [
        str(column)
        for column in rows
        if column not in (*_WORDS, *varied)
        and all(isinstance(value, str) for value in rows[column].dropna())
        and rows[column].notna().any()
    ]
    rows = rows.assign(**rows[texts].fillna(NONE))
    columns = dict.fromkeys([*(name for name in varied if name in rows), *texts])
    kept = [column for column in columns if rows[column].nunique(dropna=False) > 1]
    seeds = rows.get("seed", pd.Series(rows.index, rows.index))
    order = {text: (rows[text].nunique(), place) for place, text in enumerate(texts)}
    for name in sorted(texts, key=order.__getitem__, reverse=True):
        others = [column for column in kept if column != name]
        if name not in kept or not others:
            continue
        groups = rows.groupby(others, dropna=False)
        determined = groups[name].nunique().max() == 1
        of_text = seeds.groupby(rows[name].replace(NONE, None)).nunique()
        if determined or of_text.max() == 1 < seeds.groupby(groups.ngroup()).nunique().max():
            kept.remove(name)
    return kept


def _short(value: Any) -> Any:
    """A value to group by: numbers and strings unchanged, anything else as a string."""
    return value if isinstance(value, bool | int | float | str) else str(value)
