"""Figures that only notebooks draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import PercentFormatter

from astkit.widgets.style import (
    INK,
    SELECTED,
    SKIPPED,
    SOFT,
    Picture,
    line,
    picture,
    styled,
)

CLOSE = 5.0  # points or percent by which a prediction may be off
UNITS = {"%": "% of the error", "points": "points of accuracy"}


@styled
def gains(rows: pd.DataFrame, mark: str) -> Picture:
    """Gain of `aim` over dense training, a panel a unit, with linear axes.

    It is green where its interval lies above 0.

    Args:
        rows: columns ``condition``, ``gain``, ``gain_low``, ``gain_high``,
            ``unit``, and ``other``: a gain to compare it with.
        mark: whose gain the other one is.
    """
    times = rows["unit"].value_counts()
    alone = rows["unit"].map(times) == 1  # has no panel of its own
    panels = rows["unit"].mask(alone, times.index[0])
    units = list(rows.groupby(panels, sort=False))
    counts = [len(part) + 1 for _, part in units]
    figure = picture(height=0.5 + 0.5 * len(units) + 0.25 * len(rows))
    figure.clear()
    axes = figure.subplots(len(units), height_ratios=counts, squeeze=False)
    for axis, (unit, part) in zip(axes[:, 0], units, strict=True):
        axis.axvline(0, color=INK, lw=1.2)
        places = {"va": "center", "transform": axis.get_yaxis_transform()}
        for place, row in enumerate(part.to_dict("records")):
            sure = row["gain_low"] > 0
            colour = line("aim")["color"] if sure else SOFT
            axis.barh(place, row["gain"], 0.4, color=colour, alpha=0.25)
            ends = [row["gain_low"], row["gain_high"]]
            axis.plot(ends, [place, place], color=colour, lw=1.6)
            axis.plot(row["gain"], place, "o", color=colour, ms=6)
            axis.plot(row["other"], place, "|", color=INK, ms=12, mew=1.6)
            words = f"{row['gain']:+z.1f} {row['unit']}".replace("+0.0", "0.0")
            axis.text(1.02, place, words, color=colour, **places)
        names = part["condition"].str.replace(", 8 epochs", "")
        axis.set_yticks(range(len(part)), names)
        axis.set_ylim(len(part) - 0.4, -0.6)
        axis.grid(visible=False, axis="y")
        axis.set_xlabel(f"gain over dense training, {UNITS[unit]}")
    figure.supxlabel(f"\u25cf aim, 95 % interval     |  {mark}", size=9)
    return figure


@styled
def forecasts(rows: pd.DataFrame) -> Picture:
    """Measured gain against predicted gain, a point a condition, by unit.

    Points that are far off have the name of their kind.

    Args:
        rows: columns ``kind``, ``unit``, ``gain``, ``gain_low``,
            ``gain_high``, ``forecast``, and ``forecast_error``, two standard
            errors of it.
    """
    units = list(rows.groupby("unit", sort=False))
    figure = picture(len(units), height=3.6)
    for axis, (unit, part) in zip(figure.axes, units, strict=True):
        ends = min(0, part["gain_low"].min()), 1.05 * part["gain_high"].max()
        axis.plot(ends, ends, color=INK, lw=1, ls="--")
        for row in part.to_dict("records"):
            gain, foretold = row["gain"], row["forecast"]
            colour = line("aim")["color"] if row["gain_low"] > 0 else SOFT
            bar = {"color": colour, "lw": 1, "alpha": 0.4}
            axis.plot(
                [foretold] * 2, [row["gain_low"], row["gain_high"]], **bar
            )
            error = row["forecast_error"]
            axis.plot([foretold - error, foretold + error], [gain] * 2, **bar)
            axis.plot(foretold, gain, "o", color=colour, ms=5)
            if abs(foretold - gain) > CLOSE:
                side = (-4, "right") if gain > foretold else (4, "left")
                place = {"xytext": (side[0], 4), "ha": side[1], "size": 8}
                at = {"xy": (foretold, gain), "textcoords": "offset points"}
                axis.annotate(row["kind"], **at, **place)
        axis.set(xlabel=f"predicted gain, {UNITS[unit]}", ylabel="measured")
    close = (rows["forecast"] - rows["gain"]).abs() <= CLOSE
    figure.headline(
        f"{close.sum()} of {len(rows)} predictions were within"
        f" {CLOSE:g} points or percent"
    )
    return figure


@styled
def threshold(
    steps: Sequence[tuple[Sequence[float], float]], rate: float
) -> Picture:
    """Losses of samples and the threshold by batch; the share above it.

    Args:
        steps: of each batch the losses of its samples, and the threshold.
        rate: the share that was asked for.
    """
    limits = np.array([limit for _, limit in steps])
    table = pd.DataFrame({"loss": [np.asarray(row) for row, _ in steps]})
    table = table.explode("loss").astype(float).rename_axis("step")
    table["above"] = table["loss"] > limits[table.index]
    passed = table["above"].groupby("step").mean()
    figure = picture(2, height=3.6)
    figure.headline("The threshold follows the falling losses")
    cloud, share = figure.axes
    cloud.get_gridspec().set_width_ratios([2.2, 1])
    for above, colour in ((True, SELECTED), (False, SKIPPED)):
        those = table.loc[table["above"] == above, "loss"]
        cloud.plot(those, ".", ms=2.2, mew=0, color=colour)
    cloud.plot(limits, color=INK, lw=2)
    plain: Any = {"weight": "bold", "transform": cloud.transAxes}
    cloud.text(0.5, 0.93, "trained on", color=SELECTED, **plain)
    cloud.text(0.05, 0.1, "skipped", color=SKIPPED, **plain)
    end = f" threshold\n {limits[-1]:.2g}"
    cloud.text(len(steps), limits[-1], end, weight="bold", va="center")
    cloud.set(yscale="log", ylim=(1e-4, 10), xlim=(0, len(steps)))
    cloud.yaxis.set_major_formatter("{x:g}")
    share.plot(passed, color=SELECTED, lw=0.6, alpha=0.5)
    smooth = passed.rolling(20, center=True, min_periods=1).mean()
    share.plot(smooth, color=SELECTED, lw=2)
    share.axhline(rate, ls="--", color=INK)
    words = f"asked for: {100 * rate:.0f} %"
    share.text(len(steps), rate + 0.01, words, ha="right", va="bottom")
    words = f"trained on: {100 * table['above'].mean():.0f} %"
    plain = {"color": SELECTED, "weight": "bold", "ha": "right", "va": "top"}
    share.text(len(steps), max(0.07, smooth.min() - 0.05), words, **plain)
    share.set(ylim=(0, max(0.6, rate)), xlim=(0, len(steps)))
    share.yaxis.set_major_formatter(PercentFormatter(1))
    for axis, word in (
        (cloud, "loss of a sample"),
        (share, "share of a batch"),
    ):
        axis.set(xlabel="batch", ylabel=word)
    figure.alt = """Losses of all samples by batch, most of them falling below
    0.01, with the threshold as a line through the cloud: samples above it are
    trained on. Beside it the share of each batch that is above it."""
    return figure
