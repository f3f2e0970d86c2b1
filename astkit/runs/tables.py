"""Tables of arms and of the runs of a folder: means, intervals, paired differences. Needs pandas.

Results are rows of one arm and seed each, as `astkit.runs.compare` gives them. Folders are read as
they are asked for: there is no index that could be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from astkit.runs.intervals import Interval, mean_interval, paired_difference, split_error
from astkit.runs.record import Record

Result = dict[str, Any]

SEEDS = ("seed", "seeds")
SPLIT = "test split ±"
_WORDS = ("device", "energy_backend", "joules_reason", "time")  # texts that tell no rows apart


# --- the arms of one comparison --------------------------------------------------------------


def tidy(results: Sequence[Result], part: str) -> pd.DataFrame:
    """One row an entry of each result's ``part`` ("epochs" or "steps"), with arm and seed."""
    rows = [
        {"arm": result["arm"], "seed": result["seed"], **entry}
        for result in results
        for entry in result[part]
    ]
    return pd.DataFrame(rows)


def unsteered(results: Sequence[Result]) -> list[Result]:
    """The results of runs that were not steered by hand: steered ones are left out of means."""
    return [result for result in results if not result.get("steered")]


def what_was_done(
    results: Sequence[Result], control: str = "dense", test_rows: int | None = None
) -> pd.DataFrame:
    """Accuracy, decisions and FLOPs of each arm: means over seeds, spread as standard deviation.

    All of it repeats exactly for the same seeds and source, so arms whose budget is in seconds are
    left out. "FLOPs / control" is the mean over seeds of the ratio for one seed. "test split ±" is
    the test split's own sampling error (`split_error`), where its size is known: from the results,
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
    """Training seconds of each arm (evaluation apart) and the ratio to ``control``, by seed."""
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
    """``above`` or ``below`` where the whole interval is on that side of 0, else "undecided"."""
    return above if gap.low > 0 else below if gap.high < 0 else "undecided"


def _ratio(runs: pd.DataFrame, column: str, control: str) -> pd.Series:
    by_seed = runs.pivot(index="seed", columns="arm", values=column)
    # pivot sorts the arms; they stay in the order in which they ran
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
    """``table`` with its numbers as text, for people; an absent value becomes a dash."""

    def text(column: str, value: Any) -> str:
        if pd.isna(value):
            return "–"
        seconds = column == "spread" and "seconds" in table
        form = "{:.2f}" if seconds else _FORMATS.get(column, "{:.2f}")
        return f"{value}" if isinstance(value, int | str) else form.format(value)

    return table.apply(lambda column: column.map(lambda value: text(str(column.name), value)))


# --- the runs of a folder --------------------------------------------------------------------


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
    runs = [Record(path.parent) for path in sorted(root.glob("*/config.json"))]
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
    given = [run.config["parameters"] for run in runs]
    varied = [
        name
        for name in dict.fromkeys(name for each in given for name in each)
        if name not in SEEDS and len({_short(each.get(name)) for each in given}) > 1
    ]
    lines, rows, curves = [], [], []
    for run, parameters in zip(runs, given, strict=True):
        settings = {key: _short(parameters.get(key)) for key in varied}
        line = {"run": run.folder.name, "name": run.config["name"], "seed": run.config["seed"]}
        lines.append({**line, **settings, "status": run.status, "why": _why(run)})
        if run.status == "complete":
            head = {"run": run.folder.name, **settings}
            rows += [{**head, **row} for row in run.result.get("rows", ())]
            curves += [{**head, **row} for row in run.result.get("curves", ())]
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

    For intervals see `mean_interval`; "test split ±" is as in `what_was_done`. Raises
    ``ValueError`` for runs without rows, and for a column or control that is not there.
    """
    rows, metric, by = _asked(found, metric, by)
    groups = dict(list(rows.groupby(by, sort=False, dropna=False)))
    control = _control(rows, by, control)
    lines = []
    for key, group in groups.items():
        mean, low, high, n = mean_interval(group[metric].tolist())
        line = dict(zip(by, key, strict=True)) | {"n": n, metric: mean, "low": low, "high": high}
        if metric == "test_accuracy" and "test_rows" in group and group["test_rows"].notna().any():
            line[SPLIT] = split_error(mean, int(group["test_rows"].max()))
        if control is not None:
            other = groups.get((*key[:-1], control))
            gap = mean_interval([])
            if other is not None and other is not group and "seed" in group:
                # several rows of a seed are no repetitions: their mean counts once
                means = [each.groupby("seed")[metric].mean().to_dict() for each in (group, other)]
                gap = paired_difference(means[0], means[1])
            line |= {f"minus {control}": gap.mean, "from": gap.low, "to": gap.high}
        lines.append(line)
    return pd.DataFrame(lines).set_index(by)


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
    then, now = _facts(first), _facts(second)
    lines = [
        {"what": what, "first": then.get(what), "second": now.get(what)}
        for what in dict.fromkeys([*then, *now])
        if then.get(what) != now.get(what)
    ]
    return pd.DataFrame(lines, columns=["what", "first", "second"]).set_index("what")


def _facts(run: Record) -> dict[str, Any]:
    means = pd.DataFrame(run.result.get("rows", [])).mean(numeric_only=True).dropna()
    return {
        **_flat(run.config, "config: "),
        **_flat(run.read("env.json"), "env: "),
        **{f"mean of {name}": value for name, value in means.items() if name not in SEEDS},
    }


def _asked(
    found: Found, metric: str | None, by: Sequence[str] | None
) -> tuple[pd.DataFrame, str, list[str]]:
    if found.rows.empty:
        raise ValueError("no complete run has rows: see the table of runs for what became of them")
    kept = found.rows.to_dict("records")
    rows = pd.DataFrame(unsteered([{str(key): row[key] for key in row} for row in kept]))
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


def _texts(rows: pd.DataFrame) -> list[str]:
    """The columns of text, filled in every row, that tell rows apart."""
    texts = [
        str(column)
        for column in rows
        if column not in ("run", *_WORDS) and rows[column].map(lambda v: isinstance(v, str)).all()
    ]
    return [column for column in texts if rows[column].nunique() > 1]


def _short(value: Any) -> Any:
    """A value that can be a group: numbers and texts as they are, all else as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _why(run: Record) -> str:
    if run.status == "stale":
        return str(run.read("stale.json").get("why", ""))
    error = run.read("error.json")
    first = str(error.get("message", "")).strip().partition("\n")[0]
    return f"{error['type']}: {first}" if error else ""


def _flat(content: dict[str, Any], head: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{head}{key}.") if isinstance(value, dict) else {head + key: value}
    return flat
