"""Figures that only notebooks draw, from tables and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from astkit import files
from astkit.widgets.style import (
    COLOURS,
    INK,
    SELECTED,
    SKIPPED,
    SOFT,
    Picture,
    line,
    picture,
    styled,
)

FASTER, SLOWER, UNKNOWN = "#5F7F95", "#A4161A", "#d0d0d0"  # of `speeds`
WHISKERS: Any = {"fmt": "none", "ecolor": INK, "capsize": 3, "lw": 1.2}
CLOSE = 5.0  # points or percent by which a prediction may be off
DAYS = (COLOURS[3], SELECTED, COLOURS[0])  # of old, recent and later rows
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

    ``rows``: columns ``kind``, shown of those that are far off, ``unit``,
    ``gain``, ``gain_low``, ``gain_high``, ``forecast``, and
    ``forecast_error``, two standard errors of it.
    """
    units = list(rows.groupby("unit", sort=False))
    figure = picture(len(units), height=3.6)
    for axis, (unit, part) in zip(figure.axes, units, strict=True):
        ends = min(0, part["gain_low"].min()), 1.05 * part["gain_high"].max()
        axis.plot(ends, ends, color=INK, lw=1, ls="--")
        for row in part.to_dict("records"):
            gain, foretold = row["gain"], row["forecast"]
            colour = line("aim")["color"] if row["gain_low"] > 0 else SOFT
            look = {"fmt": "o", "color": colour, "ms": 5, "elinewidth": 0.6}
            ends = [[gain - row["gain_low"]], [row["gain_high"] - gain]]
            axis.errorbar(foretold, gain, ends, row["forecast_error"], **look)
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

    ``steps``: losses and threshold of each batch; ``rate``: as asked for.
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
    figure.alt = """Losses of all samples by batch, the threshold as a line
    through the cloud; beside it the share of each batch above it."""
    return figure


def on_gpu(path: str, slow: str, fast: str) -> pd.DataFrame:
    """Rows of `speeds` from a committed file, by network and rows of a batch.

    ``slow`` and ``fast`` are two of its methods, whose steps were timed.
    """
    rows = []
    for name, part in files.read_json(path)["parts"].items():
        ratios = part.get("ratios", {})
        arm = f"{name.removeprefix('steps, ')} rows"
        if ratio := ratios.get(f"{slow} / {fast}"):  # of seconds
            ends = ratio["median"], ratio["low"], ratio["high"]
            rows.append([arm, *ends])
        elif ratio := ratios.get(f"{fast} / {slow}"):
            ends = ratio["median"], ratio["high"], ratio["low"]
            rows.append([arm, *(1 / end for end in ends)])
    names = ["arm", "speedup", "speedup_low", "speedup_high"]
    return pd.DataFrame(rows, columns=names)


@styled
def speeds(panels: Mapping[str, pd.DataFrame], reference: str) -> Picture:
    """Bars of speeds against ``reference``, with intervals, a panel a table.

    ``panels``: columns ``arm``, ``speedup`` and its ``_low`` and ``_high``.
    """
    most = max(map(len, panels.values()))
    figure = picture(len(panels), height=1.2 + 0.3 * most)
    for axis, (title, table) in zip(figure.axes, panels.items(), strict=True):
        rows = table.sort_values("speedup")
        low, high = rows["speedup_low"], rows["speedup_high"]
        colours = np.select([low > 1, high < 1], [FASTER, SLOWER], UNKNOWN)
        axis.barh(rows["arm"], rows["speedup"], height=0.65, color=colours)
        ends = [rows["speedup"] - low, high - rows["speedup"]]
        axis.errorbar(rows["speedup"], rows["arm"], xerr=ends, **WHISKERS)
        for place, row in enumerate(rows.to_dict("records")):
            words = f"  {row['speedup']:#.2g}".rstrip(".")
            axis.text(row["speedup_high"], place, words, va="center")
        axis.axvline(1, color=INK, ls="--", lw=1.2)
        axis.set_xlim(0, 1.15 * high.max())
        axis.set_title(title, loc="left")
        axis.set_xlabel(f"times as fast as {reference}")
        axis.tick_params(axis="y", length=0)
        axis.grid(visible=False, axis="y")
    return figure


