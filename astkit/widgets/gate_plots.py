"""Figures of a gate: scores, thresholds, rates and classes; tables as in `astkit.widgets.plots`."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter

from astkit.widgets import frames
from astkit.widgets.frames import Table
from astkit.widgets.style import (
    COLOURS,
    INK,
    PAPER,
    SELECTED,
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
def threshold_and_rate(
    steps: Table, target: float | None = None, window: int = 20, shock: int | None = None
) -> Picture:
    """Threshold and activation rate by step, of a run or of several controllers.

    Lines are medians over seeds, and over windows of steps if there are more than 250; shaded
    areas range from the 5th to the 95th percentile.

    Args:
        steps: columns ``step``, ``threshold``, ``rate``; ``seed`` for several runs, ``controller``
            for several curves, ``stream``, the name of their input, and ``target_rate`` if the set
            point is recorded per step.
        target: the set point if ``steps`` has no ``target_rate``.
        window: number of batches in the running mean of each seed's rate.
        shock: the step at which the stream changed, marked by a vertical line.

    Raises ``ValueError`` if the set point is unknown.
    """
    table = frames.read(steps, "threshold_and_rate", ["step", "threshold", "rate"])
    if "target_rate" not in table or table["target_rate"].isna().all():
        if target is None:
            raise ValueError("the steps have no column target_rate: pass the set point as target")
        table = table.assign(target_rate=target)
    table = table.assign(controller=table.get("controller", "this run"))
    runs = table.groupby(["controller", "seed"])["rate"]
    smooth = runs.transform(lambda rate: rate.rolling(window, min_periods=1).mean())
    finite = table["threshold"].astype(float).replace([np.inf, -np.inf], np.nan)
    parts = frames.windows(table["step"], POINTS)
    table = table.assign(rate=smooth, threshold=finite, window=parts)
    figure = picture(2, width=5.6, height=3.6)
    rate, threshold = figure.axes
    for curve in table["controller"].unique():
        of_window = table[table["controller"] == curve].groupby("window")
        for axis, column in ((rate, "rate"), (threshold, "threshold")):
            low, middle, high = of_window[column].quantile([0.05, 0.5, 0.95]).unstack().T.to_numpy()
            x, style = list(of_window.groups), line(str(curve), markers=False)
            axis.plot(x, middle, lw=1.4, label=curve, **style)
            axis.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)
    wanted = table.groupby("step")["target_rate"].first().dropna()
    low, high = wanted * (1 - TOLERANCE), wanted * (1 + TOLERANCE)
    band: dict[str, Any] = {"color": SOFT, "alpha": 0.2, "lw": 0, "step": "post"}
    rate.fill_between(wanted.index, low, high, label=f"set point ±{TOLERANCE:.0%}", **band)
    name = "set point" if wanted.nunique() > 1 else f"set point {wanted.iloc[0]:g}"
    dashed: dict[str, Any] = {"ls": (0, (9, 4)), "lw": 1.2, "drawstyle": "steps-post"}
    rate.plot(wanted.index, wanted, color=SOFT, label=name, **dashed)
    if finite.min() > 0 and finite.max() > 20 * finite.min():
        threshold.set_yscale("log")
    for axis in figure.axes:
        axis.set_xlabel("step (batches)")
        if shock is not None:
            axis.axvline(shock, color=SOFT, ls=":", lw=1.2, label=f"shock at step {shock}")
    over = f", mean of the last {window} batches" if window > 1 else ""
    rate.set(title="activation rate" + over, ylabel="share of the batch", ylim=0)
    threshold.set(title="threshold", ylabel="score of a sample")
    shaded = "median of {} seeds, shaded from 5 % to 95 %"
    name_seeds(figure, table["seed"].nunique(), shaded, *table.get("stream", [])[:1])
    legend_beside(figure, rate)
    return figure


@styled
def score_heatmap(scores: Table) -> Picture:
    """Distribution of the scores of a batch by step, with the threshold.

    Shades lie between the quantiles of the scores, averaged over windows of steps: the darker, the
    nearer to the median. The axis is logarithmic if no score is 0 or negative and the middle 80 %
    span more than a factor of 20.

    Args:
        scores: columns ``step``, ``level``, ``score``, ``threshold``: ``score`` is the quantile
            ``level`` of the batch; averaged over ``seed``.
    """
    table = frames.read(scores, "score_heatmap", ["step", "level", "score", "threshold"])
    window = frames.windows(table["step"], POINTS)
    quantiles = table.groupby([window, "level"])["score"].mean().unstack()
    threshold = table.groupby(window)["threshold"].mean()
    figure = picture(width=7.6, height=4.2)
    axis, levels = figure.axes[0], list(quantiles.columns)
    for low, high in zip(levels[: len(levels) // 2], reversed(levels), strict=False):
        shade: dict[str, Any] = {"color": COLOURS[0], "alpha": 1.6 / len(levels), "lw": 0}
        axis.fill_between(quantiles.index, quantiles[low], quantiles[high], **shade)
    halo = [withStroke(linewidth=3.5, foreground=PAPER)]
    axis.plot(threshold, color=INK, lw=1.4, label="threshold", path_effects=halo)
    least, near, tenth, most, top = table["score"].quantile([0, 0.02, 0.1, 0.9, 1])
    log = least > 0 and most > 20 * tenth
    # a threshold far away does not hide the scores
    highest = max(top, min(1.03 * threshold.max(), top + 0.3 * abs(top)))
    axis.set(yscale="log" if log else "linear", ylim=(near if log else None, highest))
    axis.set(title="quantiles of the scores of a batch, and the threshold")
    axis.set(xlabel="step (batches)", ylabel="score of a sample")
    shares = f"{levels[0]:.0%} to {levels[-1]:.0%} of the scores"
    axis.fill_between([], [], color=COLOURS[0], alpha=0.5, lw=0, label=shares)
    axis.legend(loc="upper right", frameon=True)
    return figure


@styled
def class_activation(classes: Table) -> Picture:
    """Share of each class among all samples and among those selected by the gate.

    Args:
        classes: columns ``class``, ``seen``, ``active``, numbers of samples, which are summed over
            steps and seeds.
    """
    table = frames.read(classes, "class_activation", ["class", "seen", "active"])
    counts = table.groupby("class")[["seen", "active"]].sum()
    shares = counts / counts.sum()
    figure = picture(width=min(14.0, 5.6 + 0.4 * len(shares)))
    axis, places = figure.axes[0], np.arange(len(shares))
    bars: dict[str, Any] = {"width": 0.4, "edgecolor": INK, "lw": 0.6}
    axis.bar(places - 0.2, shares["seen"], color="#d0d0d0", label="samples seen", **bars)
    axis.bar(places + 0.2, shares["active"], color=SELECTED, label="active samples", **bars)
    axis.set(title="share of each class among the samples seen, and among the active ones")
    axis.set(xlabel="class", ylabel="share of the samples")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    every = -(-len(shares) // 25)
    axis.set_xticks(places[::every], [str(name) for name in shares.index[::every]])
    axis.grid(visible=False, axis="x")
    figure.legend(loc="outside right center")
    return figure
