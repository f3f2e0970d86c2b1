"""Figures of notebook 06, from tables of committed results."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from astkit.widgets import comparison_plots
from astkit.widgets.style import INK, SOFT, Picture, Table, line, picture, styled

NAMED = 4
"""Points of `forecasts` that have their names."""
NEAR = 10.0
"""Points or percent up to which axes are linear."""
SHOWN = (-0.6, 1.25)
"""Ends of the axis of `shares`."""
LABELS = {
    "dense+target": "dense + validation rows",
    "random@infobatch": "random at the rate of infobatch",
}


@styled
def shares(table: Table) -> Picture:
    """Gain of each method as a share of the possible: dense training at 0, the oracle at 1.

    What lies outside of `SHOWN` is an arrow with its number at the edge.

    Args:
        table: columns ``condition``, ``policy``, ``share``, ``share_low`` and ``share_high``
            (``None`` if undefined), ``gain``, ``unit`` and ``n``; "oracle" has a ``gain`` alone.
    """
    rows = pd.DataFrame(table)
    possible = rows[rows["policy"] == "oracle"].set_index("condition")
    rows = rows[(rows["policy"] != "oracle") & rows["share"].notna()]
    conditions, policies = list(rows["condition"].unique()), list(rows["policy"].unique())
    figure = picture(height=1.3 + 0.62 * len(conditions))
    axis = figure.axes[0]
    axis.axvline(0, color=INK, lw=1.2)
    axis.axvline(1, color=INK, lw=1.2, ls="--")
    low, high = SHOWN
    spread = np.linspace(-0.32, 0.32, len(policies)) if len(policies) > 1 else [0.0]
    for policy, offset in zip(policies, spread, strict=True):
        look: dict[str, Any] = {**line(policy), "linestyle": "none"}
        look |= {"ms": 6, "lw": 1.6}
        axis.plot([], [], **look, label=LABELS.get(policy, policy))
        for row in rows[rows["policy"] == policy].to_dict("records"):
            height = conditions.index(row["condition"]) + offset
            comparison_plots.bar(
                axis, height, (row["share"], row["share_low"], row["share_high"]), (low, high), look
            )
    axis.set_xlim(low - 0.05, high + 0.05)
    gains = possible.reindex(conditions)
    amounts = [
        f"{gain:.1f} points higher" if unit == "points" else f"loss {gain:.1f} % lower"
        for gain, unit in zip(gains["gain"], gains["unit"], strict=True)
    ]
    comparison_plots.label_rows(axis, conditions, amounts)
    axis.set_xticks([-0.5, 0, 0.5, 1], ["-0.5", "0\ndense training", "0.5", "1\noracle"])
    axis.set_title("share of what an oracle gains; on the right: what it gains")
    axis.set_xlabel(f"{int(rows['n'].min())} seeds, same FLOPs, 95 % intervals")
    figure.legend(loc="outside lower center", ncols=min(4, len(policies)))
    return figure


@styled
def gains(table: Table) -> Picture:
    """Gain of each kind of data with its interval and in words, green if shown to be above 0.

    Axes are linear up to `NEAR`, and logarithmic beyond it.

    Args:
        table: columns ``condition``, ``gain``, ``gain_low``, ``gain_high``, ``unit`` ("points" or
            "%") and, if known, ``both``: the gain of training on everything, drawn as a tick.
    """
    rows = pd.DataFrame(table)
    figure = picture(height=0.8 + 0.3 * len(rows))
    axis = figure.axes[0]
    axis.axvline(0, color=INK, lw=1.2)
    for place, row in enumerate(rows.to_dict("records")):
        look: dict[str, Any] = {**line("aim"), "linestyle": "none", "ms": 6, "lw": 1.6}
        if not row["gain_low"] > 0:
            look["color"] = SOFT
        errors = [[row["gain"] - row["gain_low"]], [row["gain_high"] - row["gain"]]]
        axis.errorbar([row["gain"]], [place], xerr=errors, capsize=3, **look)
        if "both" in row:
            axis.plot([row["both"]], [place], "|", color=INK, ms=13, mew=1.6)
    axis.set_xscale("symlog", linthresh=NEAR)
    low, high = float(rows["gain_low"].min()), float(rows["gain_high"].max())
    ticks = [tick for tick in (-50, -20, -10, -5, 0, 5, 10, 20, 50, 100) if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    words = [f"{gain:+z.1f} {unit}" for gain, unit in zip(rows["gain"], rows["unit"], strict=True)]
    comparison_plots.label_rows(axis, list(rows["condition"]), words, wide=44)
    return figure


@styled
def forecasts(table: Table) -> Picture:
    """Measured gain against predicted gain, a point a condition, with the diagonal.

    Axes are linear up to `NEAR`, and logarithmic beyond it. The `NAMED` points furthest from the
    diagonal have their names.

    Args:
        table: columns ``condition``, ``kind``, which has a colour, ``gain``, ``gain_low``,
            ``gain_high``, ``forecast`` and ``forecast_error``, two standard errors of it; in points
            of accuracy, or in percent.
    """
    rows = pd.DataFrame(table)
    figure = picture(height=4.6)
    axis = figure.axes[0]
    lowest = min(-1.0, (rows["forecast"] - rows["forecast_error"]).min(), rows["gain_low"].min())
    most = 1.1 * max(NEAR, rows["forecast"].max(), rows["gain_high"].max())
    axis.plot([lowest, most], [lowest, most], color=INK, lw=1, ls="--", label="predicted exactly")
    axis.axhline(0, color=SOFT, lw=0.8)
    axis.axvline(0, color=SOFT, lw=0.8)
    for number, (kind, group) in enumerate(rows.groupby("kind", sort=False)):
        look: dict[str, Any] = {**line(number), "linestyle": "none", "ms": 6, "lw": 1.4}
        errors = [group["gain"] - group["gain_low"], group["gain_high"] - group["gain"]]
        look |= {"capsize": 2, "label": kind}
        point = group["forecast"], group["gain"]
        axis.errorbar(*point, errors, group["forecast_error"], **look)
    off = (np.arcsinh(rows["forecast"]) - np.arcsinh(rows["gain"])).abs()
    furthest = rows.loc[off.nlargest(NAMED).index].sort_values("forecast")
    for number, row in enumerate(furthest.to_dict("records")):
        words, below = fill(row["condition"], 26), number % 2
        place: Any = {"xy": (row["forecast"], row["gain"]), "xytext": (6, -6) if below else (0, 9)}
        place |= {"va": "top", "ha": "left"} if below else {"va": "bottom", "ha": "center"}
        axis.annotate(words, **place, textcoords="offset points", size=9, color=SOFT)
    axis.set_xscale("symlog", linthresh=NEAR)
    axis.set_yscale("symlog", linthresh=NEAR)
    ticks = [tick for tick in (-5, -2, 0, 2, 5, 10, 20, 50, 100) if lowest <= tick <= most]
    for each in (axis.xaxis, axis.yaxis):
        each.set_ticks(ticks, map(str, ticks))
        each.set_minor_locator(NullLocator())
    unit = f"points of accuracy, or % of an error; logarithmic above {NEAR:g}"
    axis.set_xlabel(f"predicted gain ({unit}), ± 2 standard errors")
    axis.set_ylabel("measured gain, 95 % interval")
    figure.legend(loc="outside right center")
    return figure
