"""Tables of arms and of run folders: means, intervals, paired differences. Needs pandas.

Results are rows with one arm and seed each, as returned by `astkit.runs.arms.run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from astkit.runs.intervals import Interval, mean_interval, paired_difference, split_error
from astkit.runs.record import Record, flat

Result = dict[str, Any]

SEEDS = ("seed", "seeds")
NONE = "–"  # shown for a parameter that a run does not have
SPLIT = "test split ±"
_WORDS = ("device", "energy_backend", "joules_reason", "time", "run")  # no group columns


# --- the arms of one comparison --------------------------------------------------------------


def tidy(results: Sequence[Result], part: str) -> pd.DataFrame:
    """One row per entry of each result's ``part`` ("epochs" or "steps"), with arm and seed."""
    rows = [
        {"arm": result["arm"], "seed": result["seed"], **entry}
        for result in results
        for entry in result[part]
    ]
    return pd.DataFrame(rows)


def unsteered(results: Sequence[Result]) -> list[Result]:
    """Results of runs without manual changes of settings; the others are excluded from means."""
    return [result for result in results if not result.get("steered")]


def what_was_done(
    results: Sequence[Result], control: str = "dense", test_rows: int | None = None
) -> pd.DataFrame:
    """Accuracy, decisions and FLOPs of each arm: means over seeds, with standard deviations.

    All of them are deterministic for given seeds and source, so arms with a budget in seconds are
    excluded. "FLOPs / control" is the mean over seeds of the ratio per seed. "test split ±" is
    the test split's sampling error (`split_error`), if its size is known: from the results,
    or as ``test_rows``.
    """
    runs = pd.DataFrame([result for result in unsteered(results) if "seconds" not in result["arm"]])
    groups = runs.groupby("arm", sort=False)
    table = pd.DataFrame({"n": groups.size(), "test accuracy": groups["test_accuracy"].mean()})
    table["spread"] = groups["test_accuracy"].std()
    if test_rows is None and "test_rows" in runs:
        test_rows = int(runs["test_rows"].max())
    if test_rows:
        table[SPLIT] = [split_error(accuracy, test_rows) for accuracy in table["test accuracy"]]
    table["activation rate"] = groups["rate"].mean()
    table["samples scored"] = groups["samples_scored"].mean()
    table["samples trained"] = groups["samples_trained"].mean()
    table["FLOPs"] = groups["flops"].mean()
    table[f"FLOPs / {control}"] = _ratio(runs, "flops", control)
    return table


def how_long_it_took(results: Sequence[Result], control: str = "dense") -> pd.DataFrame:
    """Training seconds of each arm (without evaluation) and the ratio to ``control``, by seed."""
    runs = pd.DataFrame(unsteered(results))
    groups = runs.groupby("arm", sort=False)
    return pd.DataFrame(
        {
            "n": groups.size(),
            "test accuracy": groups["test_accuracy"].mean(),
            "seconds": groups["seconds"].mean(),
            "spread": groups["seconds"].std(),
            f"seconds / {control}": _ratio(runs, "seconds", control),
            "ms / trained sample": groups["seconds"].sum() / groups["samples_trained"].sum() * 1e3,
        }
    )


def difference(results: Sequence[Result], arm: str, control: str) -> Interval:
    """Test accuracy of ``arm`` minus ``control``, paired by seed, with its 95 % interval."""
    by_arm: dict[str, dict[Any, float]] = {arm: {}, control: {}}
    for result in unsteered(results):
        if result["arm"] in by_arm:
            by_arm[result["arm"]][result["seed"]] = result["test_accuracy"]
    return paired_difference(by_arm[arm], by_arm[control])


def verdict(gap: Interval, above: str = "better", below: str = "worse") -> str:
    """``above`` or ``below`` if the whole interval is on that side of 0, else "undecided"."""
    return above if gap.low > 0 else below if gap.high < 0 else "undecided"


def _ratio(runs: pd.DataFrame, column: str, control: str) -> pd.Series:
    by_seed = runs.pivot(index="seed", columns="arm", values=column)
    # pivot sorts the arms; the tables keep the order in which they ran
    return by_seed.div(by_seed[control], axis=0).mean().reindex(runs["arm"].unique())


