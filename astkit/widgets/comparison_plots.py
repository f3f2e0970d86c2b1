"""Figures of a comparison of policies, from tables that `astkit.comparison.report` makes."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from astkit.widgets.style import (
    DASHES,
    INK,
    PAPER,
    SOFT,
    Picture,
    Table,
    legend_outside,
    line,
    lines,
    name_seeds,
    picture,
    styled,
)

POINTS = 49
"""Number of points at which the curves of several seeds are averaged."""
WIDEST = 3.0
"""A forest plot ends this many times the median row beyond 0 on the side of worse values."""
COSTS = {"flops": "FLOPs", "seconds": "time"}


@styled
def differences(table: Table, quantity: str = "accuracy (points)", higher: bool = True) -> Picture:
    """Forest plot: difference of each method to dense training and to random samples.

    It shows all gains. Losses and intervals that reach further than `WIDEST` times the median row
    are cut off: see `bar`.

    Args:
        table: columns ``arm``, ``against`` ("dense" or "random"), ``mean``, ``low``, ``high`` (NaN
            if undefined), ``n``, the number of seeds, and ``outcome`` (shown for "dense").
        quantity: what is compared, with its unit.
        higher: whether a higher value is better; otherwise the axis runs from right to left, so
            that better is to the right.
    """
    rows = pd.DataFrame(table)
    arms = list(rows["arm"].unique())
    figure = picture(height=1.5 + 0.5 * len(arms))
    axis = figure.axes[0]
    axis.axvline(0, color=INK, lw=1.2)
    both = rows["against"].nunique() > 1
    reach = rows[["mean", "low", "high"]].abs().max(axis=1)
    limit = WIDEST * float(reach.median()) if reach.max() > WIDEST * reach.median() > 0 else np.inf
    known = rows[["low", "high"]].to_numpy()
    gained = known.min(axis=1) > 0 if higher else known.max(axis=1) < 0
    most = max(limit, float(reach[gained].max()) if gained.any() else 0.0)
    limits = (-limit, most) if higher else (-most, limit)
    for row in rows.to_dict("records"):
        place, to_dense = arms.index(row["arm"]), row["against"] == "dense"
        look: dict[str, Any] = {**line(str(row["arm"])), "linestyle": "none", "marker": "o"}
        look |= {"ms": 8, "lw": 2.2} if to_dense else {"ms": 7, "lw": 1.4, "mfc": PAPER}
        if str(row["arm"]).startswith("random at"):
            look["color"] = SOFT
        height = place + 0.14 * both * (-1 if to_dense else 1)
        values = (row["mean"], row["low"], row["high"])
        bar(axis, height, values, limits, look, mirrored=not higher)
    shown = rows[["mean", "low", "high"]].clip(*limits)
    first, last = min(0.0, float(shown.min().min())), max(0.0, float(shown.max().max()))
    margin = 0.04 * (last - first or 1.0)
    ends = first - margin, last + margin
    axis.set_xlim(ends if higher else ends[::-1])
    outcomes = rows[rows["against"] == "dense"].set_index("arm")["outcome"]
    label_rows(axis, arms, [str(outcomes.get(arm, "")) for arm in arms])
    sizes = sorted(rows["n"].unique())
    seeds = f"{sizes[-1]} seed" + "s" * bool(sizes[-1] > 1)
    seeds = seeds if len(sizes) == 1 else f"{sizes[0]} to {seeds}"
    against = "dense training" + " and random samples" * both
    ends_shown = ", 95 % intervals" * bool(rows["low"].notna().any())
    axis.set_title(f"test {quantity.split(' (')[0]} against {against}, {seeds}{ends_shown}")
    axis.set_xlabel(f"difference of {quantity}, better to the right")
    if both:
        for words, face in (("dense training", INK), ("random samples at its rate", PAPER)):
            look = {"color": INK, "marker": "o", "linestyle": "none", "mfc": face}
            axis.plot([], [], **look, label=f"minus {words}")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def bar(
    axis: Axes,
    height: float,
    values: tuple[float, float, float],
    limits: tuple[float, float],
    look: dict[str, Any],
    mirrored: bool = False,
) -> None:
    """A mean with its interval, or an arrow with its number at the edge outside of ``limits``.

    An interval that reaches further ends in an arrow at the edge. ``mirrored``: the axis runs from
    right to left.
    """
    mean, low, high = values
    if limits[0] <= mean <= limits[1]:
        first, last = max(low, limits[0]), min(high, limits[1])
        axis.errorbar([mean], [height], xerr=[[mean - first], [last - mean]], capsize=3, **look)
        for end, shown, pointing in ((low, first, "<>"), (high, last, "><")):
            if end != shown:
                axis.plot([shown], [height], **{**look, "marker": pointing[mirrored]})
        return
    beyond = mean > limits[1]
    right = beyond != mirrored
    place: dict[str, Any] = {"ha": "right" if right else "left", "va": "center", "size": 9}
    text = f"{mean:.3g} ▶" if right else f"◀ {mean:.3g}"
    axis.text(limits[beyond], height, text, color=look["color"], **place)


def label_rows(axis: Axes, names: list[str], beside: list[str], wide: int = 30) -> None:
    """Names on the left and what stands ``beside`` them on the right; the first row on top."""
    axis.set_yticks(range(len(names)), [fill(name, wide) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    right = axis.secondary_yaxis("right")
    right.set_yticks(range(len(names)), beside)
    for side in (axis, right):
        side.tick_params(axis="y", length=0)
    right.spines["right"].set_visible(False)


@styled
def values_by_cost(curves: Table, metric: str = "accuracy", rows: int | None = None) -> Picture:
    """Validation value by cost: mean over seeds, shaded from the lowest to the highest.

    Args:
        curves: columns ``arm``, ``seed``, ``value`` and ``flops`` or ``seconds`` or both, as shares
            of the whole run of the arm "dense"; all NaN if not measured. Arms whose names start
            with "random at" are thin grey lines without shading.
        metric: name of the value.
        rows: number of validation rows, for the title.
    """
    table = pd.DataFrame(curves)
    costs = [cost for cost in COSTS if cost in table and table[cost].notna().all()]
    figure = picture(len(costs), height=4.4)
    looks = lines(arm for arm in table["arm"].unique() if not arm.startswith("random at"))
    for axis, cost in zip(figure.axes, costs, strict=True):
        for arm, runs in table.groupby("arm", sort=False):
            seeds = []
            for _, run in runs.groupby("seed"):
                spent = run[cost].to_numpy(float)
                at = np.linspace(spent[0], spent[-1], POINTS)
                seeds.append((at, np.interp(at, spent, run["value"].to_numpy(float))))
            x, y = np.mean([at for at, _ in seeds], axis=0), np.array([ys for _, ys in seeds])
            look: Any = {"color": SOFT, "lw": 1.0, "ls": DASHES[len(axis.lines) % len(DASHES)]}
            if arm in looks:
                look = {**looks[str(arm)], "lw": 2.0, "ms": 5, "markevery": (4, 8)}
                axis.fill_between(x, y.min(0), y.max(0), color=look["color"], alpha=0.13, lw=0)
            axis.plot(x, y.mean(0), label=fill(str(arm), 26), **look)
        final = table[table["arm"] == "dense"].groupby("seed")["value"].last().mean()
        axis.axhline(final, color=INK, lw=1.0, ls=(0, (5, 3)), label="final value of dense")
        axis.set(title=f"validation {metric} against {COSTS[cost]}", ylabel=f"validation {metric}")
        axis.set_xlabel(f"{COSTS[cost]}, as a share of dense training")
        axis.xaxis.set_major_locator(MaxNLocator(6))
    words = "mean of {} seeds, shaded from the lowest to the highest"
    name_seeds(figure, table["seed"].nunique(), words, f"{rows:,} validation rows" if rows else "")
    legend_outside(figure, figure.axes[0])
    return figure
