"""Figures from tidy tables; legible in greyscale, on white and on dark pages.

All functions take a data frame or a list of mappings and return a `Picture`, a
`matplotlib.figure.Figure` outside pyplot; all raise ``ValueError`` for a missing column or a
table without rows. Figures of gates are defined in `astkit.widgets.gate_plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from astkit.widgets import frames
from astkit.widgets.frames import Table
from astkit.widgets.style import (
    COLOURS,
    HATCHES,
    PAPER,
    SOFT,
    Picture,
    legend_beside,
    line,
    name_seeds,
    picture,
    styled,
)


@styled
def training_curves(epochs: Table) -> Picture:
    """Validation loss and accuracy per epoch: mean over seeds, shaded from minimum to maximum.

    Args:
        epochs: columns ``val_loss`` and ``val_accuracy``; ``arm`` and ``seed`` if there are
            several. A final partial epoch counts as one.
    """
    units = {"val_loss": "mean loss", "val_accuracy": "share of the samples"}
    table = frames.read(epochs, "training_curves", list(units), phase="epoch")
    figure = picture(2, width=5.4, height=3.6)
    for axis, (column, unit) in zip(figure.axes, units.items(), strict=True):
        _arms(axis, table, column)
        title = "validation " + column.removeprefix("val_")
        axis.set(title=title, xlabel="epoch", ylabel=unit)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    shaded = "mean of {} seeds, shaded from the lowest to the highest"
    name_seeds(figure, table["seed"].nunique(), shaded)
    legend_beside(figure, figure.axes[1])
    return figure


def _arms(axis: Axes, table: pd.DataFrame, column: str) -> None:
    """A line per arm: means over seeds per epoch, with a band.

    If seeds end at different epochs, the last points are means over the remaining seeds.
    """
    table = table.assign(epoch=table.groupby(["arm", "seed"]).cumcount() + 1)
    for place, arm in enumerate(table["arm"].unique()):
        passes = table[table["arm"] == arm].groupby("epoch")[column]
        means = passes.mean()
        every = max(1, len(means) // 5)
        marked = sorted({*range(place % every, len(means), every), len(means) - 1})
        # later lines are thinner, so that coinciding curves are both visible
        look = {"lw": max(1.0, 2.6 - 0.25 * place), "ms": max(3.0, 6.5 - 0.5 * place)}
        style = {**line(str(arm)), **look, "markevery": marked}
        axis.plot(means, label=arm, **style)
        band = means.index, passes.min(), passes.max()
        axis.fill_between(*band, color=style["color"], alpha=0.15, lw=0)


# in the order of a bar
_BUSY: dict[str, tuple[str, str]] = {
    "load": (COLOURS[3], HATCHES[1]),
    "scoring": (COLOURS[0], HATCHES[0]),
    "score": (COLOURS[0], HATCHES[0]),
    "gate": (COLOURS[6], HATCHES[4]),
    "forward": (COLOURS[4], HATCHES[1]),
    "backward": (COLOURS[1], HATCHES[0]),
    "optimizer": (COLOURS[5], HATCHES[2]),
    "log": (COLOURS[2], HATCHES[0]),
}
_OWN = (COLOURS[3], HATCHES[6])  # phases of custom steps
_REST: dict[str, Any] = {"color": PAPER, "hatch": HATCHES[2], "edgecolor": SOFT, "lw": 0.8}


@styled
def cost_breakdown(results: Table) -> Picture:
    """FLOPs of each arm for scoring, forward and backward: means over seeds.

    If an arm is named "dense", the hatched part of a bar is the difference to its total, and the
    number next to a bar is the ratio of the totals.

    Args:
        results: columns ``flops_scoring``, ``flops_forward``, ``flops_backward``; ``arm`` and
            ``seed`` if there are several.
    """
    parts = ["scoring", "forward", "backward"]
    table = frames.read(results, "cost_breakdown", [f"flops_{part}" for part in parts])
    arms = table.groupby("arm", sort=False)
    means = arms[[f"flops_{part}" for part in parts]].mean().set_axis(parts, axis=1)
    figure = picture(width=8.6, height=1.4 + 0.42 * len(means))
    axis = figure.axes[0]
    spent, most = _stacked(axis, means), means.sum(axis=1).max()
    if "dense" in means.index:
        total = spent["dense"]
        rest = (total - spent).clip(lower=0).rename("not spent, up to dense")
        axis.barh(range(len(means)), rest, left=spent, label=rest.name, **_REST)
        for place, flops in enumerate(spent):
            axis.text(max(flops, total), place, f" {flops / total:.2f} ×", va="center", size=9)
    axis.set(title="FLOPs of training, by part", xlim=(0, 1.12 * most))
    axis.set_xlabel("FLOPs, 2 per multiply-add")
    axis.xaxis.set_major_formatter(EngFormatter())
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _stacked(axis: Axes, parts: pd.DataFrame) -> pd.Series[float]:
    """Plot a stacked bar per row of ``parts``, the first on top; returns the ends of the bars."""
    left = pd.Series(0.0, index=parts.index)
    for part in map(str, parts):
        axis.barh(range(len(parts)), parts[part], left=left, label=part, **_bar(part))
        left = left + parts[part]
    _name_rows(axis, list(parts.index))
    return left


def _bar(part: str) -> dict[str, Any]:
    if part == "other":
        return _REST
    colour, hatch = _BUSY.get(part, _OWN)
    return {"color": colour, "hatch": hatch, "edgecolor": PAPER, "lw": 0.8}


def _name_rows(axis: Axes, names: Sequence[str]) -> None:
    axis.set_yticks(range(len(names)), list(names))
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")


@styled
def phase_breakdown(results: Table) -> Picture:
    """Time per training batch by phase: one stacked bar per arm.

    Rows of one arm and seed (such as windows of one run) are summed; seeds are averaged.

    Args:
        results: columns ``phases``, a mapping from phase to seconds; ``seconds`` of the training
            clock, of which ``other`` is outside all phases; ``training_steps``; ``arm`` and
            ``seed`` if there are several.
    """
    table = frames.read(results, "phase_breakdown", ["phases", "seconds", "training_steps"])
    parts = _milliseconds(table)
    parts = parts.loc[:, parts.max() > 0]
    figure = picture(width=8.6, height=1.7 + 0.42 * len(parts))
    axis = figure.axes[0]
    ends = _stacked(axis, parts)
    for place, end in enumerate(ends):
        axis.text(end, place, f" {end:.3g} ms", va="center", size=9)
    axis.set(title="time of a training batch, by phase", xlabel="time per batch (ms)")
    axis.set_xlim(0, 1.12 * ends.max())
    name_seeds(figure, table["seed"].nunique())
    columns = len(parts.columns) if len(parts.columns) < 8 else 5
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return figure


def _milliseconds(table: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds per batch: one row per arm, one column per phase, in the order of a bar."""
    phases = pd.DataFrame(table["phases"].tolist(), index=table.index).fillna(0.0)
    phases["other"] = (table["seconds"] - phases.sum(axis=1)).clip(lower=0)
    runs = [table["arm"], table["seed"]]
    batches = table.groupby(runs, sort=False)["training_steps"].sum()
    per_batch = phases.groupby(runs, sort=False).sum().div(batches, axis=0)
    spent = per_batch.groupby("arm", sort=False).mean() * 1e3
    own = [phase for phase in spent if phase not in (*_BUSY, "other")]
    return spent[[phase for phase in (*_BUSY, *own, "other") if phase in spent]]


