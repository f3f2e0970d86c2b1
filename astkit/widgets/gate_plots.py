"""Figures of a gate: scores, thresholds, rates and classes; tables as in `astkit.widgets.plots`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from astkit.widgets import frames
from astkit.widgets.frames import Table
from astkit.widgets.style import (
    COLOURS,
    INK,
    PAPER,
    SOFT,
    Picture,
    legend_beside,
    line,
    name_seeds,
    picture,
    styled,
)

TOLERANCE = 0.2  # relative deviation from the set point that counts as settled
POINTS = 250  # per curve; longer runs are averaged in windows


@styled
def threshold_and_rate(steps: Table, target: float | None = None, window: int = 20) -> Picture:
    """Threshold and activation rate of a gated run by step; plotted as in `step_response`.

    Args:
        steps: columns ``step``, ``threshold``, ``rate``; ``seed`` for several runs, and
            ``target_rate`` if the set point is recorded per step.
        target: the set point if ``steps`` has no ``target_rate``.
        window: number of batches in the running mean of each seed's rate.

    Raises ``ValueError`` if the set point is unknown, or not unique at a step.
    """
    needed = ["step", "threshold", "rate"]
    table = frames.read(
        steps, "threshold_and_rate", needed, phase="train", alone="arm", key=["step"]
    )
    if "target_rate" not in table or table["target_rate"].isna().all():
        if target is None:
            raise ValueError("the steps have no column target_rate: pass the set point as target")
        table = table.assign(target_rate=target)
    table = table.assign(controller=table["arm"].replace("run", "this run"), stream="")
    return _rate_and_threshold(table.rename(columns={"target_rate": "target"}), window)


@styled
def step_response(responses: Table, window: int = 1, shock: int | None = None) -> Picture:
    """Rate and threshold of controllers by step, for example after a shock.

    Lines are medians over seeds, and over windows of steps if there are more than 250; shaded
    areas range from the 5th to the 95th percentile.

    Args:
        responses: columns ``controller``, ``step``, ``rate``, ``threshold``, ``target``; ``seed``
            for several runs, and ``stream``, the name of the input.
        window: number of batches in the running mean of each seed's rate.
        shock: the step at which the stream changed, marked by a vertical line.
    """
    needed = ["controller", "step", "rate", "threshold", "target"]
    table = frames.read(responses, "step_response", needed, alone="stream", key=needed[:2])
    return _rate_and_threshold(table.assign(stream=table.get("stream", "")), window, shock)


def _rate_and_threshold(table: pd.DataFrame, window: int, shock: int | None = None) -> Picture:
    """``table``: columns controller, stream, seed, step, rate, threshold and target."""
    rates = table.groupby(["controller", "seed"])["rate"]
    smooth = rates.transform(lambda rate: rate.rolling(window, min_periods=1).mean())
    finite = table["threshold"].astype(float).replace([np.inf, -np.inf], np.nan)
    parts = frames.windows(table["step"], POINTS)
    table = table.assign(rate=smooth, threshold=finite, window=parts)
    figure = picture(2, width=5.6, height=3.6)
    rate, threshold = figure.axes
    for name in table["controller"].unique():
        of_window = table[table["controller"] == name].groupby("window")
        for axis, column in ((rate, "rate"), (threshold, "threshold")):
            low, middle, high = of_window[column].quantile([0.05, 0.5, 0.95]).unstack().T.to_numpy()
            x, style = list(of_window.groups), line(str(name), markers=False)
            axis.plot(x, middle, lw=1.4, label=name, **style)
            axis.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)
    _set_point(rate, table)
    if finite.min() > 0 and finite.max() > 20 * finite.min():
        threshold.set_yscale("log")
    if shock is not None:
        for axis in figure.axes:
            axis.axvline(shock, color=SOFT, ls=":", lw=1.2, label=f"shock at step {shock}")
    over = f", mean of the last {window} batches" if window > 1 else ""
    rate.set(title="activation rate" + over, ylabel="share of the batch", ylim=0)
    threshold.set(title="threshold", ylabel="score of a sample")
    for axis in figure.axes:
        axis.set_xlabel("step (batches)")
    shaded = "median of {} seeds, shaded from 5 % to 95 %"
    name_seeds(figure, table["seed"].nunique(), shaded, table["stream"].iloc[0])
    legend_beside(figure, rate)
    return figure


def _set_point(axis: Axes, table: pd.DataFrame) -> None:
    """Plot the set point by step with its settling band; the line is added last."""
    by_step = table.groupby("step")["target"]
    if (by_step.nunique() > 1).any():
        raise ValueError(
            "the set point differs between runs at the same step: draw runs with different set"
            " points one at a time"
        )
    target = by_step.first().dropna()
    low, high = target * (1 - TOLERANCE), target * (1 + TOLERANCE)
    band: dict[str, Any] = {"color": SOFT, "alpha": 0.2, "lw": 0, "step": "post"}
    axis.fill_between(target.index, low, high, label=f"set point ±{TOLERANCE:.0%}", **band)
    name = "set point" if target.nunique() > 1 else f"set point {target.iloc[0]:g}"
    dashed: dict[str, Any] = {"ls": (0, (9, 4)), "lw": 1.2, "drawstyle": "steps-post"}
    axis.plot(target.index, target, color=SOFT, label=name, **dashed)


@styled
def stability_bound(noise: Table) -> Picture:
    """Noise of the activation rate by loop gain, with the theoretical curve and bound.

    Args:
        noise: columns ``family``, ``batch``, ``gain x f``, ``RMSE / floor``, ``predicted``; one
            marker per row, hollow for batches smaller than the largest.
    """
    needed = ["family", "batch", "gain x f", "RMSE / floor", "predicted"]
    table = frames.read(noise, "stability_bound", needed)
    figure = picture(width=7.0, height=4.2)
    axis = figure.axes[0]
    for (family, batch), runs in table.groupby(["family", "batch"], sort=False):
        style = {**line(str(family)), "linestyle": "none", "ms": 5}
        largest = batch == table["batch"].max()
        look = {"label": family} if largest else {"markerfacecolor": PAPER}
        axis.plot(runs["gain x f"], runs["RMSE / floor"], **style, **look)
    ends = table[table["gain x f"] == table["gain x f"].max()].groupby("batch")["RMSE / floor"]
    for batch, height in ends.median().items():
        axis.annotate(
            f"{batch} a batch", (table["gain x f"].max(), height), (9, 0),
            textcoords="offset points", va="center", size=9,
        )  # fmt: skip
    theory = table[table["predicted"] < math.inf].groupby("gain x f")["predicted"].first()
    axis.plot(theory.index, theory, color=INK, lw=1.2, label="theory, linear loop")
    axis.axvline(2, color=SOFT, ls=(0, (9, 4)), lw=1.2, label="bound: gain x f = 2")
    axis.set(title="noise of the activation rate, by loop gain", xlabel="gain x f (no unit)")
    axis.set(ylabel="RMSE of the rate / binomial floor", yscale="log")
    axis.set_xlim(0, 1.22 * table["gain x f"].max())
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.legend(loc="upper left")
    return figure


@styled
def score_heatmap(scores: Table, bins: int = 40, columns: int = 80) -> Picture:
    """Distribution of the scores of a batch by step, with the threshold.

    Darker cells contain a larger share of the scores, interpolated between recorded levels.
    The axis is logarithmic if no score is negative and the middle 80 % of positive scores span more
    than a factor of 20; its lowest row then also contains smaller scores and zeros.

    Args:
        scores: columns ``step``, ``level``, ``score``, ``threshold``, as in ``Watch.scores``:
            ``score`` is the quantile ``level`` of the batch; averaged over ``seed``.
        bins: number of cells along the score axis.
        columns: maximum number of cells along the step axis; each averages equally many steps.

    Raises ``ValueError`` if scores are given at one level only.
    """
    needed = ["step", "level", "score", "threshold"]
    table = frames.read(scores, "score_heatmap", needed, alone="arm", key=needed[:2])
    if table["level"].nunique() < 2:
        raise ValueError("score_heatmap was given scores at one level: watch at several levels")
    edges, log = _score_edges(table["score"].to_numpy(dtype=float), bins)
    shares = pd.DataFrame(
        {key: _shares(batch, edges, log) for key, batch in table.groupby(["seed", "step"])}
    ).T
    steps = shares.index.get_level_values(1)
    window = frames.windows(pd.Series(steps, index=shares.index), columns)
    heat = shares.groupby(window.to_numpy()).mean()
    borders = np.append(heat.index.to_numpy(dtype=float), steps.max() + 1)
    level = table.groupby(frames.windows(table["step"], columns))["threshold"].mean()
    figure = picture(width=7.6, height=4.2)
    axis = figure.axes[0]
    mesh = axis.pcolormesh(borders, edges, heat.T, cmap="Blues", norm=PowerNorm(0.5, 0))
    halo = [withStroke(linewidth=3.5, foreground=PAPER)]
    middles = borders[:-1] + np.diff(borders) / 2
    axis.plot(middles, level, color=INK, lw=1.4, label="threshold", path_effects=halo)
    top = max(edges[-1], min(1.03 * level.max(), edges[-1] + 0.3 * abs(edges[-1])))
    axis.set(title="distribution of the scores of a batch, and the threshold")
    axis.set(xlabel="step (batches)", ylabel="score of a sample")
    axis.set(yscale="log" if log else "linear", ylim=(edges[0], top))
    axis.grid(visible=False)
    ticks: dict[str, Any] = {"ticks": MaxNLocator(5), "format": PercentFormatter(1)}
    figure.colorbar(mesh, label="share of the batch in a cell", **ticks)
    axis.legend(loc="upper right", frameon=True)
    return figure


def _score_edges(scores: np.ndarray, bins: int) -> tuple[np.ndarray, bool]:
    """Edges of ``bins`` cells that cover all ``scores``, and whether they are logarithmic."""
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
    """The share of a batch's scores in each cell, from their quantiles; sums to 1."""
    batch = batch.sort_values("level")
    score = np.clip(batch["score"].to_numpy(dtype=float), edges[0], edges[-1])
    scale = np.log if log else np.asarray
    below = np.interp(scale(edges), scale(score), batch["level"].to_numpy(dtype=float))
    below[0], below[-1] = 0.0, 1.0
    return np.diff(below)


