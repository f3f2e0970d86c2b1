"""Tables and pictures over the runs of a folder. Needs pandas and scipy.

Everything is read from the run folders as it is asked for: there is no index that could be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from astkit.runs.record import Record
from astkit.runs.tables import unsteered

SEEDS = ("seed", "seeds")
_WORDS = ("device", "energy_backend", "joules_reason", "time")  # texts that tell no rows apart


class Found(NamedTuple):
    """What a folder of runs holds.

    ``runs``: one row a run, in the order of their folders: name, seed, status, the parameters that
    differ between runs, and what is wrong with it. ``rows``: what the complete ones measured, one
    row a unit, with the run's name and the same parameters. ``curves``: the same of what they
    recorded pass by pass. ``varied``: the names of those parameters, without seeds.
    """

    runs: pd.DataFrame
    rows: pd.DataFrame
    curves: pd.DataFrame
    varied: list[str]


def records(root: str | Path, keep: Callable[[Record], bool] | None = None) -> list[Record]:
    """The runs below ``root``, in the order of their folders; only those that ``keep`` accepts.

    Raises ``FileNotFoundError`` where there is no such folder.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no folder of runs: make some with astkit sweep")
    folders = sorted(path.parent for path in root.glob("*/config.json"))
    runs = [Record(folder) for folder in folders]
    return [run for run in runs if keep is None or keep(run)]


def collect(root: str | Path, name: str | None = None) -> Found:
    """All that the runs below ``root`` have found; only of those called ``name``, if given.

    Stale runs are listed and their results left out. Raises ``FileNotFoundError`` for a folder
    without runs.
    """
    runs = records(root, lambda run: name in (None, run.config["name"]))
    if not runs:
        called = "" if name is None else f" called {name}"
        raise FileNotFoundError(f"{root} holds no runs{called}: make some with astkit sweep")
    varied = _varied([run.config["parameters"] for run in runs])
    lines, rows, curves = [], [], []
    for run in runs:
        settings = {key: _short(run.config["parameters"].get(key)) for key in varied}
        line = {"run": run.folder.name, "name": run.config["name"], "seed": run.config["seed"]}
        lines.append({**line, **settings, "status": run.status, "why": _why(run)})
        if run.status == "complete":
            head = {"run": run.folder.name, **settings}
            result = run.result
            rows += [{**head, **row} for row in result.get("rows", ())]
            curves += [{**head, **row} for row in result.get("curves", ())]
    return Found(pd.DataFrame(lines), pd.DataFrame(rows), pd.DataFrame(curves), varied)


def table(
    found: Found,
    metric: str | None = None,
    by: Sequence[str] | None = None,
    control: str | None = None,
) -> pd.DataFrame:
    """One row a group: n, mean, its 95 % interval, and the difference to the control with its own.

    Args:
        found: what `collect` gave; rows of steered runs are left out.
        metric: a column of numbers; the test accuracy by default, else the first that there is.
        by: columns that make the groups; by default the parameters that differ between runs, and
            the texts that differ between rows, such as the arm.
        control: value of the last of ``by`` that the others are compared with, at the same values
            of the rest and paired by seed; "dense" by default where it is there.

    The intervals are Student's, over seeds: right for values that are near to normal. Raises
    ``ValueError`` for runs without rows, and for a column or control that is not there.
    """
    rows, metric, by = _asked(found, metric, by)
    groups = dict(list(rows.groupby(by, sort=False, dropna=False)))
    control = _control(rows, by, control)
    lines = []
    for key, group in groups.items():
        mean, low, high = student(group[metric].tolist())
        line = dict(zip(by, key, strict=True))
        line |= {"n": len(group), metric: mean, "low": low, "high": high}
        if control is not None:
            line |= _difference(group, groups.get((*key[:-1], control)), metric, control)
        lines.append(line)
    return pd.DataFrame(lines).set_index(by)