_FORMATS = {
    "test accuracy": "{:.2%}",
    "spread": "{:.2%}",
    SPLIT: "{:.2%}",
    "activation rate": "{:.2%}",
    "samples scored": "{:,.0f}",
    "samples trained": "{:,.0f}",
    "FLOPs": "{:.3g}",
    "images / s": "{:,.0f}",
    "peak memory, MB": "{:,.0f}",
}


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with numbers formatted as text; missing values are shown as a dash."""

    def text(column: str, value: Any) -> str:
        if pd.isna(value):
            return "–"
        seconds = column == "spread" and "seconds" in table
        form = "{:.2f}" if seconds else _FORMATS.get(column, "{:.2f}")
        return f"{value}" if isinstance(value, int | str) else form.format(value)

    return table.apply(lambda column: column.map(lambda value: text(str(column.name), value)))


# --- the runs of a folder --------------------------------------------------------------------


class Found(NamedTuple):
    """Contents of a folder of runs.

    ``runs``: one row per run, sorted by folder: name, seed, status, parameters that differ
    between runs, and the error, if any. ``rows``: measurements of complete runs, one row per unit,
    with the same parameters. ``curves``: their recorded values per epoch. ``varied``:
    names of those parameters, without seeds.
    """

    runs: pd.DataFrame
    rows: pd.DataFrame
    curves: pd.DataFrame
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
    lines, rows, curves = [], [], []
    for run, config, result, why in runs:
        settings = {key: _short(config["parameters"].get(key, NONE)) for key in varied}
        line = {"run": run.folder.name, "name": config["name"], "seed": config["seed"]}
        lines.append({**line, **settings, "status": run.status, "why": why})
        if run.status == "complete":
            rows += [{**settings, **row} for row in flat(result.get("rows", ()))]
            curves += [{**settings, **row} for row in flat(result.get("curves", ()))]
    return Found(pd.DataFrame(lines + damaged), pd.DataFrame(rows), pd.DataFrame(curves), varied)


def table(
    found: Found,
    metric: str | None = None,
    by: Sequence[str] | None = None,
    control: str | None = None,
) -> pd.DataFrame:
    """One row per group: n, mean and difference to the control, both with 95 % intervals.

    Args:
        found: from `collect`; rows of runs with manual changes are excluded.
        metric: a numeric column; by default the test accuracy, else the first one.
        by: columns to group by; by default the parameters that differ between runs, and the text
            columns that differ between rows, such as the arm.
        control: value of the last column of ``by`` to compare with, at equal values of the other
            columns and paired by seed; "dense" by default if it occurs.

    For intervals see `mean_interval`; "test split ±" is as in `what_was_done`. Raises
    ``ValueError`` for runs without rows or numbers, and for an unknown column or control.
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
        mean, low, high, n = mean_interval(group[metric].tolist())
        line: dict[str, Any] = dict(zip(columns, key, strict=True))
        line |= {"n": n, metric: mean, "low": low, "high": high}
        if metric == "test_accuracy" and "test_rows" in group and group["test_rows"].notna().any():
            line[SPLIT] = split_error(mean, int(group["test_rows"].max()))
        if control is not None:
            gap = _gap(group, groups.get((*key[:-1], control)), metric)
            line |= {f"minus {control}": gap.mean, "from": gap.low, "to": gap.high}
        lines.append(line)
    return pd.DataFrame(lines).set_index(columns)


def labelled(found: Found, by: Sequence[str] | None = None) -> pd.DataFrame:
    """The curves with a column ``arm`` that contains the name of each curve's group.

    For `astkit.widgets.plots.training_curves`, which plots means with a band over seeds.
    """
    if found.curves.empty:
        raise ValueError("the runs recorded no curves: pass curves=... to the record's finish")
    curves = found.curves.copy()
    columns = [name for name in by if name in curves] if by else _groups(curves, found)
    heads = [f"{column} " if column in found.varied else "" for column in columns]
    parts = [
        [f"{head}{value}" for value in curves[column]]
        for head, column in zip(heads, columns, strict=True)
    ]
    curves["arm"] = [", ".join(words) for words in zip(*parts, strict=True)] or "all runs"
    return curves


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


def _control(values: pd.Series, control: str | None) -> str | None:
    if control is None:
        return "dense" if "dense" in set(values) else None
    if control not in set(values):
        known = ", ".join(map(str, values.unique()))
        raise ValueError(f"control is {control!r}: choose a value of {values.name}: {known}")
    return control


def _gap(group: pd.DataFrame, other: pd.DataFrame | None, metric: str) -> Interval:
    if other is None or other is group or "seed" not in group:
        return mean_interval([])
    # several rows of one seed are not independent: use their mean
    means = [each.groupby("seed")[metric].mean().to_dict() for each in (group, other)]
    return paired_difference(means[0], means[1])


def _short(value: Any) -> Any:
    """A value to group by: numbers and strings unchanged, anything else as a string."""
    return value if isinstance(value, bool | int | float | str) else str(value)


def _why(run: Record) -> str:
    if run.status == "stale":
        return str(run.read("stale.json").get("why", ""))
    error = run.read("error.json")
    first = str(error.get("message", "")).strip().partition("\n")[0]
    return f"{error.get('type', 'error')}: {first}" if error else ""
