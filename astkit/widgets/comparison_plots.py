"""Figures of a comparison of policies, from tables that `astkit.comparison.report` makes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from astkit.widgets.style import (
    SOFT,
    Picture,
    Table,
    legend_outside,
    lines,
    name_seeds,
    picture,
    styled,
)

FAR = 3.0
"""Values that differ by more than this many times have a logarithmic axis."""
BESIDE = 2.75  # inches right of the axis for numbers and words
BAR = 0.24  # half the height of a bar for a mean, in rows
JOINED = "#b5b5b5"  # of lines that join the values of a seed


@styled
def values_by_method(
    runs: Table,
    beside: Mapping[str, Mapping[str, Any]],
    quantity: str = "accuracy (%)",
    higher: bool = True,
    names: Sequence[str] = (),
) -> Picture:
    """The value of each method: a dot a seed, a bar for the mean, grey lines that join seeds.

    Args:
        runs: columns ``arm``, ``seed`` and ``value``; of the first arm, with which the others are
            compared, there is at least one.
        beside: by arm, ``gap``: its difference to the first in words, ``ends``: where the interval
            of the difference lies on the axis (NaN if undefined), and, of a policy, ``words``, the
            outcome, and whether it is ``bold``, as an improvement.
        quantity: what is compared, with its unit; "%" for shares, whose axis is linear.
        higher: whether a higher value is better; the axis runs from left to right in any case.
        names: the arms that there will be, in their order; by default those of ``runs``.
    """
    table = pd.DataFrame(runs)
    arms = list(dict.fromkeys([*names, *table["arm"]]))
    values = table.pivot(index="arm", columns="seed", values="value").reindex(arms)
    means = values.mean(axis=1)
    known = set(table["arm"])
    figure = picture(height=1.4 + 0.5 * len(arms))
    figure.set_layout_engine("constrained", rect=(0, 0, 1 - BESIDE / figure.get_figwidth(), 1))
    axis = figure.axes[0]
    for _, seed in values.items():
        places = np.flatnonzero(seed.notna())
        axis.plot(seed.dropna(), places, color=JOINED, lw=0.9, zorder=1)
    ends = np.array([each["ends"] for each in beside.values()], float)
    logarithmic = _scale(axis, values.to_numpy(float), ends, shares="%" in quantity)
    looks = lines(arm for arm in arms if not arm.startswith("random at"))
    for place, arm in enumerate(arms):
        if arm in known:
            colour = looks[arm]["color"] if arm in looks else SOFT
            _draw_runs(axis, place, values.loc[arm], colour)
            own = beside.get(arm, {"ends": [], "gap": ""})
            axis.plot(own["ends"], [place] * len(own["ends"]), color=colour, lw=1.2)
            _write_beside(axis, place, in_digits(means[arm], means), own, colour)
    axis.set_yticks(range(len(arms)), [fill(_named(arm), 26) for arm in arms])
    axis.set_ylim(len(arms) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
    axis.spines["left"].set_visible(False)
    best = f"{'higher' if higher else 'lower'} is better"
    axis.set_xlabel(f"test {quantity}{', logarithmic' * logarithmic}, {best}")
    words = "a dot: a seed, joined by grey lines; a bar: their mean"
    if np.isfinite(ends).any():
        words += f"; a thin line: 95 % interval of the difference to {_named(arms[0])}"
    figure.supxlabel(words, x=0.01, ha="left", size=8, color=SOFT)
    return figure


def _draw_runs(axis: Axes, place: int, values: pd.Series[float], colour: str) -> None:
    """The dots of one method in the row ``place``, and the bar at their mean."""
    mean, heights = values.mean(), [place - BAR, place + BAR]
    dots: dict[str, Any] = {"marker": "o", "ms": 6, "mew": 0, "alpha": 0.55, "linestyle": "none"}
    axis.plot(values, [place] * len(values), color=colour, **dots)
    axis.plot([mean, mean], heights, color=colour, lw=3.5, solid_capstyle="butt")
    if place == 0:  # what intervals are to be seen beside
        axis.axvline(mean, color=colour, lw=0.9, ls=":", zorder=0)


def _scale(axis: Axes, values: np.ndarray, ends: np.ndarray, shares: bool) -> bool:
    """Scale and limits of the axis of ``values``; returns whether it is logarithmic.

    It is where they differ by more than `FAR` times, but for ``shares``, of which it would squeeze
    the ends that matter. All values are shown; intervals run to the edge of the axis where they
    end further beyond the values than these are apart.
    """
    least, most = np.nanmin(values), np.nanmax(values)
    logarithmic = bool(not shares and 0 < FAR * least < most)
    if logarithmic:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 1e3 * least else (1,)))
        axis.xaxis.set_major_formatter("{x:,g}")
        axis.xaxis.set_minor_locator(NullLocator())
        least, most = np.log(least), np.log(most)
        ends = np.log(ends, out=np.full_like(ends, -np.inf), where=~(ends <= 0))
    else:
        axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    reach = most - least or 0.05 * abs(most) or 1.0
    shown = np.clip(ends[~np.isnan(ends)], least - reach, most + reach)
    first, last = min([least, *shown]), max([most, *shown])
    margin = 0.06 * (last - first or reach)
    limits = np.array([first - margin, last + margin])
    axis.set_xlim(*np.exp(limits) if logarithmic else limits)
    return logarithmic


def _write_beside(axis: Axes, place: int, number: str, own: Mapping[str, Any], colour: str) -> None:
    """The mean as ``number``, right of the axis, with difference and outcome."""
    words, gap = fill(own.get("words", ""), 34), own["gap"]
    strong: Any = {"weight": "bold", "color": colour} if own.get("bold") else {}
    at: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    at |= {"annotation_clip": False, "in_layout": False, "va": "center"}
    axis.annotate(number, (1, place), (42, 0), ha="right", **{**at, "color": colour, **strong})
    axis.annotate(gap, (1, place), (51, 5 * bool(words)), **at, **strong)
    axis.annotate(words, (1, place), (51, -1), **{**at, "va": "top", "color": SOFT, "size": 8})


def in_digits(mean: float, means: Iterable[float]) -> str:
    """A mean with three digits, or as many more as a quarter of the spread of ``means`` needs."""
    numbers = [each for each in means if not np.isnan(each)]
    steps = [abs(mean) / 100, (max(numbers) - min(numbers)) / 4]
    decimals = [-math.floor(math.log10(step)) for step in steps if step]
    return f"{mean:,.{min(max([0, *decimals]), 8)}f}"


def _named(arm: str) -> str:
    """The name of a method in the figure."""
    if arm.startswith("random at "):
        return f"random at {float(arm.removeprefix('random at ')):.2g}"
    return "dense training" if arm == "dense" else arm


@styled
def values_by_cost(curves: Table, metric: str = "accuracy") -> Picture:
    """Validation value by cost: mean over seeds, shaded from the lowest to the highest.

    Args:
        curves: columns ``arm``, ``seed``, ``value`` and ``FLOPs`` or ``time`` or both, as shares of
            the whole run of dense training; what is not known is ``None``.
        metric: name of the value.
    """
    table = pd.DataFrame(curves)
    table["point"] = table.groupby(["arm", "seed"]).cumcount()
    costs = [cost for cost in ("FLOPs", "time") if table[cost].notna().all()]
    figure = picture(len(costs), height=3.8)
    looks = lines(table["arm"])
    for axis, cost in zip(figure.axes, costs, strict=True):
        for arm, runs in table.groupby("arm", sort=False):
            points = runs.groupby("point")
            spent, values = points[cost].mean(), points["value"]
            look: Any = {**looks[str(arm)], "lw": 2.0, "ms": 5, "markevery": (1, 3)}
            axis.plot(spent, values.mean(), label=fill(_named(str(arm)), 26), **look)
            shade: Any = {"color": look["color"], "alpha": 0.13, "lw": 0}
            axis.fill_between(spent, values.min(), values.max(), **shade)
        axis.set(xlabel=f"{cost}, as a share of dense training", ylabel=f"validation {metric}")
        axis.xaxis.set_major_locator(MaxNLocator(6))
    name_seeds(figure, table["seed"].nunique(), "mean of {} seeds, shaded to the extremes")
    legend_outside(figure, figure.axes[0])
    return figure
