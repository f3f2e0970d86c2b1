"""Static figures from tidy tables; legible in grey, on white and on dark pages.

Each returns a `Picture`, a `matplotlib.figure.Figure` that belongs to no global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours tell apart for the colour-blind, dashes and markers without colour
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class Picture(Figure):
    """A figure that a notebook shows by itself, although pyplot knows nothing of it."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def _figure(columns: int, height: float = 3.4) -> tuple[Picture, list[Axes]]:
    figure = Picture(figsize=(4.6 * columns, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, columns, i + 1) for i in range(columns)]
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def threshold_and_rate(steps: pd.DataFrame, target: float, window: int = 20) -> Picture:
    """Threshold and activation rate of a gated run by step, one thin line a seed.

    Args:
        steps: columns ``seed``, ``step``, ``threshold``, ``rate``.
        target: the set point, drawn dashed.
        window: batches that the thick line of the rate averages over.
    """
    figure, (left, right) = _figure(2)
    for i, (_, run) in enumerate(steps.groupby("seed")):
        colour = _COLOURS[i % len(_COLOURS)]
        left.plot(
            run["step"], run["threshold"], color=colour, lw=1.2, label=f"seed {run['seed'].iloc[0]}"
        )
        right.plot(run["step"], run["rate"], color=colour, lw=0.6, alpha=0.35)
        right.plot(run["step"], run["rate"].rolling(window).mean(), color=colour, lw=1.6)
    left.set(title="threshold", xlabel="step", ylabel="score")
    if (steps["threshold"] > 0).all() and steps["threshold"].max() > 20 * steps["threshold"].min():
        left.set_yscale("log")
    right.axhline(target, color="#555555", ls="--", lw=1.2, label=f"set point {target:g}")
    right.set(title=f"activation rate, and its mean of {window} batches", xlabel="step", ylim=0)
    left.legend(frameon=False)
    right.legend(frameon=False)
    return figure


def accuracy_against_cost(epochs: pd.DataFrame, arms: Sequence[str] | None = None) -> Picture:
    """Validation accuracy against training seconds and against FLOPs, mean over seeds.

    Args:
        epochs: columns ``arm``, ``seed``, ``epoch``, ``seconds``, ``flops``, ``val_accuracy``.
        arms: which to draw, in this order; all by default.
    """
    figure, axes = _figure(2, height=4.2)
    names = list(arms or epochs["arm"].unique())
    for i, name in enumerate(names):
        runs = epochs[epochs["arm"] == name].copy()
        # a pass that the budget cut short has its own number; seeds end at different ones
        runs["pass"] = runs.groupby("seed").cumcount()
        mean = runs.groupby("pass")[["seconds", "flops", "val_accuracy"]].mean()
        style: dict[str, Any] = {
            "color": _COLOURS[i % len(_COLOURS)],
            "ls": _DASHES[i % len(_DASHES)],
            "marker": _MARKERS[i % len(_MARKERS)],
        }
        for axis, cost in zip(axes, ("seconds", "flops"), strict=True):
            axis.plot(mean[cost], mean["val_accuracy"], lw=1.4, ms=3.5, label=name, **style)
    for axis, cost in zip(axes, ("training seconds", "training FLOPs"), strict=True):
        axis.set(xscale="log", xlabel=cost, ylabel="validation accuracy")
        axis.set_title(f"accuracy against {cost.split()[1]}")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    return figure
