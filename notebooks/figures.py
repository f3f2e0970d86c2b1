"""Figures of notebook 04: curves by size and by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.ticker import StrMethodFormatter

from astkit.widgets.style import (
    SOFT,
    Picture,
    legend_outside,
    line,
    picture,
    styled,
)


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
def learning(curves: pd.DataFrame, marks: Mapping[str, float]) -> Picture:
    """MRR by training step, a line a model with the range over seeds.

    Args:
        curves: columns ``model``, ``seed``, ``step`` and ``val_mrr``.
        marks: values of the baselines, drawn as lines.
    """
    figure = picture(height=3.8)
    axis = figure.axes[0]
    for model, group in curves.groupby("model", sort=False):
        seeds, look = group.groupby("step")["val_mrr"], line(str(model))
        mean = seeds.mean()
        axis.plot(mean, label=str(model), **look)
        band: Any = {"color": look["color"], "alpha": 0.15, "lw": 0}
        axis.fill_between(mean.index, seeds.min(), seeds.max(), **band)
    for name, value in marks.items():
        axis.axhline(value, color=SOFT, lw=1.0, ls=":")
        at: Any = {"xy": (1.01, value), "xycoords": ("axes fraction", "data")}
        axis.annotate(name, **at, va="center", fontsize=9, color=SOFT)
    axis.set(xlabel="training step", ylabel="mean reciprocal rank (MRR)")
    axis.set_ylim(0, None)
    seeds = curves["seed"].nunique()
    over = (
        f"mean of {seeds} seeds and their range" if seeds > 1 else "one seed"
    )
    axis.set_title(f"MRR on validation data: {over}")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