@styled
def speed_bars(table: Table) -> Picture:
    """Speed of each row relative to the first row: bars with 95 % intervals.

    A row is labelled faster or slower only if its interval excludes 1.

    Args:
        table: columns ``arm``, ``speed``, ``low``, ``high`` and ``n``, one row per bar.

    Raises ``ValueError`` for a repeated arm.
    """
    needed = ["arm", "speed", "low", "high", "n"]
    rows = frames.read(table, "speed_bars", needed, key=["arm"])
    speed, low, high = (rows[name].astype(float) for name in needed[1:4])
    figure = picture(width=8.6, height=1.6 + 0.32 * len(rows))
    axis, first = figure.axes[0], rows["arm"].iloc[0]
    looks = {
        "faster": (low > 1, COLOURS[0], HATCHES[0]),
        "slower": (high < 1, PAPER, HATCHES[5]),
        "undecided: the interval contains 1": ((low <= 1) & (high >= 1), "#d0d0d0", HATCHES[0]),
    }
    for label, (those, colour, hatch) in looks.items():
        if those.any():
            bars: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": SOFT}
            axis.barh(np.flatnonzero(those), speed[those], label=label, **bars)
    ends = [speed - low, high - speed]
    axis.errorbar(speed, range(len(rows)), xerr=ends, fmt="none", ecolor=SOFT, capsize=3)
    axis.axvline(1, color=SOFT, ls=(0, (5, 3)), lw=1.0)
    _name_rows(axis, list(rows["arm"]))
    axis.set(title=f"speed relative to {first}, with 95 % intervals")
    axis.set_xlabel(f"times as fast as {first} (n = {rows['n'].min():g})")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
