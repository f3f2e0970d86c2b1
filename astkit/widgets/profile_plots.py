"""Pictures of where the time of a run went, and of how fast it went along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, Formatter, PercentFormatter

from astkit.widgets import frames
from astkit.widgets.frames import Table
from astkit.widgets.gate_plots import name_seeds
from astkit.widgets.style import COLOURS, HATCHES, PAPER, SOFT, Picture, line, picture, styled

_BUSY: dict[str, tuple[str, str]] = {
    "load": (COLOURS[3], HATCHES[1]),
    "score": (COLOURS[0], HATCHES[0]),
    "gate": (COLOURS[6], HATCHES[4]),
    "train": (COLOURS[1], HATCHES[5]),
    "forward": (COLOURS[4], HATCHES[1]),
    "backward": (COLOURS[1], HATCHES[0]),
    "optimizer": (COLOURS[5], HATCHES[2]),
    "log": (COLOURS[2], HATCHES[0]),
}
_OWN = (COLOURS[3], HATCHES[6])  # a phase that only somebody's own step has
_IDLE = {"other": HATCHES[2], "draw": HATCHES[5]}
PHASES = (*_BUSY, *_IDLE)
"""Phases that have a look of their own, in the order of a bar.

``other`` is time of the training clock in no phase, ``draw`` time outside of every clock, which
observers such as a live board took.
"""


@styled
def phase_breakdown(
    results: Table,
    by: Literal["batch", "share"] = "batch",
    arms: Sequence[str] | None = None,
) -> Picture:
    """Where the time of a batch went in each arm: one bar an arm, stacked by phase.

    Rows of one arm and seed (windows of one run, say) are added up; seeds are averaged. A part too
    small to see is in the bar all the same; parts of nothing are left out.

    Args:
        results: columns ``phases``, a mapping from phase to seconds; ``seconds`` of the training
            clock; ``training_steps``; ``arm`` and ``seed`` where there are several. With
            ``wall_seconds`` and ``evaluation_seconds`` in them the bar ends with what lies outside
            of both clocks. ``Throughput.rows`` and results of runs have these.
        by: "batch" for milliseconds a batch, "share" for shares of the bar.
        arms: which to draw, in this order; all by default.

    Raises ``ValueError`` for a missing column, no rows, an unknown arm or ``by``.
    """
    if by not in ("batch", "share"):
        raise ValueError(f"by is {by!r}: choose batch or share")
    table = frames.read(results, "phase_breakdown", ["phases", "seconds", "training_steps"])
    names = frames.only(table, "arm", arms)
    parts = _milliseconds(table).loc[names]
    parts = parts.loc[:, parts.max() > 0]
    totals = parts.sum(axis=1)
    if by == "share":
        parts = parts.div(totals, axis=0)
    figure = picture(width=8.6, height=1.7 + 0.42 * len(names))
    axis, left = figure.axes[0], pd.Series(0.0, index=parts.index)
    for phase in parts:
        axis.barh(range(len(names)), parts[phase], left=left, label=phase, **_look(str(phase)))
        left = left + parts[phase]
    for place, (end, total) in enumerate(zip(left, totals, strict=True)):
        axis.text(end, place, f" {total:.3g} ms", va="center", size=9)
    axis.margins(x=0.12)
    _bars(axis, names, by)
    name_seeds(figure, table)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _milliseconds(table: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds a batch, arms down and phases across in the order of a bar; 0 where absent."""
    phases = pd.DataFrame(table["phases"].tolist(), index=table.index).fillna(0.0)
    phases["other"] = (table["seconds"] - phases.sum(axis=1)).clip(lower=0)
    if {"wall_seconds", "evaluation_seconds"} <= set(table):
        clocks = table["seconds"] + table["evaluation_seconds"]
        phases["draw"] = (table["wall_seconds"] - clocks).clip(lower=0)
    runs = [table["arm"], table["seed"]]
    batches = table.groupby(runs)["training_steps"].sum()
    spent = phases.groupby(runs).sum().div(batches, axis=0).groupby("arm").mean() * 1e3
    known = [phase for phase in PHASES if phase in spent]
    own = [phase for phase in spent if phase not in known]
    busy = [phase for phase in known if phase not in _IDLE]
    return spent[[*busy, *own, *(phase for phase in known if phase in _IDLE)]]


