"""Figures that only notebooks draw."""

from __future__ import annotations

from itertools import pairwise
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from astkit.systems.automaton import AutomatonTrainer
from astkit.systems.automaton.plots import coloured
from astkit.systems.automaton.tasks import GENERATIONS
from astkit.widgets.comparison_plots import bar, label_rows
from astkit.widgets.style import (
    COLOURS,
    INK,
    SELECTED,
    SOFT,
    Film,
    Picture,
    line,
    picture,
    styled,
)

FRAMES = 24  # of `film_of_learning`
FRAMES = 24  # of `film_of_learning`
CORNER: Any = {
    **{"xy": (0.98, 0.95), "xycoords": "axes fraction", "color": COLOURS[0]},
    **{"ha": "right", "va": "top"},
}
PALE = "#BFC5CC"  # lines that others stand before
NAMED = 4  # points of `forecasts` that have their names
NEAR = 10.0  # points or percent up to which axes are linear
SHOWN = (-0.6, 1.25)  # ends of the axis of `shares`
LABELS = {
    "dense+target": "dense + validation rows",
    "random@infobatch": "random at the rate of infobatch",
}


@styled
def shares(rows: pd.DataFrame) -> Picture:
    """Gain of each method as a share of the oracle's: dense training is at 0.

    What lies outside of `SHOWN` is an arrow with its number at the edge.

    Args:
        rows: columns ``condition``, ``policy``, ``share``, ``share_low`` and
            ``share_high`` (``None`` if undefined), ``gain``, ``unit`` and
            ``n``; "oracle" has a ``gain`` alone.
    """
    possible = rows[rows["policy"] == "oracle"].set_index("condition")
    rows = rows[(rows["policy"] != "oracle") & rows["share"].notna()]
    conditions = list(rows["condition"].unique())
    policies = list(rows["policy"].unique())
    figure = picture(height=1.3 + 0.62 * len(conditions))
    axis = figure.axes[0]
    axis.axvline(0, color=INK, lw=1.2)
    axis.axvline(1, color=INK, lw=1.2, ls="--")
    low, high = SHOWN
    reach = 0.32 * (len(policies) > 1)
    spread = np.linspace(-reach, reach, len(policies))
    for policy, offset in zip(policies, spread, strict=True):
        look: dict[str, Any] = {**line(policy), "linestyle": "none"}
        look |= {"ms": 6, "lw": 1.6}
        axis.plot([], [], **look, label=LABELS.get(policy, policy))
        for row in rows[rows["policy"] == policy].to_dict("records"):
            height = conditions.index(row["condition"]) + offset
            values = (row["share"], row["share_low"], row["share_high"])
            bar(axis, height, values, SHOWN, look)
    axis.set_xlim(low - 0.05, high + 0.05)
    gained = possible.reindex(conditions)
    amounts = [
        f"{gain:.1f} points higher"
        if unit == "points"
        else f"loss {gain:.1f} % lower"
        for gain, unit in zip(gained["gain"], gained["unit"], strict=True)
    ]
    label_rows(axis, conditions, amounts)
    ends = ["-0.5", "0\ndense training", "0.5", "1\noracle"]
    axis.set_xticks([-0.5, 0, 0.5, 1], ends)
    axis.set_title(
        "share of what an oracle gains; on the right: what it gains"
    )
    seeds = int(rows["n"].min())
    axis.set_xlabel(f"{seeds} seeds, same FLOPs, 95 % intervals")
    figure.legend(loc="outside lower center", ncols=min(4, len(policies)))
    return figure


