"""Figures of notebooks 04 and 05: curves, and a circuit that learns."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from astkit.systems.automaton import AutomatonTrainer
from astkit.systems.automaton.plots import coloured
from astkit.systems.automaton.tasks import GENERATIONS
from astkit.widgets.style import (
    COLOURS,
    INK,
    SELECTED,
    SOFT,
    Film,
    Picture,
    legend_outside,
    line,
    picture,
    styled,
)

FRAMES = 24  # of `film_of_learning`
PALE = "#BFC5CC"  # lines that others stand before


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


class Learning(dict[int, NDArray[np.uint8]]):
    """An observer: the pictures of a circuit that learns, by its updates.

    Args:
        trainer: of the automaton; it is observed from now on.
    """

    def __init__(self, trainer: AutomatonTrainer) -> None:
        self.trainer = trainer
        true = trainer.task.example()[2]
        self.true = coloured(true, true)
        self[trainer.step] = trainer.picture()
        trainer.reports.add(self)

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Keep the picture after each pass."""
        if phase == "epoch":
            self[step] = self.trainer.picture()

    def close(self) -> None:
        """Nothing is left to do."""


@styled
def circuit_learns(seen: Learning, history: pd.DataFrame) -> Picture:
    """What a circuit of one seed made of a grid after so many updates.

    Below, the share of neighbourhoods that are answered wrongly; other seeds
    are pale.

    Args:
        seen: pictures, of which some are shown.
        history: columns ``seed``, the one of ``seen`` first, ``step`` and
            ``val_accuracy``.
    """
    parts = [part * max(seen) for part in (1 / 30, 1 / 10, 1 / 4, 1 / 2, 1)]
    shown = sorted({min(seen, key=lambda n: abs(n - at)) for at in parts})
    panels = [f"{step:,} updates" for step in shown] + ["Life itself"]
    figure = picture(height=3.9)
    figure.clear()
    mosaic = [panels, ["curve"] * len(panels)]
    axes = figure.subplot_mosaic(mosaic, height_ratios=[5, 4])
    for step, name in zip(shown, panels, strict=False):
        _cells(axes[name], name, seen[step], seen.true)
        axes["curve"].axvline(step, color=SOFT, lw=0.8, ls=":")
    _cells(axes["Life itself"], "Life itself", seen.true)
    words = "red: should be dead,\npale red: alive"
    axes["Life itself"].set_xlabel(words, size=8, color=COLOURS[0])
    _wrong_by_update(axes["curve"], history)
    axes["curve"].set_title(
        "% of the 512 neighbourhoods answered wrongly; pale: other seeds"
    )
    figure.headline(
        "A circuit of logic gates learns the Game of Life:"
        f" generation {GENERATIONS} of the same start"
    )
    return figure


def film_of_learning(seen: Learning, history: pd.DataFrame) -> Film:
    """The pictures of `circuit_learns` one after another if they differ."""
    steps = [
        step
        for before, step in pairwise([-1, *sorted(seen)])
        if before < 0 or (seen[before] != seen[step]).any()
    ]
    few = {*steps[:: -(-len(steps) // FRAMES)], max(seen)}
    return Film((_frame(step, seen, history) for step in sorted(few)), fps=6)


@styled
def _frame(step: int, seen: Learning, history: pd.DataFrame) -> Picture:
    figure = picture(3, height=2.7)
    circuit, life, curve = figure.axes
    _cells(circuit, f"after {step:,} updates", seen[step], seen.true)
    _cells(life, "Life itself", seen.true)
    _wrong_by_update(curve, history)
    curve.axvline(step, color=COLOURS[0], lw=1.2)
    curve.xaxis.set_major_locator(MaxNLocator(3))
    return figure


def _cells(
    axis: Axes,
    title: str,
    cells: NDArray[Any],
    true: NDArray[Any] | None = None,
) -> None:
    """A grid in colours; below, how many differ from the ``true`` ones."""
    axis.imshow(cells, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(True)
    axis.set_title(title, size=9)
    if true is not None:
        wrong = int((cells != true).any(-1).sum())
        words = f"{wrong:,} wrong" if wrong else "all right"
        colour = COLOURS[0] if wrong else SELECTED
        axis.set_xlabel(words, color=colour, weight="bold")


def _wrong_by_update(axis: Axes, history: pd.DataFrame) -> None:
    """Percent of neighbourhoods answered wrongly: a line a seed."""
    first = history["seed"].iloc[0]
    for seed, run in reversed(list(history.groupby("seed", sort=False))):
        look = {"color": INK, "lw": 1.8} if seed == first else {"color": PALE}
        axis.plot(run["step"], 100 * (1 - run["val_accuracy"]), **look)
    axis.set_title("% answered wrongly", size=9)
    axis.set(xlabel="updates", ylim=0, xlim=(0, history["step"].max()))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


@styled
def soft_and_hard(history: pd.DataFrame) -> Picture:
    """Loss of the soft automaton and wrong cells of the hard one by update.

    A line a seed, red where cells are wrong at the end.

    Args:
        history: columns ``seed``, ``step``, ``val_loss`` and ``val_wrong``.
    """
    figure = picture(2, height=2.8)
    losses, wrong = figure.axes
    for _, run in history.groupby("seed"):
        fails = run["val_wrong"].iloc[-1] > 0
        look = {"color": COLOURS[0] if fails else SELECTED, "lw": 1.2}
        losses.plot(run["step"], run["val_loss"], **look)
        wrong.plot(run["step"], run["val_wrong"], **look)
    losses.set(title="soft: loss per sample", xlabel="updates", yscale="log")
    wrong.set(title="hard: cells wrong", xlabel="updates", ylim=0)
    failed = (history.groupby("seed")["val_wrong"].last() > 0).sum()
    seeds = history["seed"].nunique()
    figure.headline(
        f"{seeds - failed} of {seeds} end all right, the red ones not"
    )
    return figure