@styled
def learning(curves: pd.DataFrame, marks: Mapping[str, float]) -> Picture:
    """MRR by training step: means over seeds and their range.

    ``curves``: columns ``model``, ``seed``, ``step``, ``val_mrr``; ``marks``:
    baselines.
    """
    figure = picture(height=3.6)
    axis = figure.axes[0]
    ends = [(value, name, SOFT) for name, value in marks.items()]
    for model, group in curves.groupby("model", sort=False):
        seeds = group.groupby("step")["val_mrr"]
        mean, look = seeds.mean(), line(str(model), markers=False)
        axis.plot(mean, **look, lw=2)
        band: Any = {"color": look["color"], "alpha": 0.15, "lw": 0}
        axis.fill_between(mean.index, seeds.min(), seeds.max(), **band)
        ends.append((mean.iloc[-1], str(model), look["color"]))
    axis.set(xlabel="training step", ylabel="mean reciprocal rank (MRR)")
    axis.set_ylim(0, 1.08 * max(end[0] for end in ends))
    height = -1.0
    for value, name, colour in sorted(ends):
        if name in marks:
            axis.axhline(value, color=SOFT, lw=1.2, ls=":")
        height = max(value, height + 0.06 * axis.get_ylim()[1])
        at: Any = {"xy": (1.01, height), "xycoords": ("axes fraction", "data")}
        axis.annotate(f"{name} {value:.2f}", **at, va="center", color=colour)
    return figure


@styled
def by_day(tables: Mapping[str, pd.DataFrame], column: str) -> Picture:
    """Sums of a column by day, with means of a week: a colour a table.

    ``tables``: with a column ``day``, in order of time.
    """
    figure = picture(height=2.9)
    axis = figure.axes[0]
    for (name, table), colour in zip(tables.items(), DAYS, strict=True):
        days = table.groupby("day")[column].sum()
        axis.plot(days, color=colour, lw=0.8, alpha=0.5)
        week = days.rolling(7, center=True, min_periods=1).mean()
        axis.plot(week, color=colour, lw=2.4)
        words = f"{name}\n{len(table):,} rows"
        look = {"color": colour, "ha": "center", "va": "bottom"}
        look["transform"] = axis.get_xaxis_transform()
        axis.text(days.index.to_numpy().mean(), 1.01, words, **look)
    axis.set(xlabel="day of the year", ylabel=f"{column} a day", ylim=0)
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure


@styled
def controllers(
    steps: pd.DataFrame, message: str, end: int | None = None
) -> Picture:
    """Share of the samples that each controller let through, by batch.

    A panel a controller: the centred median of 9 batches; of several runs the
    median, shaded from the 5th to the 95th percentile. Dashed: asked for.

    Args:
        steps: columns ``controller``, ``seed``, ``step``, ``measured_rate``
            and ``rate``.
        message: what is seen.
        end: the last batch that is shown.
    """
    runs = steps.groupby(["controller", "seed"], sort=False)["measured_rate"]
    smooth = runs.transform(
        lambda run: run.rolling(9, center=True, min_periods=1).median()
    )
    steps = steps.assign(share=smooth)
    names = list(steps["controller"].unique())
    top = 3.5 * steps["rate"].max()
    figure = picture(len(names), height=2.4)
    figure.headline(message)
    for axis, name in zip(figure.axes, names, strict=True):
        batches = steps[steps["controller"] == name].groupby("step")
        ends = batches["share"].quantile([0.05, 0.5, 0.95]).unstack()
        colour = line("gate")["color"]
        axis.fill_between(
            ends.index, ends[0.05], ends[0.95], color=colour, alpha=0.2, lw=0
        )
        axis.plot(ends[0.5], color=colour, lw=1.6)
        axis.plot(batches["rate"].first(), color=INK, ls="--", lw=1)
        if (highest := ends[0.5].max()) > top:
            words = f"up to {100 * highest:.0f} %"
            plain: Any = {"ha": "right", "va": "top", "color": colour}
            axis.text(0.97, 0.97, words, transform=axis.transAxes, **plain)
        axis.set(title=name, xlabel="batch", ylim=(0, top), xlim=(0, end))
        axis.yaxis.set_major_formatter(PercentFormatter(1, 0, " %"))
        axis.label_outer()
    figure.axes[0].set_ylabel("share of a batch")
    return figure
