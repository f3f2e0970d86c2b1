"""Figures of notebook 05: a circuit that learns."""

from __future__ import annotations

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
    picture,
    styled,
)

FRAMES = 24  # of `film_of_learning`
PALE = "#BFC5CC"  # lines that others stand before


class Learning(dict[int, NDArray[np.uint8]]):
    """An observer: the pictures of a circuit that learns, by its updates."""

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
    """What a circuit made of a grid after so many updates, wrong cells red.

    ``history``: columns ``seed``, the one that is seen first, ``step`` and
    ``val_accuracy``; other seeds are pale.
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
    """The pictures of `circuit_learns`, one after another."""
    steps = sorted(seen)
    few = sorted({*steps[:: -(-len(steps) // FRAMES)], steps[-1]})
    return Film((_frame(step, seen, history) for step in few), fps=6)


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
    """Loss of soft automata and wrong cells of hard ones: a line a seed.

    ``history``: columns ``seed``, ``step``, ``val_loss`` and ``val_wrong``.
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