@styled
def gains(rows: pd.DataFrame) -> Picture:
    """Gain of each kind of data with its interval and in words.

    It is green if it is shown to be above 0.

    Axes are linear up to `NEAR`, and logarithmic beyond it.

    Args:
        rows: columns ``condition``, ``gain``, ``gain_low``, ``gain_high``,
            ``unit`` ("points" or "%") and, if known, ``both``: the gain of
            training on everything, drawn as a tick.
    """
    figure = picture(height=0.8 + 0.3 * len(rows))
    axis = figure.axes[0]
    axis.axvline(0, color=INK, lw=1.2)
    for place, row in enumerate(rows.to_dict("records")):
        look: dict[str, Any] = {**line("aim"), "linestyle": "none"}
        look |= {"ms": 6, "lw": 1.6}
        if not row["gain_low"] > 0:
            look["color"] = SOFT
        gain, low, high = row["gain"], row["gain_low"], row["gain_high"]
        errors = [[gain - low], [high - gain]]
        axis.errorbar([gain], [place], xerr=errors, capsize=3, **look)
        if "both" in row:
            axis.plot([row["both"]], [place], "|", color=INK, ms=13, mew=1.6)
    axis.set_xscale("symlog", linthresh=NEAR)
    lowest, most = rows["gain_low"].min(), rows["gain_high"].max()
    known = (-50, -20, -10, -5, 0, 5, 10, 20, 50, 100)
    ticks = [tick for tick in known if lowest <= tick <= most]
    axis.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    words = [
        f"{gain:+z.1f} {unit}"
        for gain, unit in zip(rows["gain"], rows["unit"], strict=True)
    ]
    label_rows(axis, list(rows["condition"]), words, wide=44)
    return figure


@styled
def forecasts(rows: pd.DataFrame) -> Picture:
    """Measured gain against predicted gain, a point a condition.

    Axes are linear up to `NEAR`, and logarithmic beyond it. The `NAMED` points
    furthest from the diagonal have their names.

    Args:
        rows: columns ``condition``, ``kind``, which has a colour, ``gain``,
            ``gain_low``, ``gain_high``, ``forecast`` and ``forecast_error``,
            two standard errors of it; in points of accuracy, or in percent.
    """
    figure = picture(height=4.6)
    axis = figure.axes[0]
    foretold, measured = rows["forecast"], rows["gain"]
    ends = (foretold - rows["forecast_error"]).min(), rows["gain_low"].min()
    lowest = min(-1.0, *ends)
    most = 1.1 * max(NEAR, foretold.max(), rows["gain_high"].max())
    exact = {"color": INK, "lw": 1, "ls": "--", "label": "predicted exactly"}
    axis.plot([lowest, most], [lowest, most], **exact)
    axis.axhline(0, color=SOFT, lw=0.8)
    axis.axvline(0, color=SOFT, lw=0.8)
    for number, (kind, group) in enumerate(rows.groupby("kind", sort=False)):
        look: dict[str, Any] = {**line(number), "linestyle": "none"}
        look |= {"ms": 6, "lw": 1.4, "capsize": 2, "label": kind}
        gain = group["gain"]
        errors = [gain - group["gain_low"], group["gain_high"] - gain]
        point = group["forecast"], gain
        axis.errorbar(*point, errors, group["forecast_error"], **look)
    off = (np.arcsinh(foretold) - np.arcsinh(measured)).abs()
    furthest = rows.loc[off.nlargest(NAMED).index].sort_values("forecast")
    for number, row in enumerate(furthest.to_dict("records")):
        place: Any = {"xytext": (0, 9), "va": "bottom", "ha": "center"}
        if number % 2:
            place = {"xytext": (6, -6), "va": "top", "ha": "left"}
        words, at = fill(row["condition"], 26), (row["forecast"], row["gain"])
        plain: Any = {"textcoords": "offset points", "size": 9, "color": SOFT}
        axis.annotate(words, at, **place, **plain)
    axis.set_xscale("symlog", linthresh=NEAR)
    axis.set_yscale("symlog", linthresh=NEAR)
    known = (-5, -2, 0, 2, 5, 10, 20, 50, 100)
    ticks = [tick for tick in known if lowest <= tick <= most]
    for each in (axis.xaxis, axis.yaxis):
        each.set_ticks(ticks, map(str, ticks))
        each.set_minor_locator(NullLocator())
    unit = f"points of accuracy, or % of an error; logarithmic above {NEAR:g}"
    axis.set_xlabel(f"predicted gain ({unit}), ± 2 standard errors")
    axis.set_ylabel("measured gain, 95 % interval")
    figure.legend(loc="outside right center")
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
