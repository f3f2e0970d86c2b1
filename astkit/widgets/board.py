"""What the live board shows of a run: points of its series, a cloud of scores, and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from astkit.widgets.style import (
    COLOURS,
    INK,
    LOOKS,
    PIXELS,
    SELECTED,
    SKIPPED,
    SOFT,
    WIDTH,
    Picture,
    styled,
)

POINTS = 500  # maximum number of points per series
BATCHES = 250  # maximum number of batches whose scores are kept
WINDOW = 9  # shown points of the centred median over a pale noisy series
DECADES = 5  # below the highest score, on a logarithmic axis
SPAN = 100  # batches of the whole axis, doubled when it is full, where the budget tells none
NOISY = ("measured_rate", "loss")

TRAIN = ("threshold", "measured_rate", "rate", "loss", "flops", "flops_dense", "joules")
CURVES: dict[str, dict[str, str]] = {
    "threshold": {"threshold": "threshold"},
    "rate": {"measured_rate": "trained on", "rate": "asked for"},
    "loss": {"loss": "loss", "val_loss": "validation"},
    "metric": {},
    "cost": {"flops": "FLOPs", "flops_dense": "dense"},
}
"""The labels of the series of each panel; the first that is there is wide."""
TITLES = {
    "threshold": "score of each sample",
    "rate": "trained on (dashed: asked for)",
    "loss": "loss (dashed: validation)",
    "metric": "validation",
    "cost": "energy and work (dashed: dense)",
}


@dataclass
class Panel:
    """A panel of the board, as it is now.

    Attributes:
        curves: label of each series.
        value, more: what is written above it, large and small.
        low, high, log: range of its values, and whether the axis is logarithmic.
        joules: upper end of their own axis.
    """

    name: str
    title: str
    curves: dict[str, str]
    value: str = ""
    more: str = ""
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    joules: float = 1.0


class LiveBoard:
    """An observer that keeps what is plotted of a run; a `Dashboard` shows it.

    Args:
        titles: of the panels that are there before they have values, by name.
        steps: batches of the whole run, if they are known.
        unit: of what is counted as work.

    Attributes:
        series: logged values as pairs of step and value, by name; of long runs every second,
            fourth, eighth..., and the newest.
        cloud: of some batches the step, and ``[n, 3]``: step, score, and 1 or 0 for selected or
            not.
        events: step, name and value of each changed setting.
        latest: the latest value of every metric.
        image: what a trainer shows of its current state, uint8 ``[height, width, 3]``, or ``None``.
    """

    seconds = 0.1  # between two reports
    live = True

    def __init__(
        self,
        titles: Mapping[str, str] | None = None,
        steps: int | None = None,
        unit: str = "FLOPs",
    ) -> None:
        self.titles, self.steps, self.unit = dict(titles or {}), steps, unit
        self.series: dict[str, list[tuple[float, float]]] = {}
        self.cloud: list[tuple[int, np.ndarray]] = []
        self.events: list[tuple[int, str, Any]] = []
        self.latest: dict[str, Any] = {"joules_reason": "no meter was given"}
        self.image: np.ndarray | None = None
        self._logged: dict[str, int] = {}
        self._every: dict[str, int] = {}  # logged values from one kept to the next
        self._ranges: dict[str, tuple[float, float]] = {}

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Keep the metrics of a batch, an epoch or a changed setting."""
        if phase == "event":
            self.events.append((step, metrics["name"], metrics["value"]))
            return
        if "scores" in metrics:
            scores, selected = metrics.pop("scores"), metrics.pop("selected")
            dots = np.array([[step] * len(scores), scores, selected], np.float32).T
            self._keep(self.cloud, "scores", (step, dots), BATCHES)
        validated = [name for name in metrics if name.startswith("val_")]
        for name in TRAIN if phase == "train" else validated:
            value = metrics.get(name)
            if isinstance(value, int | float):
                kept = self.series.setdefault(name, [])
                self._keep(kept, name, (step, float(value)), POINTS)
        self.latest |= metrics

    def _keep(self, kept: list[Any], name: str, point: tuple[Any, ...], most: int) -> None:
        number, every = self._logged.get(name, 0), self._every.setdefault(name, 1)
        if kept and (number - 1) % every:
            kept.pop()  # was the newest
        kept.append(point)
        if len(kept) > most:
            kept[:] = [*kept[:-1:2], point]
            self._every[name] = 2 * every
        self._logged[name] = number + 1

    def close(self) -> None:
        """Does nothing."""

    @property
    def step(self) -> int:
        """The step of the newest point."""
        return int(max((points[-1][0] for points in self.series.values()), default=0))

    @property
    def total(self) -> int:
        """Batches of the whole axis: of the run, or a number that doubles when it is full."""
        if self.steps and self.step <= self.steps:
            return self.steps
        return SPAN * 2 ** math.ceil(math.log2(max(1, self.step / SPAN)))

    def panels(self) -> list[Panel]:
        """The panels, in order: those that were named, and those for which there are values."""
        found = []
        metrics = [each for each in self.series if each.startswith("val_") and each != "val_loss"]
        for name, curves in CURVES.items():
            title = self.titles.get(name, TITLES[name])
            if name == "metric" and metrics:
                curves = {metrics[0]: metrics[0].removeprefix("val_")}
                title = f"{title} {curves[metrics[0]]}".strip()
            if name in {"cost", *self.titles} or curves.keys() & self.series.keys():
                panel = Panel(name, title, curves, *self._words(name, [*curves]))
                self._scale(panel)
                found.append(panel)
        return found

    def _newest(self, name: str) -> float | None:
        """The newest value of a series; of a noisy one the median that is drawn."""
        points = self.series.get(name, [])[-1 - WINDOW // 2 * (name in NOISY) :]
        return float(np.median([value for _, value in points])) if points else None

    def _words(self, panel: str, curves: list[str]) -> tuple[str, str]:
        """The latest value of a panel, and what is said beside it."""
        if panel == "cost":
            return self._cost()
        first, second = ([*map(self._newest, curves), None, None])[:2]
        if first is None:
            return "–", ""
        if panel == "rate":
            second = first if second is None else second
            digits = int(second < 0.1)
            return _percent(first, digits), f"of {_percent(second, digits)}"
        if panel == "metric":
            return _percent(first, 1) if curves == ["val_accuracy"] else f"{first:.3g}", ""
        return _short(first), "" if second is None else f"validation {_short(second)}"

    def _cost(self) -> tuple[str, str]:
        """What the run has cost so far: joules where they are read, and FLOPs beside dense."""
        flops, dense, joules = map(self.latest.get, ("flops", "flops_dense", "joules"))
        if not flops or not dense:
            words = ("–" if self.step == 0 else f"{self.unit.strip()} not counted", "")
        else:
            saved, unit = 1 - flops / dense, 10 ** (3 * math.floor(math.log10(dense) / 3))
            prefix = EngFormatter.ENG_PREFIXES[round(math.log10(unit))]
            kind = f"{_percent(abs(saved))} {'saved' if saved >= 0 else 'more'}"
            words = (
                kind,
                f"{flops / unit:.3g} of {dense / unit:.3g} {prefix}{self.unit}".replace("  ", " "),
            )
        return words if joules is None else (f"{joules:.3g} J", f"FLOPs: {words[0]}")

    def _scale(self, panel: Panel) -> None:
        """Set the range of a panel, which never shrinks, and grows by half decades."""
        parts = [[value for _, value in self.series.get(name, ())] for name in panel.curves]
        dots = [each[:, 1] for _, each in self.cloud] if panel.name == "threshold" else []
        values = np.sort(np.concatenate([*parts, *dots, []]))
        values = values[np.isfinite(values)]
        if panel.name in ("threshold", "loss") and len(values) and values[0] >= 0 < values[-1]:
            panel.log, values = True, values[values > 0]  # 0 lies at its lower end
        count = len(values)
        # between the 1st percentile and the 99.9th
        low, high = (
            values[[count // 100, -1 - max(count // 1000, count > 100)]] if count else (0, 1)
        )
        if panel.name == "cost":
            panel.high = self._whole("flops_dense")
            panel.joules = _half(2 * self._whole("joules"))  # below the FLOPs
        elif panel.log:
            panel.high = _half(high)
            panel.low = min(_half(max(low, high / 10**DECADES), math.floor), panel.high / 10)
        else:
            panel.low = -_half(-low) if low < 0 else 0.0
            panel.high = _half(high) if high > 1 or 0 < high < 0.1 else float(high > 0 or low >= 0)
        key = f"{panel.name} {panel.log}"
        low, high = self._ranges.get(key, (panel.low, panel.high))
        panel.low, panel.high = self._ranges[key] = min(low, panel.low), max(high, panel.high)

    def _whole(self, name: str) -> float:
        """What a series that grows evenly is at the end of the axis, and a little more."""
        step, value = ([(0, 0.0), *self.series.get(name, ())])[-1]
        return 1.05 * value * self.total / step if value > 0 else 1.0

    def notes(self) -> list[str]:
        """Why there are no joules, if there are none."""
        reason = self.latest["joules_reason"]
        return (
            [f"no joules: {reason}"] if reason and self.step and "joules" not in self.series else []
        )

    @styled
    def picture(self, caption: str = "") -> Picture:
        """The panels as in the browser, with ``caption`` and what is missing below."""
        wide, *small = self.panels()
        said = [part for text in (caption, *self.notes()) if text for part in wrap(text, 120)]
        height = 2.45 + 1.2 * bool(small) + 0.16 * len(said)
        figure = Picture(figsize=(WIDTH, height), dpi=2 * PIXELS)
        figure.alt = "; ".join(f"{each.title} {each.value}" for each in (wide, *small))
        middle, side = 1 - 2.1 / height, 0.0
        if self.image is not None:
            tall, broad = self.image.shape[:2]
            side = min(0.4, 1.85 * broad / tall / WIDTH)
            shown = figure.add_axes((0.99 - side, middle, side, 1.85 / height), anchor="N")
            shown.set_title("current state", loc="left", size=8, color=SOFT, pad=5)
            shown.imshow(self.image, interpolation="nearest")
            shown.set_axis_off()
            side += 0.03
        axis = figure.add_axes((0.07, middle, 0.91 - side, 1.85 / height))
        self._curves(axis, wide)
        axis.set_title(wide.title, loc="left", size=8, color=SOFT, pad=5)
        axis.set_xlabel("batch", loc="right", labelpad=-9, size=8)
        free = 0.92 * self.total  # the last number would stand below the word
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x < free else "")
        for place, panel in enumerate(small):
            left, own = 0.07 + 0.93 * place / len(small), 0.93 / len(small) - 0.065
            axis = figure.add_axes((left, middle - 1.35 / height, own, 0.7 / height))
            self._curves(axis, panel)
            axis.set_title(panel.title, loc="left", size=8, color=SOFT, pad=20)
            axis.set_xticks([])
            axis.text(0, 1.1, panel.value, size=12, weight="bold", transform=axis.transAxes)
            more = panel.more if len(panel.value + panel.more) < 21 else ""
            axis.text(1.1, 1.1, more, size=7, color=SOFT, ha="right", transform=axis.transAxes)
        figure.text(0.02, 0.08 / height, "\n".join(said), size=8, color=SOFT, va="bottom")
        return figure

    def _curves(self, axis: Axes, panel: Panel) -> None:
        """Draw the curves of one panel."""
        if panel.name == "threshold":
            self._scores(axis)
        colours = [INK if panel.name == "threshold" else LOOKS["this run"][0], INK]
        if panel.name == "cost":
            colours[1] = LOOKS["dense"][0]
        for place, name in enumerate(panel.curves):
            if not self.series.get(name):
                continue
            x, y = np.transpose(self.series[name])
            if name in NOISY:
                axis.plot(x, y, color=colours[place], lw=0.7, alpha=0.35)
                mean = pd.Series(y).rolling(WINDOW, min_periods=1, center=True).median()
                y = mean.where(np.isfinite(y)).to_numpy()
            axis.plot(x, y, color=colours[place], lw=1.4, ls=("-", "--")[place])
        axis.axvspan(self.step, self.total, color=INK, alpha=0.04, lw=0)
        whole = axis.get_xaxis_transform()  # from the lower end to the upper
        axis.vlines([event[0] for event in self.events], 0, 1, SOFT, ":", lw=0.8, transform=whole)
        axis.set(xlim=(0, self.total), ylim=(panel.low, panel.high))
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(2))
        if panel.log:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator())
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        if panel.name == "cost":
            axis.yaxis.set_major_formatter(EngFormatter(sep=""))
        if panel.name == "cost" and self.series.get("joules"):  # on an axis of their own
            right = axis.twinx()
            right.set_axis_off()
            right.plot(*np.transpose(self.series["joules"]), color=COLOURS[0], lw=1.4, ls=":")
            right.set_ylim(0, panel.joules)
            step, value = self.series["joules"][-1]
            right.text(step, value, "joules", color=COLOURS[0], size=8, ha="right", va="bottom")

    def _scores(self, axis: Axes) -> None:
        """A dot for each score, in the colours of selected and skipped rows, and their names."""
        dots = [each for _, each in self.cloud]
        steps, scores, selected = np.concatenate([np.empty((0, 3)), *dots]).T
        looks = ("trained on", SELECTED, selected > 0), ("skipped", SKIPPED, selected == 0)
        for place, (label, colour, mask) in enumerate(looks):
            axis.plot(steps[mask], scores[mask], ".", color=colour, ms=2, alpha=0.5)
            axis.text(
                0.3 + 0.12 * place,
                1.02,
                label,
                color=colour,
                weight="bold",
                transform=axis.transAxes,
            )
        if self.series.get("threshold"):
            step, value = self.series["threshold"][-1]
            words = f"threshold {value:.2g} "
            axis.text(step, value, words, ha="right", va="bottom", size=9, weight="bold")


def _short(value: float) -> str:
    return f"{value:#.2g}".rstrip(".")


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _half(value: float, rounded: Any = math.ceil) -> float:
    """``value``, above 0, rounded to half a decade."""
    return float(10 ** (rounded(2 * math.log10(value) - 1e-9) / 2))
