"""What the live board shows of a run: points of its series, a cloud of scores, and a picture."""

from __future__ import annotations

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

POINTS = 1000  # maximum number of points per series
BATCHES = 250  # maximum number of batches whose scores are kept
WINDOW = 20  # shown points of the running mean over a pale noisy series
DECADES = 5  # below the highest score, on a logarithmic axis
NOISY = ("measured_rate", "loss")
_COLOURS = {"threshold": INK, "rate": SOFT, "val_loss": SOFT, "flops_dense": LOOKS["dense"][0]}

_TRAIN = ("threshold", "measured_rate", "rate", "loss", "flops", "flops_dense", "joules")
CURVES: dict[str, tuple[str, dict[str, str]]] = {
    "threshold": ("threshold and scores", {"threshold": "threshold"}),
    "rate": ("activation rate", {"measured_rate": "measured", "rate": "set point"}),
    "loss": ("loss", {"loss": "rows trained on", "val_loss": "validation"}),
    "metric": ("validation", {}),
    "cost": ("cost and energy", {"flops": "FLOPs, this run", "flops_dense": "FLOPs, dense"}),
}
"""Title, and the labels of the series, of each panel."""


Scores = tuple[float, list[float], list[float]]


class LiveBoard:
    """An observer that keeps what is plotted of a run; a `Dashboard` shows it.

    Attributes:
        series: logged values as pairs of step and value, by name; of long runs every second,
            fourth, eighth..., and the newest.
        cloud: of some batches the step, scores ``[n]``, and 1 or 0 for selected or not ``[n]``.
        events: step, name and value of each changed setting.
        latest: the latest value of every metric.
    """

    seconds = 0.1  # between two reports
    live = True

    def __init__(self) -> None:
        self.series: dict[str, list[tuple[float, float]]] = {}
        self.cloud: list[Scores] = []
        self.events: list[tuple[int, str, Any]] = []
        self.latest: dict[str, Any] = {"joules_reason": "no meter was given"}
        self._logged: dict[str, int] = {}
        self._every: dict[str, int] = {}  # logged values from one kept to the next

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Keep the metrics of a batch, an epoch or a changed setting."""
        if phase == "event":
            self.events.append((step, metrics["name"], metrics["value"]))
            return
        if "scores" in metrics:
            batch = (step, metrics.pop("scores"), metrics.pop("selected"))
            self._keep(self.cloud, "scores", batch, BATCHES)
        validated = [name for name in metrics if name.startswith("val_")]
        for name in _TRAIN if phase == "train" else validated:
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

    def panels(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Title and curves of the panels for which there are values."""
        found = {}
        metrics = [each for each in self.series if each.startswith("val_") and each != "val_loss"]
        for name, (title, curves) in CURVES.items():
            if name == "metric" and metrics:
                title, curves = metrics[0].replace("val_", "validation "), {metrics[0]: ""}
            if name == "cost" or curves.keys() & self.series.keys():
                found[name] = (title, curves)
        return found

    def cost(self) -> list[str]:
        """What the run has cost so far: FLOPs, units of the original's energy, joules."""
        latest = self.latest
        flops, dense = latest.get("flops"), latest.get("flops_dense")
        said = ["FLOPs not counted"]
        if flops is not None and dense:
            saved = 1 - flops / dense
            less = f"{saved:.0%} of the FLOPs saved" if saved >= 0 else f"{-saved:.0%} more FLOPs"
            own, all_rows = (EngFormatter("FLOPs", places=2)(each) for each in (flops, dense))
            said = [f"{own}, dense training of the same rows {all_rows}: {less}"]
        if latest.get("origin_units") is not None:
            units, every = latest["origin_units"], latest["origin_units_dense"]
            words = "the original's units (10 an activation, 0.1 a skip)"
            said.append(f"{words}: {units:,.0f} of {every:,.0f}")
        joules, reason = latest.get("joules"), latest.get("joules_reason")
        return [*said, f"no joules here: {reason}" if joules is None else f"{joules:.4g} J"]

    @styled
    def picture(self, caption: str = "") -> Picture:
        """A panel for each measured quantity, the cost in words, and ``caption`` below."""
        panels = self.panels()
        words = [*self.cost(), *[caption] * bool(caption)]
        said = [part for text in words for part in wrap(text, 110)]
        names = [name for name in panels if name != "threshold"]
        places: list[Any] = [["threshold"] * 2] * ("threshold" in panels)
        places += [[*names[row : row + 2], "."][:2] for row in range(0, len(names), 2)]
        below = 0.2 + 0.17 * len(said)
        height = 2.2 * len(places) + below
        figure = Picture(figsize=(WIDTH, height), dpi=2 * PIXELS)
        axes = figure.subplot_mosaic(places)
        figure.subplots_adjust(
            left=0.11, right=0.91, top=1 - 0.3 / height, bottom=(0.45 + below) / height, hspace=0.65
        )
        for name, axis in axes.items():
            title, curves = panels[str(name)]
            axis.set_title(title)
            self._curves(axis, str(name), curves)
        figure.text(0.02, 0.1 / height, "\n".join(said), size=9, color=SOFT, va="bottom")
        return figure

    def _curves(self, axis: Axes, panel: str, curves: dict[str, str]) -> None:
        """Draw the curves of one panel."""
        if panel == "threshold":
            self._scores(axis)
        for place, (name, label) in enumerate(curves.items()):
            if not self.series.get(name):
                continue
            x, y = np.transpose(self.series[name])
            colour = _COLOURS.get(name, LOOKS["this run"][0])
            if name in NOISY:
                axis.plot(x, y, color=colour, lw=0.7, alpha=0.35)
                mean = pd.Series(y).rolling(WINDOW, min_periods=1).mean()
                y = mean.where(np.isfinite(y)).to_numpy()
                label = f"{label}, mean of {WINDOW}"
            look: Any = {"color": colour, "lw": 1.2, "ls": ("-", "--")[place]}
            axis.plot(x, y, label=label, marker="o" if len(x) == 1 else None, **look)
        whole = axis.get_xaxis_transform()  # from the lower end to the upper
        axis.vlines([event[0] for event in self.events], 0, 1, SOFT, ":", lw=0.8, transform=whole)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axis.set_xlabel("step (batches)")
        if panel != "threshold":
            axis.set_ylim(bottom=min(0.0, axis.dataLim.y0))
        if panel == "cost":
            axis.yaxis.set_major_formatter(EngFormatter())
        if panel == "cost" and self.series.get("joules"):  # on an axis of their own
            x, y = np.transpose(self.series["joules"])
            right = axis.twinx()
            right.grid(False)
            right.spines["right"].set_visible(True)
            look = {"color": COLOURS[0], "lw": 1.4, "ls": ":"}
            right.plot(x, y, **look)
            right.yaxis.set_major_formatter(EngFormatter())
            right.set_ylim(0, 1.5 * max(y) or 1)  # else on the line of the FLOPs
            right.set_ylabel("joules", color=COLOURS[0])
            axis.plot([], [], label="joules", **look)
        if len(axis.get_legend_handles_labels()[0]) > 1:
            axis.legend(fontsize=8)

    def _scores(self, axis: Axes) -> None:
        """A dot for each score, in the colours of selected and skipped rows."""
        axis.set_ylabel("score of a sample")
        parts = [np.array(np.broadcast_arrays(*each)) for each in self.cloud]
        steps, scores, selected = np.concatenate([np.empty((3, 0)), *parts], axis=1)
        looks = ("selected", SELECTED, selected > 0), ("skipped", SKIPPED, selected == 0)
        for label, colour, mask in looks:
            axis.plot(steps[mask], scores[mask], ".", color=colour, ms=2, alpha=0.5, label=label)
        values = [*scores, *(value for _, value in self.series["threshold"])]
        finite = np.array(values)[np.isfinite(values)]
        if (finite >= 0).all() and (finite > 0).any():
            top = finite.max()
            axis.set_yscale("log")  # 0 lies at its lower end
            low = max(finite[finite > 0].min(), top / 10**DECADES)
            axis.set_ylim(low / 1.5, top * 1.5)
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if top < 100 * low else (1,)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
