"""Figures from tidy tables; legible in greyscale, on white and on dark pages.

All functions take a data frame or a list of mappings and return a `Picture`, a
`matplotlib.figure.Figure` outside pyplot. Figures of gates are defined in
`astkit.widgets.gate_plots`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from astkit.widgets.style import (
    COLOURS,
    HATCHES,
    INK,
    PAPER,
    SOFT,
    Picture,
    Table,
    picture,
    styled,
)

PHASES = ("load", "score", "gate", "forward", "backward", "optimizer", "log")
"""Parts of a bar in their order, each with a colour of its own."""
_REST: dict[str, Any] = {"color": PAPER, "hatch": HATCHES[2], "edgecolor": SOFT, "lw": 0.8}


@styled
def cost_breakdown(results: Table) -> Picture:
    """FLOPs of an epoch of each arm for scoring, forward and backward: means over seeds.

    If a method is named "dense", the number next to a bar is the ratio to its total.

    Args:
        results: columns ``arm``, ``flops_scoring``, ``flops_forward``, ``flops_backward``;
            ``seconds`` of an epoch for a second panel, with whiskers from the fastest seed to the
            slowest.
    """
    columns = {"flops_scoring": "score", "flops_forward": "forward", "flops_backward": "backward"}
    table = pd.DataFrame(results)
    means = table.groupby("arm", sort=False)[list(columns)].mean().rename(columns=columns)
    panels = 1 + ("seconds" in table)
    figure = picture(panels, width=9.6 / panels, height=1.4 + 0.42 * len(means))
    axis = figure.axes[0]
    _name_ratios(axis, _stacked(axis, means))
    axis.set(title="FLOPs of an epoch, by part", xlabel="FLOPs, 2 per multiply-add")
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    for time in figure.axes[1:]:
        seconds = table.groupby("arm", sort=False)["seconds"].agg(["mean", "min", "max"])
        low, high = seconds["mean"] - seconds["min"], seconds["max"] - seconds["mean"]
        look: dict[str, Any] = {"color": "#c8c8c8", "ecolor": SOFT, "capsize": 3}
        time.barh(range(len(seconds)), seconds["mean"], xerr=[low, high], **look)
        _name_rows(time, [""] * len(seconds))
        _name_ratios(time, seconds["mean"], seconds["max"])
        time.set(title="seconds of an epoch, fastest to slowest seed", xlabel="time (s)")
    return figure


def _name_ratios(
    axis: Axes, values: pd.Series[float], ends: pd.Series[float] | None = None
) -> None:
    """Write the ratio of each bar to the one of dense training behind it."""
    ends = values if ends is None else ends
    axis.set_xlim(0, 1.35 * ends.max())
    axis.xaxis.set_major_locator(MaxNLocator(5))
    if "dense" in values.index:
        for place, (value, end) in enumerate(zip(values, ends, strict=True)):
            axis.text(end, place, f"  {value / values['dense']:.2f} × dense", va="center", size=9)


def _stacked(axis: Axes, parts: pd.DataFrame) -> pd.Series[float]:
    """Plot a stacked bar per row of ``parts``, the first on top; returns the ends of the bars."""
    left = pd.Series(0.0, index=parts.index)
    for part in map(str, parts):
        look = _REST
        if part != "other":
            place = PHASES.index(part)
            look = {"color": COLOURS[place], "hatch": HATCHES[place], "lw": 0.8, "edgecolor": PAPER}
        axis.barh(range(len(parts)), parts[part], left=left, label=part, **look)
        left = left + parts[part]
    _name_rows(axis, parts.index)
    return left


def _name_rows(axis: Axes, names: Any) -> None:
    axis.set_yticks(range(len(names)), list(names))
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")


@styled
def phase_breakdown(results: Table) -> Picture:
    """Time per training batch by phase: one stacked bar per row.

    Args:
        results: columns ``arm``; ``phases``, a mapping from phase to seconds; ``seconds`` of the
            training clock, of which ``other`` is outside of `PHASES`; ``training_steps``.
    """
    table = pd.DataFrame(results).set_index("arm")
    phases = pd.DataFrame(table["phases"].tolist(), index=table.index, columns=list(PHASES))
    phases = phases.dropna(axis=1, how="all").fillna(0.0)
    phases["other"] = (table["seconds"] - phases.sum(axis=1)).clip(lower=0)
    parts = 1e3 * phases.div(table["training_steps"], axis=0)
    figure = picture(width=8.6, height=1.7 + 0.42 * len(parts))
    axis = figure.axes[0]
    ends = _stacked(axis, parts)
    for place, end in enumerate(ends):
        axis.text(end, place, f" {end:,.{'0f' if end >= 100 else '3g'}} ms", va="center", size=9)
    axis.set(title="time of a training batch, by phase", xlabel="time per batch (ms)")
    axis.set_xlim(0, 1.12 * ends.max())
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


@styled
def speed_bars(table: Table) -> Picture:
    """Speed of each row relative to the first row: bars with 95 % intervals, the fastest on top.

    A row is labelled faster or slower only if its interval excludes 1.

    Args:
        table: columns ``arm``, ``speed``, ``low``, ``high`` and ``n``; the first row is the
            reference, which is drawn as a line.
    """
    rows = pd.DataFrame(table)
    first = rows["arm"].iloc[0]
    rows = rows[1:].sort_values("speed", ascending=False)
    speed, low, high = (rows[name].astype(float) for name in ("speed", "low", "high"))
    figure = picture(width=8.6, height=1.6 + 0.32 * len(rows))
    axis = figure.axes[0]
    looks = {
        "faster": (low > 1, SOFT, HATCHES[0]),
        "slower": (high < 1, PAPER, HATCHES[5]),
        "cannot tell: the interval contains 1": ((low <= 1) & (high >= 1), "#d0d0d0", HATCHES[0]),
    }
    for label, (those, colour, hatch) in looks.items():
        if those.any():
            bars: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": INK}
            axis.barh(np.flatnonzero(those), speed[those], label=label, **bars)
    ends = [speed - low, high - speed]
    axis.errorbar(speed, range(len(rows)), xerr=ends, fmt="none", ecolor=INK, capsize=3)
    axis.axvline(1, color=INK, ls=(0, (5, 3)), lw=1.2, label=str(first))
    _name_rows(axis, rows["arm"])
    axis.set(title=f"speed relative to {first}, with 95 % intervals")
    axis.set_xlabel(f"times as fast as {first} (n = {rows['n'].min():g})")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
