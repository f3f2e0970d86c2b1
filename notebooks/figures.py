"""Figures of notebooks 04 and 05: curves by size and step, and gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.ticker import StrMethodFormatter

from astkit.widgets.style import (
    COLOURS,
    SOFT,
    Picture,
    legend_outside,
    line,
    picture,
    styled,
)

GATES = (
    *("never", "a and b", "a and not b", "a", "b and not a", "b"),
    *("either a or b", "a or b", "neither a nor b", "a equals b", "not b"),
    *("a or not b", "not a", "b or not a", "not both", "always"),
)
WIRE = GATES.index("a")


@styled
def by_size(table: pd.DataFrame, size: str, value: str, unit: str) -> Picture:
    """``value`` against ``size``, both logarithmic: a line a ``method``.

    ``unit``: label of the vertical axis.
    """
    figure = picture(height=3.6)
    axis = figure.axes[0]
    for name, group in table.groupby("method", sort=False):
        axis.plot(group[size], group[value], label=name, **line(str(name)))
    axis.set(xscale="log", yscale="log", xlabel=size, ylabel=unit)
    sizes = sorted(table[size].unique())
    axis.set_xticks(sizes, [f"{each:,}" for each in sizes])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    legend_outside(figure, axis)
    return figure


@styled
def soft_and_hard(history: pd.DataFrame) -> Picture:
    """Loss of the soft automaton and wrong cells of the hard one by step.

    ``history``: columns ``seed``, ``step``, ``val_loss`` and ``val_wrong``.
    """
    figure = picture(2)
    losses, wrong = figure.axes
    for seed, run in history.groupby("seed"):
        look: Any = line(f"seed {seed}", markers=False)
        look |= {"lw": 1.2, "label": f"seed {seed}"}
        losses.plot(run["step"], run["val_loss"], **look)
        wrong.plot(run["step"], run["val_wrong"], **look)
    losses.set(title="soft automaton: loss", ylabel="loss per sample")
    losses.set(xlabel="training step", yscale="log")
    wrong.set_yscale("symlog", linthresh=1)
    most = max(1, int(history["val_wrong"].max()))
    wrong.set_yticks([0, *(10**power for power in range(len(str(most))))])
    wrong.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    wrong.set_ylim(-0.3, 2 * most)
    wrong.axhline(1, color=SOFT, lw=1.0, ls=":")  # below, the axis is linear
    wrong.set(title="hard automaton: cells wrong", ylabel="cells wrong")
    wrong.set(xlabel="training step")
    return figure


@styled
def gate_histogram(counts: Sequence[int]) -> Picture:
    """Numbers of gates, without the plain wires of which a training starts.

    ``counts``: of each of the sixteen gates.
    """
    shown = pd.Series(counts, GATES).drop(GATES[WIRE])
    shown = shown.sort_values(kind="stable")
    figure = picture(height=3.8)
    axis = figure.axes[0]
    bars = axis.barh(shown.index, shown, color=COLOURS[2])
    axis.bar_label(bars, map("{:,}".format, shown), padding=3)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("gates")
    return figure
