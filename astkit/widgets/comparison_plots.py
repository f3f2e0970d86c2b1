"""Figures of a comparison of policies, from tables that `astkit.runs.comparison_page` makes."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from astkit.widgets import frames
from astkit.widgets.frames import Table
from astkit.widgets.style import (
    DASHES,
    INK,
    PAPER,
    SOFT,
    Picture,
    legend_beside,
    line,
    name_seeds,
    picture,
    styled,
)

POINTS = 49
"""Number of points at which the curves of several seeds are averaged."""
SHOWN_FROM = 0.3
"""Share of a run from which on its curve determines the range of the vertical axis."""
_LARGE: dict[str, Any] = {"ms": 11, "mec": INK, "mew": 1.4, "linestyle": "none", "zorder": 5}
COSTS = {"flops": "FLOPs", "seconds": "seconds"}


@styled
def differences(table: Table, quantity: str = "accuracy (points)", higher: bool = True) -> Picture:
    """Forest plot: difference of each policy to dense and to random samples, with intervals.

    Args:
        table: columns ``arm``, ``against`` ("dense" or "random"), ``mean``, ``low``, ``high`` (NaN
            if undefined) and ``outcome`` (shown for "dense").
        quantity: what is compared, with its unit.
        higher: whether a higher value is better; otherwise reductions are drawn, so that better is
            to the right.
    """
    needed = ["arm", "against", "mean", "low", "high", "outcome"]
    rows = frames.read(table, "differences", needed, key=["arm", "against"])
    arms = list(rows["arm"].unique())
    figure = picture(width=7.6, height=1.8 + 0.55 * len(arms))
    axis = figure.axes[0]
    axis.axvline(0, color=INK, lw=1.2)
    apart = 0.15 if rows["against"].nunique() > 1 else 0.0
    if not higher:
        rows = rows.assign(mean=-rows["mean"], low=-rows["high"], high=-rows["low"])
    for row in rows.to_dict("records"):
        place, policy = arms.index(row["arm"]), row["against"] == "dense"
        look: dict[str, Any] = {"color": SOFT, "marker": "o", "mfc": PAPER, "ms": 5, "lw": 1.1}
        if policy:
            look = {**line(str(row["arm"])), "ms": 8, "lw": 2.2}
        ends = [[row["mean"] - row["low"]], [row["high"] - row["mean"]]]
        spot = [row["mean"]], [place - apart if policy else place + apart]
        axis.errorbar(*spot, xerr=ends, capsize=3, **{**look, "linestyle": "none"})
    _label_rows(axis, arms, rows[rows["against"] == "dense"].set_index("arm")["outcome"])
    axis.set(title=f"difference{'' if apart else ' to dense'} at equal cost, with 95 % intervals")
    axis.set_xlabel(f"{'difference' if higher else 'reduction'} of {quantity}, better to the right")
    if apart:
        for label, colour, face in (("dense", INK, INK), ("random samples", SOFT, PAPER)):
            axis.plot([], [], color=colour, marker="o", mfc=face, label=f"to {label}")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _label_rows(axis: Axes, arms: list[str], outcomes: pd.Series[str]) -> None:
    """Names on the left and outcomes on the right of a row; the first row on top."""
    axis.set_yticks(range(len(arms)), [_named(arm) for arm in arms])
    axis.set_ylim(len(arms) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    right = axis.secondary_yaxis("right")
    right.set_yticks(range(len(arms)), [str(outcomes.get(arm, "")) for arm in arms])
    for side in (axis, right):
        side.tick_params(axis="y", length=0)
    right.spines["right"].set_visible(False)


@styled
def cost_to_reach(curves: Table, reached: Table, metric: str = "accuracy") -> Picture:
    """Validation value by cost: mean over seeds, shaded from the lowest to the highest.

    Args:
        curves: columns ``arm``, ``seed``, ``value`` and ``flops`` or ``seconds`` or both, as shares
            of the whole run of the arm "dense"; all NaN if not measured. Arms whose names start
            with "random at" are thin grey lines without shading.
        reached: columns ``arm`` and, with the same unit, ``flops`` and ``seconds`` at which the arm
            reaches dense's final value; NaN if it does not. Large markers show them.
        metric: name of the value.
    """
    table = frames.read(curves, "cost_to_reach", ["arm", "seed", "value"])
    costs = [cost for cost in COSTS if cost in table and table[cost].notna().all()]
    if not costs:
        raise ValueError("cost_to_reach needs a column flops or seconds without gaps")
    marks = frames.read(reached, "cost_to_reach", ["arm", *costs])
    figure = picture(len(costs), width=5.8 if len(costs) > 1 else 7.6, height=4.4)
    for axis, cost in zip(figure.axes, costs, strict=True):
        ranges = [
            _arm(axis, str(arm), runs, cost) for arm, runs in table.groupby("arm", sort=False)
        ]
        final = table[table["arm"] == "dense"].groupby("seed")["value"].last().mean()
        axis.axhline(final, color=INK, lw=1.0, ls=(0, (5, 3)), label="dense's final value")
        if marks[cost].notna().any():
            large = {**_LARGE, "color": PAPER, "marker": "o"}
            axis.plot([np.nan], [np.nan], **large, label="it is reached")
        for row in marks.to_dict("records"):
            axis.plot([row[cost]], [final], **{**line(str(row["arm"])), **_LARGE})
        low, high = np.nanmin(ranges), np.nanmax(ranges)
        axis.set_ylim(low - 0.04 * (high - low), high + 0.06 * (high - low))
        axis.set(title=f"validation {metric} against {COSTS[cost]}", ylabel=f"validation {metric}")
        axis.set_xlabel(f"{COSTS[cost]}, as a share of dense's whole run")
        axis.xaxis.set_major_locator(MaxNLocator(6))
    words = "mean of {} seeds, shaded from the lowest to the highest"
    name_seeds(figure, table["seed"].nunique(), words)
    legend_beside(figure, figure.axes[0])
    return figure


def _arm(axis: Axes, arm: str, runs: pd.DataFrame, cost: str) -> tuple[float, float]:
    """Draw the mean of an arm's curves; returns their range from `SHOWN_FROM` on."""
    share = np.linspace(0, 1, POINTS)
    seeds = []
    for _, run in runs.groupby("seed"):
        spent = run[cost].to_numpy(float)
        at = spent[0] + share * (spent[-1] - spent[0])
        seeds.append((at, np.interp(at, spent, run["value"].to_numpy(float))))
    x, y = np.mean([at for at, _ in seeds], axis=0), np.array([values for _, values in seeds])
    look: dict[str, Any] = {**line(arm), "lw": 2.0, "ms": 5, "markevery": (4, 8)}
    if arm.startswith("random at"):
        look = {"color": SOFT, "lw": 1.0, "ls": DASHES[len(axis.lines) % len(DASHES)]}
    else:
        axis.fill_between(x, y.min(0), y.max(0), color=look["color"], alpha=0.13, lw=0)
    axis.plot(x, y.mean(0), label=_named(arm), **look)
    kept = y[:, share >= SHOWN_FROM]
    return float(np.nanmin(kept)), float(np.nanmax(kept))


def _named(arm: str) -> str:
    return fill(arm, 26)
