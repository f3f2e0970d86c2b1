"""Pictures of what a gate saw and decided: scores, thresholds, rates and classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter

from astkit.widgets import frames
from astkit.widgets.frames import Table
from astkit.widgets.style import (
    COLOURS,
    INK,
    PAPER,
    SOFT,
    Picture,
    ink_on,
    line,
    log_if_wide,
    picture,
    styled,
)

TOLERANCE = 0.2
"""A rate has settled where it is off its set point by at most this share of the set point."""

_HALO = [withStroke(linewidth=3.5, foreground=PAPER)]


@styled
def threshold_and_rate(
    steps: Table, target: float | None = None, window: int = 20, tolerance: float = TOLERANCE
) -> Picture:
    """Threshold and activation rate of a gated run by step, one colour a seed.

    Args:
        steps: columns ``step``, ``threshold``, ``rate``; ``seed`` where there are several, and
            ``target_rate`` where the set point is known for each step.
        target: the set point where the steps do not say it, drawn dashed.
        window: batches that the thick line of the rate averages over.
        tolerance: half-width of the settling band, as a share of the set point.

    Raises ``ValueError`` for a missing column, no rows, or no set point.
    """
    needed = ["step", "threshold", "rate"]
    table = frames.read(
        steps, "threshold_and_rate", needed, phase="train", alone="arm", key=["step"]
    )
    if "target_rate" not in table or table["target_rate"].isna().all():
        if target is None:
            raise ValueError("the steps have no column target_rate: pass the set point as target")
        table = table.assign(target_rate=target)
    figure = picture(2)
    left, right = figure.axes
    for place, (seed, run) in enumerate(table.groupby("seed")):
        style = line(place, markers=False)
        left.plot(run["step"], run["threshold"], lw=1.2, label=f"seed {seed}", **style)
        right.plot(run["step"], run["rate"], lw=0.6, alpha=0.35, color=style["color"])
        right.plot(run["step"], run["rate"].rolling(window).mean(), lw=1.6, **style)
    _threshold_axis(left, table)
    _set_point(right, table.dropna(subset="target_rate"), "target_rate", tolerance)
    right.set(title=f"activation rate, and its mean of {window} batches", xlabel="step", ylim=0)
    left.legend()
    right.legend()
    return figure


@styled
def step_response(
    responses: Table,
    window: int = 1,
    shock: int | None = None,
    tolerance: float = TOLERANCE,
    controllers: Sequence[str] | None = None,
) -> Picture:
    """How controllers answer a shock: rate and threshold by step, mean over seeds.

    The shade behind a line reaches from the lowest to the highest seed.

    Args:
        responses: columns ``controller``, ``step``, ``rate``, ``threshold``, ``target``; ``seed``
            where there are several.
        window: batches that each seed's rate is averaged over, this one and those before.
        shock: the step at which the stream changed, marked by a vertical line.
        tolerance: half-width of the settling band, as a share of the set point.
        controllers: which to draw, in this order; all by default.

    Raises ``ValueError`` for a missing column, no rows or an unknown controller.
    """
    needed = ["controller", "step", "rate", "threshold", "target"]
    table = frames.read(responses, "step_response", needed, alone="stream", key=needed[:2])
    rates = table.groupby(["controller", "seed"])["rate"]
    table["rate"] = rates.transform(lambda rate: rate.rolling(window, min_periods=1).mean())
    figure = picture(2, width=5.2, height=4.2)
    rate, threshold = figure.axes
    for place, name in enumerate(frames.only(table, "controller", controllers)):
        run = table[table["controller"] == name].groupby("step")
        for axis, column in ((rate, "rate"), (threshold, "threshold")):
            spread = run[column].agg(["mean", "min", "max"])
            style = line(place, markers=False)
            axis.plot(spread.index, spread["mean"], lw=1.4, label=name, **style)
            band = spread["min"], spread["max"]
            axis.fill_between(spread.index, *band, color=style["color"], alpha=0.15, lw=0)
    _set_point(rate, table, "target", tolerance)
    _threshold_axis(threshold, table)
    if shock is not None:
        for axis in figure.axes:
            axis.axvline(shock, color=SOFT, ls=":", lw=1.2, label=f"shock at step {shock}")
    title = "activation rate" + (f", mean of {window} batches" if window > 1 else "")
    rate.set(title=title, xlabel="step", ylim=0)
    name_seeds(figure, table, "shaded from the lowest to the highest")
    figure.legend(*rate.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def stability_bound(noise: Table) -> Picture:
    """How much a loop amplifies noise as its gain grows, with the theory's curve and bound.

    Args:
        noise: columns ``family``, ``batch``, ``gain x f``, ``RMSE / floor``, ``predicted``; one
            marker a row.

    Raises ``ValueError`` for a missing column or no rows.
    """
    needed = ["family", "batch", "gain x f", "RMSE / floor", "predicted"]
    table = frames.read(noise, "stability_bound", needed)
    figure = picture(width=7.0, height=4.2)
    axis = figure.axes[0]
    groups = table.groupby(["family", "batch"], sort=False)
    for place, ((family, batch), runs) in enumerate(groups):
        style = {**line(place), "linestyle": "none", "ms": 5, "label": f"{family}, {batch} a batch"}
        axis.plot(runs["gain x f"], runs["RMSE / floor"], **style)
    theory = table[table["predicted"] < math.inf].groupby("gain x f")["predicted"].first()
    axis.plot(theory.index, theory, color=INK, lw=1.2, label="theory, linear loop")
    axis.axvline(2, color=SOFT, ls=(0, (9, 4)), lw=1.2, label="bound: gain x f = 2")
    axis.set(title="noise that the loop adds", xlabel="gain x f", ylabel="RMSE / binomial floor")
    axis.set_yscale("log")
    axis.legend()
    return figure


def name_seeds(figure: Picture, table: pd.DataFrame, *more: str) -> None:
    """Say above the axes how many seeds a line is the mean of, if of several."""
    seeds = table["seed"].nunique()
    if seeds > 1:
        figure.suptitle(", ".join([f"mean of {seeds} seeds", *more]), size=10)


def _threshold_axis(axis: Axes, table: pd.DataFrame) -> None:
    axis.set(title="threshold", xlabel="step", ylabel="score")
    thresholds = table["threshold"].to_numpy(dtype=float)
    log_if_wide(axis, thresholds[np.isfinite(thresholds)].tolist())


def _set_point(axis: Axes, table: pd.DataFrame, column: str, tolerance: float) -> None:
    """Draw the set point by step with its settling band; the line comes last on the axis."""
    by_step = table.groupby("step")[column]
    if (by_step.nunique() > 1).any():
        raise ValueError(
            f"{column} differs between runs at the same step: draw runs with different set points"
            " one at a time"
        )
    target = by_step.first()
    low, high = target * (1 - tolerance), target * (1 + tolerance)
    band: dict[str, Any] = {"color": SOFT, "alpha": 0.2, "lw": 0}
    band["label"] = f"within ±{tolerance:.0%} of it"
    axis.fill_between(target.index, low, high, step="post", **band)
    several = target.nunique() > 1
    name = "set point" if several else f"set point {target.iloc[0]:g}"
    axis.plot(
        target.index, target, color=SOFT, ls=(0, (9, 4)), lw=1.2, label=name, drawstyle="steps-post"
    )


@styled
def score_heatmap(scores: Table, bins: int = 40, columns: int = 80) -> Picture:
    """How the scores of a batch were distributed, by step, with the threshold over it.

    The darker, the larger the share of scores in a cell; between the levels that were recorded the
    distribution is taken to be even. The axis is logarithmic where no score is negative and
    the middle 80 % of those above zero span more than a factor of 20; its lowest row then holds the
    few scores that are smaller still, and zeros.

    Args:
        scores: columns ``step``, ``level``, ``score``, ``threshold``, as ``Watch.scores`` has
            them; runs told apart by ``seed`` are averaged.
        bins: cells along the score.
        columns: cells along the steps, at most; each is the mean over its steps.

    Raises ``ValueError`` for a missing column, no rows, or fewer than two levels.
    """
    needed = ["step", "level", "score", "threshold"]
    table = frames.read(scores, "score_heatmap", needed, alone="arm", key=["step", "level"])
    if table["level"].nunique() < 2:
        raise ValueError(
            "score_heatmap was given scores at one level, which say nothing of their distribution:"
            " record at least the levels 0 and 1"
        )
    edges, log = _score_edges(table["score"].to_numpy(dtype=float), bins)
    batches = table.groupby(["step", "seed"])
    shares = np.stack([_shares(batch, edges, log) for _, batch in batches])
    threshold = batches["threshold"].first().reset_index()
    window = frames.windows(threshold["step"], columns)
    starts = np.unique(window)
    borders = np.append(starts, table["step"].max() + 1)
    heat = np.stack([shares[window == start].mean(axis=0) for start in starts])
    figure = picture(width=7.6, height=4.2)
    axis = figure.axes[0]
    mesh = axis.pcolormesh(borders, edges, heat.T, cmap="Blues", norm=PowerNorm(0.5, 0))
    middles = borders[:-1] + np.diff(borders) / 2
    level = threshold.groupby(window)["threshold"].mean()
    axis.plot(middles, level, color=INK, lw=1.4, label="threshold", path_effects=_HALO)
    axis.set(title="distribution of the scores, and the threshold", xlabel="step", ylabel="score")
    axis.set(yscale="log" if log else "linear", ylim=(edges[0], edges[-1]))
    axis.grid(visible=False)
    figure.colorbar(mesh, label="share of the batch in a cell")
    axis.legend(loc="upper right", frameon=True)
    return figure


def _score_edges(scores: np.ndarray, bins: int) -> tuple[np.ndarray, bool]:
    """Edges of ``bins`` cells that hold all ``scores``, and whether they grow by a factor."""
    low, high = float(scores.min()), float(scores.max())
    positive = scores[scores > 0]
    if low >= 0 and len(positive):
        least, tenth, most = np.quantile(positive, (0.02, 0.1, 0.9))
        if most > 20 * tenth:
            return np.geomspace(least * 0.999, high, bins + 1), True
    if high == low:
        high += 1e-6 * max(1.0, abs(low))
    return np.linspace(low, high, bins + 1), False


def _shares(batch: pd.DataFrame, edges: np.ndarray, log: bool) -> np.ndarray:
    """The share of one batch's scores in each cell, from their quantiles; they sum to 1."""
    batch = batch.sort_values("level")
    score = np.clip(batch["score"].to_numpy(dtype=float), edges[0], edges[-1])
    scale = np.log if log else np.asarray
    below = np.interp(scale(edges), scale(score), batch["level"].to_numpy(dtype=float))
    below[0], below[-1] = 0.0, 1.0
    return np.diff(below)