def _look(phase: str) -> dict[str, Any]:
    if phase in _IDLE:
        return {"color": PAPER, "hatch": _IDLE[phase], "edgecolor": SOFT, "lw": 0.8}
    colour, hatch = _BUSY.get(phase, _OWN)
    return {"color": colour, "hatch": hatch, "edgecolor": PAPER, "lw": 0.8}


def _bars(axis: Axes, names: Sequence[str], by: str) -> None:
    axis.set_yticks(range(len(names)), list(names))
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set(title="time of a training batch", xlabel="milliseconds a batch")
    if by == "share":
        axis.set_xlabel("share of the time, whose sum stands behind the bar")
        axis.xaxis.set_major_formatter(PercentFormatter(1))


@styled
def throughput_curves(series: Table, arms: Sequence[str] | None = None) -> Picture:
    """Samples a second, utilisation and peak memory by step: the mean over seeds for each arm.

    Args:
        series: columns ``step``, ``seen_per_second``, ``trained_per_second``, ``utilisation``,
            ``cpu_utilisation``, as ``Throughput.rows`` has them; ``gpu_utilisation`` and
            ``memory_bytes`` where they were measured; ``arm`` and ``seed`` where there are several.
        arms: which to draw, in this order; all by default.

    Raises ``ValueError`` for a missing column, no rows, an unknown arm, or the same step twice for
    one arm and seed.
    """
    needed = ["step", *list(_CURVES)[:4]]
    table = frames.read(series, "throughput_curves", needed, key=["arm", "step"])
    there = frames.only(table, "arm", None)
    measured = [name for name in _CURVES if name in table and table[name].notna().any()]
    figure = picture(2, -(-len(measured) // 2), width=5.2, height=2.9)
    for axis, name in zip(figure.axes, measured, strict=False):
        for arm in frames.only(table, "arm", arms):
            runs = table[table["arm"] == arm].astype({name: float})
            mean = runs.groupby("step")[name].mean()
            style = line(there.index(arm))
            axis.plot(mean.index, mean, label=arm, lw=1.4, ms=4, **style)
        axis.set(title=_CURVES[name][0], xlabel="step", ylim=(0, 1.08 * axis.dataLim.y1))
        axis.yaxis.set_major_formatter(_CURVES[name][1]())
    for empty in figure.axes[len(measured) :]:
        empty.set_axis_off()
    name_seeds(figure, table)
    if len(there) > 1:
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=3)
    return figure


_CURVES: dict[str, tuple[str, Callable[[], Formatter]]] = {
    "seen_per_second": ("samples seen a second of training", EngFormatter),
    "trained_per_second": ("samples trained on a second of training", EngFormatter),
    "utilisation": ("training clock, share of wall time", lambda: PercentFormatter(1)),
    "cpu_utilisation": ("CPU utilisation", lambda: PercentFormatter(1)),
    "gpu_utilisation": ("GPU utilisation", lambda: PercentFormatter(1)),
    "memory_bytes": ("peak memory", lambda: EngFormatter("B")),
}


@styled
def speed_bars(table: Table) -> Picture:
    """How many times as fast as the first row each row is: bars with their 95 % intervals.

    Args:
        table: columns ``arm``, ``speed``, ``low``, ``high`` and ``n``, one row a bar.

    Raises ``ValueError`` for a missing column, no rows, or an arm that comes twice.
    """
    needed = ["arm", "speed", "low", "high", "n"]
    rows = frames.read(table, "speed_bars", needed, key=["arm"])
    figure = picture(width=8.6, height=1.2 + 0.32 * len(rows))
    axis, speed = figure.axes[0], rows["speed"].astype(float)
    spread = [speed - rows["low"].astype(float), rows["high"].astype(float) - speed]
    faster = (speed >= 1).tolist()
    looks = {True: (COLOURS[0], HATCHES[0]), False: (PAPER, HATCHES[5])}
    bars = axis.barh(range(len(rows)), speed, xerr=spread, capsize=3, edgecolor=SOFT)
    for bar, wins in zip(bars, faster, strict=True):
        bar.set(color=looks[wins][0], hatch=looks[wins][1], edgecolor=SOFT)
    axis.axvline(1, color=SOFT, ls=(0, (5, 3)), lw=1.0)
    axis.set_yticks(range(len(rows)), rows["arm"])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    first, rounds = rows["arm"].iloc[0], int(rows["n"].min())
    axis.set(title=f"speed beside {first}", xlabel=f"times as fast, n = {rounds}")
    return figure