def student(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Mean of ``values`` and its two-sided Student interval; NaN where there is none.

    Source: "Student", "The probable error of a mean", Biometrika 6 (1908).
    """
    from scipy import stats

    values = [value for value in values if value is not None and math.isfinite(value)]
    mean = sum(values) / len(values) if values else math.nan
    if len(values) < 2:
        return mean, math.nan, math.nan
    error = stats.sem(values)
    if error == 0:
        return mean, mean, mean
    low, high = stats.t.interval(level, len(values) - 1, mean, error)
    return mean, float(low), float(high)


def labelled(found: Found, by: Sequence[str] | None = None) -> pd.DataFrame:
    """The curves with a column ``arm`` that says in words which group each belongs to.

    For `astkit.widgets.plots.training_curves`, which draws means with a band over seeds.
    """
    if found.curves.empty:
        raise ValueError("the runs recorded no curves: pass curves=... to the record's finish")
    columns = list(by or dict.fromkeys([*found.varied, *_texts(found.curves)]))
    curves = found.curves.copy()
    words = [curves[column].astype(str) for column in columns]
    names = [f"{column} " if column in found.varied else "" for column in columns]
    parts = [name + word for name, word in zip(names, words, strict=True)]
    curves["arm"] = [", ".join(row) for row in zip(*parts, strict=True)] if parts else "all runs"
    return curves


def differing(first: Record, second: Record) -> pd.DataFrame:
    """What tells two runs apart: parameters, environment, and the mean of each measured number."""
    lines = []
    for part in ("config.json", "env.json"):
        then, now = (_flat(run.read(part)) for run in (first, second))
        lines += [
            {"what": f"{part.split('.')[0]}: {key}", "first": then.get(key), "second": now.get(key)}
            for key in sorted(then.keys() | now.keys())
            if then.get(key) != now.get(key)
        ]
    means = [
        pd.DataFrame(run.result.get("rows", [])).mean(numeric_only=True) for run in (first, second)
    ]
    both = pd.DataFrame({"first": means[0], "second": means[1]})
    changed = both[both["first"] != both["second"]].drop(index="seed", errors="ignore")
    lines += [
        {"what": f"mean of {key}", "first": row["first"], "second": row["second"]}
        for key, row in changed.iterrows()
    ]
    return pd.DataFrame(lines, columns=["what", "first", "second"]).set_index("what")


def _asked(
    found: Found, metric: str | None, by: Sequence[str] | None
) -> tuple[pd.DataFrame, str, list[str]]:
    if found.rows.empty:
        raise ValueError("no complete run has rows: see the table of runs for what became of them")
    kept = [
        {str(key): value for key, value in row.items()} for row in found.rows.to_dict("records")
    ]
    rows = pd.DataFrame(unsteered(kept))
    settings = (*SEEDS, *found.varied)
    numbers = [str(name) for name in rows.select_dtypes("number") if name not in settings]
    default = "test_accuracy" if "test_accuracy" in numbers else numbers[0] if numbers else None
    metric = metric or default
    if metric not in numbers:
        raise ValueError(f"metric is {metric!r}: choose one of {', '.join(numbers)}")
    varied = [name for name in found.varied if rows[name].nunique(dropna=False) > 1]
    columns = list(by) if by else list(dict.fromkeys([*varied, *_texts(rows)]))
    unknown = [column for column in columns if column not in rows]
    if unknown:
        raise ValueError(f"by names {', '.join(unknown)}: choose from {', '.join(map(str, rows))}")
    if not columns:
        columns, rows = ["runs"], rows.assign(runs="all")
    return rows, metric, columns


def _control(rows: pd.DataFrame, by: list[str], control: str | None) -> str | None:
    values = rows[by[-1]].unique().tolist()
    if control is None:
        return "dense" if "dense" in values else None
    if control not in values:
        raise ValueError(
            f"control is {control!r}: choose a value of {by[-1]}: {', '.join(map(str, values))}"
        )
    return control


def _difference(
    group: pd.DataFrame, control: pd.DataFrame | None, metric: str, name: str
) -> dict[str, float]:
    gaps: list[float] = []
    if control is not None and "seed" in group and group is not control:
        pairs = group.merge(control, on="seed", suffixes=("", " of control"))
        gaps = (pairs[metric] - pairs[f"{metric} of control"]).tolist()
    mean, low, high = student(gaps)
    return {f"minus {name}": mean, "from": low, "to": high}


def _texts(rows: pd.DataFrame) -> list[str]:
    """The columns of text, filled in every row, that tell rows apart."""
    texts = [
        str(column)
        for column in rows
        if column not in ("run", *_WORDS) and rows[column].map(lambda v: isinstance(v, str)).all()
    ]
    return [column for column in texts if rows[column].nunique() > 1]


def _varied(parameters: Sequence[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for each in parameters for name in each)
    kinds = {name: {_short(each.get(name)) for each in parameters} for name in names}
    return [name for name in names if name not in SEEDS and len(kinds[name]) > 1]


def _short(value: Any) -> Any:
    """A value that can be a group: numbers and texts as they are, all else as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _why(run: Record) -> str:
    if run.status == "stale":
        return str(run.read("stale.json").get("why", ""))
    error = run.read("error.json")
    first = str(error.get("message", "")).strip().partition("\n")[0]
    return f"{error['type']}: {first}" if error else ""


def _flat(content: dict[str, Any], head: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{head}{key}.") if isinstance(value, dict) else {head + key: value}
    return flat
