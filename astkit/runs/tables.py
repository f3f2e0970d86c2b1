"""Tidy tables of arm results: one row an arm, an epoch or a step. Needs pandas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from astkit.profiling import bootstrap_interval

Result = dict[str, Any]


def tidy(results: Sequence[Result], part: str) -> pd.DataFrame:
    """One row an entry of each result's ``part`` ("epochs" or "steps"), with arm and seed."""
    rows = [
        {"arm": result["arm"], "seed": result["seed"], **entry}
        for result in results
        for entry in result[part]
    ]
    return pd.DataFrame(rows)


def unsteered(results: Sequence[Result]) -> list[Result]:
    """The results of runs that nobody steered: a run that was has no place in a mean."""
    return [result for result in results if not result.get("steered")]


def what_was_done(results: Sequence[Result], control: str = "dense") -> pd.DataFrame:
    """Accuracy, decisions and FLOPs of each arm: means over seeds, spread as standard deviation.

    All of it repeats exactly for the same seeds and source, so arms whose budget is in seconds are
    left out. "FLOPs / control" is the mean over seeds of the ratio for one seed.
    """
    runs = pd.DataFrame([result for result in unsteered(results) if "seconds" not in result["arm"]])
    groups = runs.groupby("arm", sort=False)
    table = pd.DataFrame(
        {
            "n": groups.size(),
            "test accuracy": groups["test_accuracy"].mean(),
            "spread": groups["test_accuracy"].std(),
            "activation rate": groups["rate"].mean(),
            "samples scored": groups["samples_scored"].mean(),
            "samples trained": groups["samples_trained"].mean(),
            "FLOPs": groups["flops"].mean(),
            f"FLOPs / {control}": _ratio(runs, "flops", control),
        }
    )
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


class Difference(NamedTuple):
    """Mean of paired differences of accuracy with its 95 % interval; NaN where there is none."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:+.2%}, n = {self.n}, so without an interval"
        return f"{self.mean:+.2%} [{self.low:+.2%}, {self.high:+.2%}], n = {self.n}"


def difference(results: Sequence[Result], arm: str, control: str) -> Difference:
    """Test accuracy of ``arm`` minus ``control``, paired by seed.

    The interval is a bootstrap over seeds; with a handful of seeds it is too narrow.
    """
    runs = pd.DataFrame(unsteered(results))
    runs = runs.pivot(index="seed", columns="arm", values="test_accuracy")
    gaps = (runs[arm] - runs[control]).dropna()
    low, high = math.nan, math.nan
    if len(gaps) > 1:
        low, high = bootstrap_interval(gaps.tolist(), statistic="mean")
    return Difference(float(gaps.mean()), low, high, len(gaps))


def _ratio(runs: pd.DataFrame, column: str, control: str) -> pd.Series:
    by_seed = runs.pivot(index="seed", columns="arm", values=column)
    # pivot sorts the arms; they shall stay in the order in which they ran
    return by_seed.div(by_seed[control], axis=0).mean().reindex(runs["arm"].unique())


_FORMATS = {
    "test accuracy": "{:.2%}",
    "spread": "{:.2%}",
    "activation rate": "{:.2%}",
    "samples scored": "{:,.0f}",
    "samples trained": "{:,.0f}",
    "FLOPs": "{:.3g}",
}


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with its numbers as text, for people; an absent value becomes a dash."""

    def text(column: str, value: Any) -> str:
        if pd.isna(value):
            return "–"
        seconds = column == "spread" and "seconds" in table
        form = "{:.2f}" if seconds else _FORMATS.get(column, "{:.2f}")
        return f"{value}" if isinstance(value, int) else form.format(value)

    return table.apply(lambda column: column.map(lambda value: text(str(column.name), value)))
