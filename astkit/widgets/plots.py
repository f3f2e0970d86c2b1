"""Static figures from tidy tables; legible in grey, on white and on dark pages.

Each takes a table as a frame, as a list of mappings or as the path of a JSON Lines file, and
returns a `Picture`, a `matplotlib.figure.Figure` that belongs to no global state. What a gate
decided is drawn in `astkit.widgets.gate_plots`, where time went in `astkit.widgets.profile_plots`;
all pictures can be had from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullLocator

from astkit.widgets import frames
from astkit.widgets.frames import Table
from astkit.widgets.gate_plots import (
    class_activation,
    name_seeds,
    score_heatmap,
    step_response,
    threshold_and_rate,
)
from astkit.widgets.profile_plots import phase_breakdown, speed_bars, throughput_curves
from astkit.widgets.style import (
    COLOURS,
    HATCHES,
    PAPER,
    SOFT,
    Picture,
    line,
    picture,
    styled,
)

__all__ = [
    "Picture",
    "accuracy_against_cost",
    "class_activation",
    "cost_breakdown",
    "phase_breakdown",
    "score_heatmap",
    "speed_bars",
    "step_response",
    "threshold_and_rate",
    "throughput_curves",
    "training_curves",
]

_COSTS = {"epoch": "epoch", "flops": "training FLOPs", "seconds": "training seconds"}


@styled
def training_curves(
    epochs: Table,
    by: Literal["epoch", "flops", "seconds"] = "epoch",
    arms: Sequence[str] | None = None,
) -> Picture:
    """Validation loss and accuracy after each epoch: mean over seeds, lowest to highest shaded.

    Args:
        epochs: columns ``val_loss``, ``val_accuracy`` and the one of ``by``; ``arm`` and ``seed``
            where there are several. A pass that the budget cut short counts as an epoch.
        by: what to draw them against.
        arms: which to draw, in this order; all by default.

    Raises ``ValueError`` for a missing column, no rows, an unknown arm or ``by``.
    """
    if by not in _COSTS:
        raise ValueError(f"by is {by!r}: choose one of {', '.join(_COSTS)}")
    costs = [] if by == "epoch" else [by]
    needed = ["val_loss", "val_accuracy", *costs]
    table = frames.read(epochs, "training_curves", needed, phase="epoch")
    figure = picture(2, height=3.8)
    for place, arm in _placed(table, arms):
        passes = frames.by_pass(table[table["arm"] == arm], needed)
        x = passes.index if by == "epoch" else passes[by]["mean"]
        for axis, column in zip(figure.axes, needed, strict=False):
            axis.plot(x, passes[column]["mean"], label=arm, **_arm(place, len(x)))
            band = passes[column]["min"], passes[column]["max"]
            axis.fill_between(x, *band, color=COLOURS[place % len(COLOURS)], alpha=0.15, lw=0)
    for axis, what in zip(figure.axes, ("loss", "accuracy"), strict=True):
        axis.set(xlabel=_COSTS[by], title=f"validation {what}")
        if by == "flops":
            axis.xaxis.set_major_formatter(EngFormatter())
    name_seeds(figure, table, "shaded from the lowest to the highest")
    _legend_below(figure)
    return figure


def _placed(table: pd.DataFrame, arms: Sequence[str] | None) -> list[tuple[int, str]]:
    """The arms to draw, each with its place in the table: it keeps its colour in every picture."""
    every = frames.only(table, "arm", None)
    return [(every.index(arm), arm) for arm in frames.only(table, "arm", arms)]


def _arm(place: int, passes: int) -> dict[str, Any]:
    """The line of an arm; later ones are thinner, so that twins on one curve both show."""
    every = max(1, passes // 5)
    marked = sorted({*range(place % every, passes, every), passes - 1})
    weight = {"lw": max(1.0, 2.6 - 0.25 * place), "ms": max(3.0, 6.5 - 0.5 * place)}
    return {**line(place), **weight, "markevery": marked}


def _legend_below(figure: Picture, columns: int = 3) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if max(map(len, labels), default=0) > 30:  # three of them are wider than the figure
        columns = min(columns, 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


@styled
def accuracy_against_cost(epochs: Table, arms: Sequence[str] | None = None) -> Picture:
    """Validation accuracy against training seconds and against FLOPs, mean over seeds.

    Where accuracies reach from below 0.7 to above 0.9 the axis is stretched towards 1 (equal steps
    are equal factors of the error), since that is where the arms differ.

    Args:
        epochs: columns ``seconds``, ``flops``, ``val_accuracy``; ``arm`` and ``seed`` where there
            are several.
        arms: which to draw, in this order; all by default.

    Raises ``ValueError`` for a missing column, no rows or an unknown arm.
    """
    needed = ["seconds", "flops", "val_accuracy"]
    table = frames.read(epochs, "accuracy_against_cost", needed, phase="epoch")
    figure = picture(2, width=5.2, height=4.8)
    for place, arm in _placed(table, arms):
        passes = frames.by_pass(table[table["arm"] == arm], needed)
        for axis, cost in zip(figure.axes, needed, strict=False):
            x, y = passes[cost]["mean"], passes["val_accuracy"]["mean"]
            axis.plot(x, y, label=arm, **_arm(place, len(x)))
    for axis, cost in zip(figure.axes, needed, strict=False):
        axis.set(xscale="log", xlabel=_COSTS[cost], ylabel="validation accuracy")
        axis.set_title(f"accuracy against {_COSTS[cost].split()[1]}")
        _stretch(axis)
    name_seeds(figure, table)
    _legend_below(figure)
    return figure


def _stretch(axis: Axes) -> None:
    """Draw accuracies on a logarithmic axis of the error if they span both low and high ones."""
    low, high = axis.dataLim.intervaly
    if not (low < 0.7 and high > 0.9):
        return
    axis.set_yscale("function", functions=(_log_error, lambda place: 1.01 - 10.0**-place))
    axis.yaxis.set_major_locator(FixedLocator([0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}"))
    axis.set_ylim(max(0.0, low - 0.05), min(1.0, high + 0.1 * (1.01 - high)))
    axis.set_ylabel("validation accuracy, stretched towards 1")


def _log_error(accuracy: Any) -> Any:
    # an error of zero has no logarithm, so all are taken to be larger by a hundredth
    return -np.log10(np.clip(1.01 - np.asarray(accuracy), 1e-9, None))


_PARTS = {
    "scoring": (COLOURS[0], HATCHES[0]),
    "forward": (COLOURS[4], HATCHES[1]),
    "backward": (COLOURS[1], HATCHES[0]),
}


@styled
def cost_breakdown(
    results: Table, arms: Sequence[str] | None = None, control: str | None = "dense"
) -> Picture:
    """What each arm spent: FLOPs on scoring, forward and backward, and joules where measured.

    The empty part of a bar is what the arm did not spend of ``control``'s total; the number behind
    it is the arm's total over ``control``'s. All are means over seeds.

    Args:
        results: columns ``flops_scoring``, ``flops_forward``, ``flops_backward``; ``arm`` and
            ``seed`` where there are several; ``joules`` where a counter was read, and
            ``joules_reason`` where it could not be.
        arms: which to draw, in this order; all by default.
        control: the arm to compare with; ``None`` to compare with none.

    Raises ``ValueError`` for a missing column, no rows, an unknown arm or control.
    """
    needed = [f"flops_{part}" for part in _PARTS]
    table = frames.read(results, "cost_breakdown", needed)
    names = frames.only(table, "arm", arms)
    frames.only(table, "arm", [control] if control is not None else None)
    means = table.groupby("arm")[needed].mean()
    joules = pd.to_numeric(table["joules"]) if "joules" in table else pd.Series(dtype=float)
    measured = bool(joules.notna().any())
    figure = picture(1 + measured, width=6.4 if measured else 8.6, height=1.4 + 0.42 * len(names))
    total = None if control is None else float(means.loc[[control]].sum(axis=1).iloc[0])
    _flops(figure.axes[0], means.loc[names], control, total)
    if measured:
        _joules(figure.axes[1], joules.groupby(table["arm"]).mean().reindex(names))
    else:
        figure.suptitle(f"joules not measured: {_reason(table)}", size=10)
    _legend_below(figure, columns=4)
    return figure


def _flops(axis: Axes, means: pd.DataFrame, control: str | None, total: float | None) -> None:
    """Stacked bars of the parts of each row of ``means``, up to the control's ``total``."""
    places, left = range(len(means)), np.zeros(len(means))
    for part, (colour, hatch) in _PARTS.items():
        width = means[f"flops_{part}"].to_numpy()
        style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": PAPER, "lw": 0.8}
        axis.barh(places, width, left=left, label=part, **style)
        left = left + width
    if total is not None:
        rest = np.clip(total - left, 0, None)
        style = {"color": PAPER, "hatch": HATCHES[2], "edgecolor": SOFT, "lw": 0.8}
        axis.barh(places, rest, left=left, label=f"not spent, up to {control}", **style)
        for place, spent in zip(places, left, strict=True):
            share = f" {spent / total:.2f} ×"
            axis.text(max(spent, total), place, share, va="center", size=9)
        axis.margins(x=0.12)
    axis.set(title="training FLOPs", xlabel="FLOPs, 2 per multiply-add")
    axis.xaxis.set_major_formatter(EngFormatter())
    _name_rows(axis, means.index)


def _joules(axis: Axes, joules: pd.Series[float]) -> None:
    axis.barh(range(len(joules)), joules.fillna(0.0), color=COLOURS[3], label="joules")
    for place, value in enumerate(joules):
        text = " not measured" if np.isnan(value) else f" {value:.3g} J"
        axis.text(0 if np.isnan(value) else value, place, text, va="center", size=9)
    axis.margins(x=0.2)
    axis.set(title="energy, from a counter", xlabel="joules")
    _name_rows(axis, joules.index)
    axis.tick_params(labelleft=False)  # as in the panel beside it


def _name_rows(axis: Axes, names: pd.Index[str]) -> None:
    axis.set_yticks(range(len(names)), list(names))
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")


def _reason(table: pd.DataFrame) -> str:
    if "joules_reason" in table and table["joules_reason"].notna().any():
        return str(table["joules_reason"].dropna().iloc[0])
    return "the results hold none"