@styled
def class_activation(classes: Table) -> Picture:
    """Share of each class among all samples and among those selected by the gate.

    Args:
        classes: columns ``class``, ``seen``, ``active``, as in ``Watch.classes``; summed over
            steps and ``seed``.

    Raises ``ValueError`` if no sample was active.
    """
    needed = ["class", "seen", "active"]
    table = frames.read(classes, "class_activation", needed, alone="arm")
    if not table["active"].sum():
        raise ValueError(
            "class_activation was given steps in which no sample was active: pass more steps"
        )
    counts = table.groupby("class")[["seen", "active"]].sum()
    shares = counts / counts.sum()
    figure = picture(width=min(14.0, 5.6 + 0.4 * len(shares)))
    axis, places = figure.axes[0], np.arange(len(shares))
    bars: dict[str, Any] = {"width": 0.4, "edgecolor": INK, "lw": 0.6}
    axis.bar(places - 0.2, shares["seen"], color="#d0d0d0", label="samples seen", **bars)
    axis.bar(places + 0.2, shares["active"], color=COLOURS[0], label="active samples", **bars)
    axis.set(title="share of each class among the samples seen, and among the active ones")
    axis.set(xlabel="class", ylabel="share of the samples")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    every = -(-len(shares) // 25)
    axis.set_xticks(places[::every], [str(name) for name in shares.index[::every]])
    axis.grid(visible=False, axis="x")
    figure.legend(loc="outside right center")
    return figure