@styled
def class_activation(classes: Table, windows: int = 1) -> Picture:
    """Which classes the gate takes: each one's share among the active and among the seen samples.

    Args:
        classes: columns ``step``, ``class``, ``seen``, ``active``, as ``Watch.classes`` has them;
            runs told apart by ``seed`` are added up.
        windows: 1 draws bars over all steps; more draw a heat map of the ratio of both shares in
            as many windows of steps, where 1 means as often as it is seen.

    Raises ``ValueError`` for a missing column or no rows, or where no sample was active.
    """
    needed = ["step", "class", "seen", "active"]
    table = frames.read(classes, "class_activation", needed, alone="arm")
    if not table["active"].sum():
        raise ValueError("class_activation was given steps in which no sample was active")
    table = table.assign(window=frames.windows(table["step"], windows))
    counts = table.groupby(["window", "class"])[["seen", "active"]].sum().unstack(fill_value=0)
    seen, active = (_share(counts, name) for name in ("seen", "active"))
    return _class_bars(seen.iloc[0], active.iloc[0]) if windows == 1 else _class_map(active / seen)


def _share(counts: Any, name: str) -> pd.DataFrame:
    part = pd.DataFrame(counts[name])
    return part.div(part.sum(axis=1), axis=0)


def _class_bars(seen: pd.Series[float], active: pd.Series[float]) -> Picture:
    figure = picture(width=min(14.0, 4.0 + 0.4 * len(seen)))
    axis, places = figure.axes[0], np.arange(len(seen))
    bars: dict[str, Any] = {"width": 0.4, "edgecolor": INK, "lw": 0.6}
    axis.bar(places - 0.2, seen, color="#d0d0d0", label="among the seen", **bars)
    axis.bar(places + 0.2, active, color=COLOURS[0], label="among the active", **bars)
    axis.set(title="share of each class", xlabel="class", ylabel="share of the samples")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    every = -(-len(seen) // 25)
    axis.set_xticks(places[::every], [str(name) for name in seen.index[::every]])
    axis.grid(visible=False, axis="x")
    axis.legend()
    return figure


def _class_map(ratio: pd.DataFrame) -> Picture:
    """``ratio``: windows down, classes across; NaN where nothing was seen or active."""
    cells, few = ratio.to_numpy().T, ratio.size <= 240
    width, height = max(5.0, 1.8 + 0.55 * len(ratio)), min(9.0, 1.6 + 0.3 * len(cells))
    figure = picture(width=width, height=height)
    axis = figure.axes[0]
    mesh = axis.pcolormesh(np.ma.masked_invalid(cells), cmap="Blues", vmin=0, edgecolors=PAPER)
    for (row, column), value in np.ndenumerate(cells if few else np.empty((0, 0))):
        ink = INK if np.isnan(value) else ink_on(list(mesh.to_rgba(value)))
        text = "–" if np.isnan(value) else f"{value:.1f}"
        axis.text(column + 0.5, row + 0.5, text, ha="center", va="center", size=8, color=ink)
    every = -(-len(cells) // 25)
    axis.set_yticks(np.arange(0, len(cells), every) + 0.5, [str(c) for c in ratio.columns[::every]])
    axis.set_xticks(np.arange(len(ratio)) + 0.5, [f"{start:g}" for start in ratio.index])
    axis.set(title="how often a class is active, against how often it is seen", ylabel="class")
    axis.set_xlabel("first step of the window")
    axis.grid(visible=False)
    axis.invert_yaxis()
    figure.colorbar(mesh, label="share among the active / among the seen")
    return figure
