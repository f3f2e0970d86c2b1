"""Figures of a gate: thresholds and rates; tables as in `astkit.widgets.plots`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from astkit.widgets.style import (
    SOFT,
    Picture,
    Table,
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
        target: the set point of all steps.
        window: number of batches in the running mean of each seed's rate.
        shock: the step at which the stream changed, marked by a vertical line.
    """
    table = pd.DataFrame(steps)
    if target is not None:
        table = table.assign(target_rate=target)
    table = table.assign(controller=table.get("controller", "this run"), seed=table.get("seed", 0))
    runs = table.groupby(["controller", "seed"])["rate"]
    smooth = runs.transform(lambda rate: rate.rolling(window, min_periods=1).mean())
    finite = table["threshold"].astype(float).replace([np.inf, -np.inf], np.nan)
    number = table["step"].rank(method="dense") - 1
    part = number // np.ceil(table["step"].nunique() / POINTS)
    first = table["step"].groupby(part).transform("min")
    table = table.assign(rate=smooth, threshold=finite, window=first)
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
