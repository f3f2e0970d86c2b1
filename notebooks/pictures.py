"""Figures of the notebooks, from tables and logs: nothing is trained here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator, PercentFormatter

from astkit import files
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

FASTER, SLOWER, UNKNOWN = "#5F7F95", "#A4161A", "#d0d0d0"  # of `speeds`
WHISKERS: Any = {"fmt": "none", "ecolor": INK, "capsize": 3, "lw": 1.2}
NAMED = 4  # points of `forecasts` that have their names
NEAR = 10.0  # points or percent up to which axes are linear
SHOWN = (-0.6, 1.25)  # ends of the axis of `shares`
LABELS = {
    "dense+target": "dense + validation rows",
    "random@infobatch": "random at the rate of infobatch",
}


def bar(
    axis: Axes,
    height: float,
    values: tuple[float, float, float],
    limits: tuple[float, float],
    look: dict[str, Any],
) -> None:
    """A mean with its interval; an arrow and a number outside of ``limits``.

    An interval that reaches further ends in an arrow at the edge.
    """
    mean, low, high = values
    if limits[0] <= mean <= limits[1]:
        first, last = max(low, limits[0]), min(high, limits[1])
        errors = [[mean - first], [last - mean]]
        axis.errorbar([mean], [height], xerr=errors, capsize=3, **look)
        for end, shown, marker in ((low, first, "<"), (high, last, ">")):
            if end != shown:
                axis.plot([shown], [height], **{**look, "marker": marker})
        return
    beyond = mean > limits[1]
    place: dict[str, Any] = {"va": "center", "size": 9}
    place["ha"] = "right" if beyond else "left"
    text = f"{mean:.3g} ▶" if beyond else f"◀ {mean:.3g}"
    axis.text(limits[beyond], height, text, color=look["color"], **place)


def label_rows(
    axis: Axes, names: list[str], beside: list[str], wide: int = 30
) -> None:
    """Names on the left, what stands ``beside`` them on the right."""
    axis.set_yticks(range(len(names)), [fill(name, wide) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    right = axis.secondary_yaxis("right")
    right.set_yticks(range(len(names)), beside)
    for side in (axis, right):
        side.tick_params(axis="y", length=0)
    right.spines["right"].set_visible(False)


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
    """Bars of speeds with their intervals, a panel a table.

    Args:
        panels: by title, columns ``arm``, ``speedup``, ``speedup_low`` and
            ``speedup_high``.
        reference: than what a speed above 1 is faster.
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

    Args:
        curves: columns ``model``, ``seed``, ``step`` and ``val_mrr``.
        marks: values of the baselines, drawn as lines.
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
