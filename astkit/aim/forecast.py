"""`forecast`: which data to train on, judged before any training by cross-validation.

The proxies are boosted trees and a linear model, fitted in seconds; what they cost is stated in
seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from astkit import rng
from astkit.aim.decisions import (
    BOTH,
    FORWARD_PARTS,
    OLD,
    PLAIN,
    WEIGHTED,
    Decision,
    Judge,
    Judgement,
    Proxy,
    answer,
    both_or_old,
    choose,
    folds_of,
    in_words,
)
from astkit.aim.explain import as_tables, explain
from astkit.aim.proxies import linear, ratio_by_trees, squared, trees, wrong
from astkit.datasets.dependence import Array, autocorrelation_time, block_length, block_numbers
from astkit.datasets.facts import row_groups
from astkit.datasets.table import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FITTED = 8_000
"""Old rows that proxies are fitted to, at most; each then stands for several."""
MIN_ROWS = 30
"""Independent target rows below which nothing is foretold."""


@dataclass(frozen=True)
class Forecast:
    """Which data to train on, and what that is expected to gain over training on the old rows.

    Attributes:
        decision: the one to take, see `Decision`; with a ``doubt`` both, or the old rows where both
            are known to lose.
        sentence: the answer in one line.
        table: a row for each decision: ``decision``, ``gain`` over "old", its 95 % interval from
            ``low`` to ``high``, ``unit``, ``proxy`` and whether this has it ``chosen``. The gain of
            the chosen decision in the sentence was chosen on other folds than it is quoted from.
        separating: columns that are left out of weights, see `explain`.
        in_order: whether folds go forward in time; ``seconds``: how long it took.
        doubt: whether a linear model says the opposite of the trees.
        reason: why nothing could be judged; else empty.
    """

    decision: Decision
    sentence: str
    table: pd.DataFrame
    separating: tuple[str, ...]
    in_order: bool
    seconds: float
    doubt: bool = False
    reason: str = ""

    def plot(self) -> Figure:
        """The expected gain of each decision."""
        plots = import_module("astkit.widgets.target_plots")  # matplotlib is loaded for it only
        made: Figure = plots.decisions(self.table)
        return made

    def __repr__(self) -> str:
        return f"{self.sentence}\n{self.table.to_string(index=False)}"


def forecast(
    train: Any,
    target: Any,
    label: str | None = None,
    *,
    in_order: bool | None = None,
    date: str | None = None,
    decisions: Sequence[Decision] | None = None,
    seed: int = 0,
) -> Forecast:
    """Foretell what training on old rows, target rows, or both in which share would gain.

    Example::

        train, recent, _ = load("bikes")
        print(forecast(train, recent, label="bikers").sentence)

    Models are fitted to old rows and a part of the target's, and judged on the rest of these. Where
    rows have an order, they are judged on later rows than they were fitted to.

    Args:
        train, target: old rows, and rows like those that count: files, DataFrames, or `Table`
            objects of which the second is like the first.
        label: the column to be predicted; not for `Table` objects.
        in_order: whether rows of the target are in order of time; ``None``: as a target that is a
            `Table` says, else if neighbouring rows are found to depend on each other.
        date: the column of dates or numbers that orders them; rows of one value stay together.
            ``None``: that of a target that is a `Table`, unless ``in_order`` is False.
        decisions: those that are judged, `OLD` first; by default all that the data allow.

    Raises ``ValueError`` for tables that cannot be read, a target without labels, and a date of
    rows that are in no order.
    """
    import pandas as pd

    if date is not None and in_order is False:
        raise ValueError(f"date is {date!r} and in_order is False: leave the date out, or in_order")
    start = time.perf_counter()
    old, new = as_tables(train, target, label)
    if not new.labelled:
        raise ValueError(
            f"the target has no {new.label.name!r}, so no gain can be foretold: give rows"
            " with labels, or see astkit.explain for what differs"
        )
    if date is None:
        in_order = new.in_order if in_order is None else in_order
        date = None if in_order is False else new.date
    units, worth, in_order, note = _units(new, date, in_order)
    if date is not None and (dates := units.max() + 1) < FORWARD_PARTS:
        few = f"the target has {dates} different values of {date!r}"
        return _unknown(f"{few}, and {FORWARD_PARTS} are needed to judge later rows by", start)
    if worth < MIN_ROWS:
        few = f"the target's rows are worth about {worth} independent ones, fewer than {MIN_ROWS}"
        return _unknown(few, start)
    separating = explain(old, new, seed=seed).separating
    judge_by = partial(judge_of, old, new, units, in_order, separating, seed)
    judge, by = judge_by(trees), "boosted trees"
    found = judge.judge(decisions or (*PLAIN, *WEIGHTED))
    chosen, quoted = choose(found, judge)
    decision, sentence = chosen.decision, answer(quoted, judge.unit, judge.said(by))
    doubt = _doubt(chosen, judge_by)
    if doubt:
        decision = both_or_old(found).decision
        trees_say = f"trees say {in_words(chosen.decision)}, {judge.said(by)}"
        sentence = f"forecast: cannot tell, it depends on the model: {trees_say}"
    seconds = time.perf_counter() - start
    return Forecast(
        decision,
        f"{sentence}{note}; {seconds:.0f} s",
        pd.DataFrame([each.line(judge.unit, proxy=by, chosen=each is chosen) for each in found]),
        separating,
        in_order,
        seconds,
        doubt,
    )


def arrays(table: Table, scaled: bool = False) -> tuple[Array, Array]:
    """Inputs ``[n, d]``, for trees unless ``scaled``, and labels ``[n]``."""
    labels = table.values.numpy()
    kind = np.int64 if table.task == "classes" else np.float64
    return table.matrix(scaled), labels.astype(kind)


def _moments(table: Table, date: str) -> Array:
    """The place in time of each row by its ``date``, int ``[rows]``; rows of a day have one."""
    if date not in table.frame:
        raise ValueError(f"date is {date!r}, which is no column of the target: give one that is")
    moments = table.frame[date].to_numpy()
    if moments.dtype.kind not in "fiM":
        raise ValueError(f"date is {date!r}, a column of words: give one of dates or numbers")
    if moments.dtype.kind == "M":
        moments = moments.astype("datetime64[D]")
    return np.unique(moments, return_inverse=True)[1]


def _units(table: Table, date: str | None, in_order: bool | None) -> tuple[Array, int, bool, str]:
    """Units of dependent rows, int ``[rows]``; how many independent ones they are worth.

    Also whether folds go forward, and a note about that.
    """
    labels = table.values.double().numpy()
    if date is not None:
        units = _moments(table, date)
        in_time = labels[np.argsort(units, kind="stable")]
        return units, int(len(labels) / autocorrelation_time(in_time)), True, ""
    groups = row_groups(table)
    if groups is not None:
        units = groups.numpy()
        return units, int(units.max()) + 1, bool(in_order), ""
    if in_order is False:
        return np.arange(len(table)), len(table), False, ""
    span = autocorrelation_time(labels)
    length = block_length(span, len(labels))
    found = in_order is None and length > 1
    note = ", since neighbouring rows depend on each other" if found else ""
    units, worth = block_numbers(len(labels), length), int(len(labels) / span)
    return units, worth, found or bool(in_order), note


def compared_inputs(names: Sequence[str], separating: Sequence[str]) -> Array:
    """Which inputs, such as "day hour", are of none of the columns ``separating``, bool ``[d]``."""
    left_out = tuple(f"{each} " for each in separating)
    return np.array([not f"{name} ".startswith(left_out) for name in names], bool)


def judge_of(
    old: Table,
    new: Table,
    units: Array,
    in_order: bool,
    separating: tuple[str, ...],
    seed: int,
    proxy: Proxy = trees,
) -> Judge:
    """What judges decisions about ``old`` and the target ``new`` by a proxy."""
    scaled = proxy is linear
    x, y = arrays(old, scaled)
    rows = np.sort(rng.permutation(len(y), seed, "forecast").numpy()[:FITTED])
    sample, target = (x[rows], y[rows]), arrays(new, scaled)
    classes = old.task == "classes"
    return Judge(
        sample,
        target,
        proxy,
        wrong if classes else squared,
        ratio_by_trees(sample, target, compared_inputs(old.names, separating), seed),
        folds_of(units, in_order, seed),
        units,
        "points" if classes else "% of the RMSE",
        in_order,
        len(y) / len(rows),
    )


def _doubt(chosen: Judgement, judge_by: Callable[[Proxy], Judge]) -> bool:
    """Whether a linear model says the opposite of what trees say of the chosen decision."""
    if chosen.decision == OLD or not (chosen.low > 0 or chosen.high < 0):
        return False
    other = judge_by(linear).judge([OLD, chosen.decision])[1]
    return (chosen.low > 0 and other.high < 0) or (chosen.high < 0 and other.low > 0)


def _unknown(reason: str, start: float) -> Forecast:
    """The answer where nothing can be judged: train on both."""
    import pandas as pd

    columns = ["decision", "gain", "low", "high", "unit", "proxy", "chosen"]
    sentence = f"forecast: cannot tell, {reason}: train on both"
    seconds = time.perf_counter() - start
    table = pd.DataFrame(columns=columns)
    return Forecast(BOTH, sentence, table, (), False, seconds, reason=reason)
