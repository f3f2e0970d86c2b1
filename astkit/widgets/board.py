"""Live board: a figure in a notebook that is redrawn during a run."""

from __future__ import annotations

import base64
import sys
import time
from io import BytesIO
from textwrap import fill, shorten
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import EngFormatter, MaxNLocator

from astkit.widgets import frontend
from astkit.widgets.style import SOFT, Picture, line, picture, styled

POINTS = 1000  # maximum number of points per series
EVERY_S = 2.0  # minimum time between two frames, in seconds
SHARE = 0.1  # maximum share of the time spent on drawing

WINDOW = 20  # shown points of the running mean over a pale noisy series
NOISY = ("measured_rate", "loss")

_TEXT = "<LiveBoard>"  # constant: readers of notebooks compare the text of two runs
_SERIES = {
    "train": ("threshold", "measured_rate", "rate", "loss", "flops", "flops_dense", "joules"),
    "epoch": ("val_loss", "val_accuracy"),
}
PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("threshold", "score of a sample", {"threshold": "threshold"}),
    (
        "activation rate",
        "share (line: mean of 20)",
        {"measured_rate": "measured", "rate": "set point"},
    ),
    (
        "loss",
        "loss (line: mean of 20)",
        {"loss": "rows trained on, hard ones", "val_loss": "validation"},
    ),
    ("validation accuracy", "share of the samples", {"val_accuracy": "accuracy"}),
    ("cost of training", "FLOPs, counted", {"flops": "this run", "flops_dense": "dense"}),
    ("energy of training", "energy (J)", {"joules": "this run"}),
)
"""Title, unit, and the labels of the series of each panel."""


class LiveBoard:
    """An observer that plots threshold, activation rate, loss, accuracy and cost during a run.

    Drawing is excluded from the trainer's clocks, and limited to a frame every two seconds and a
    tenth of the time; the last frame is always drawn. If drawing fails, training continues without.

    Args:
        live: ``False`` disables the board.

    Attributes:
        series: logged values as pairs of step and value, by name; of long runs every second,
            fourth, eighth..., and the newest.
    """

    def __init__(self, live: bool | None = None) -> None:
        self.shown = frontend.mode(live) != "off"
        self.series: dict[str, list[tuple[float, float]]] = {}
        self.events: list[int] = []
        self._reason = "no meter was given"
        self._logged: dict[str, int] = {}
        self._every: dict[str, int] = {}  # logged values from one kept to the next
        self._due = 0.0
        self._handle: Any = None

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Store the metrics of a batch; draw if a frame is due."""
        if phase == "event":
            self.events.append(step)
        self._reason = metrics.get("joules_reason") or self._reason
        for name in _SERIES.get(phase, ()):
            if metrics.get(name) is not None:
                self._keep(name, (step, float(metrics[name])))
        if self.shown and time.perf_counter() >= self._due:
            self.draw()

    def _keep(self, name: str, point: tuple[float, float]) -> None:
        points, number = self.series.setdefault(name, []), self._logged.get(name, 0)
        every = self._every.setdefault(name, 1)
        if points and (number - 1) % every:
            points.pop()  # was the newest
        points.append(point)
        if len(points) > POINTS:
            points[:] = [*points[:-1:2], point]
            self._every[name] = 2 * every
        self._logged[name] = number + 1

    def draw(self) -> None:
        """Draw a frame now, replacing the previous one."""
        start = time.perf_counter()
        try:
            self._show()
        except Exception as error:  # errors in drawing must not end a training run
            self.shown = False
            print(f"the live board is off, training continues: {error!r}", file=sys.stderr)
        end = time.perf_counter()
        self._due = end + max(EVERY_S, (end - start) / SHARE)

    def _show(self) -> None:
        from IPython.display import display

        file = BytesIO()
        self.picture().savefig(file, dpi=80, pil_kwargs={"compress_level": 1})  # fast, not small
        bundle = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": _TEXT}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def close(self) -> None:
        """Draw the last frame."""
        if self.shown and self.series:
            self.draw()

    @styled
    def picture(self) -> Picture:
        """A panel for each measured quantity, and a note about those not measured."""
        points = {name: np.reshape(each, (-1, 2)).T for name, each in self.series.items()}
        panels = [panel for panel in PANELS if panel[2].keys() & points.keys()]
        rows = max(1, -(-len(panels) // 2))
        figure = picture(2, rows, width=5.0, height=2.5, layout=None)  # several times faster
        room = {"left": 0.1, "right": 0.98, "bottom": 0.32 / rows, "top": 1 - 0.14 / rows}
        figure.subplots_adjust(**room, wspace=0.25, hspace=0.7)
        for axis, (title, unit, curves) in zip(figure.axes, panels, strict=False):
            axis.set(title=title, xlabel="step (batches)", ylabel=unit)
            for place, (name, label) in enumerate(curves.items()):
                if name not in points:
                    continue
                style = line(("this run", "dense")[place], markers=False)
                style |= {"linestyle": ("-", "--")[place], "lw": 1.2}
                if place and name != "flops_dense":
                    style["color"] = SOFT
                x, y = points[name]
                if name in NOISY:
                    axis.plot(x, y, color=style["color"], lw=0.7, alpha=0.35)
                    mean = pd.Series(y).rolling(WINDOW, min_periods=1).mean()
                    y = mean.where(np.isfinite(y)).to_numpy()
                axis.plot(x, y, label=label, marker="o" if len(x) == 1 else None, **style)
            whole = axis.get_xaxis_transform()  # from the lower end to the upper
            axis.vlines(self.events, 0, 1, SOFT, ":", lw=0.8, transform=whole)
            axis.set_xlim(left=0)
            axis.xaxis.set_major_locator(MaxNLocator(5))
            if title != "threshold":
                axis.set_ylim(bottom=min(0.0, axis.dataLim.y0))
            if "flops" in curves:
                axis.yaxis.set_major_formatter(EngFormatter())
            if len(curves) > 1:
                axis.legend(fontsize=8)
        for empty in figure.axes[len(panels) :]:
            empty.set_axis_off()
        what = {"joules": f"joules not measured: {self._reason}", "flops": "FLOPs not counted"}
        note = " · ".join(text for name, text in what.items() if name not in points)
        figure.text(0.01, 0.02, fill(shorten(note, 280), 140), size=8, color=SOFT)
        return figure
