"""Live board: a figure in a notebook that is redrawn during a run."""

from __future__ import annotations

import base64
import sys
import time
from io import BytesIO
from textwrap import fill, shorten
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from astkit.widgets import frontend
from astkit.widgets.style import SOFT, Picture, line, picture, styled

POINTS = 1000  # maximum number of points per series, and of marked changes of settings
EVERY_S = 2.0  # minimum time between two frames, in seconds
SHARE = 0.1  # maximum share of the time spent on drawing

_TEXT = "<LiveBoard>"  # constant: readers of notebooks compare the text of two runs
_SERIES = {
    "train": ("threshold", "rate", "target_rate", "loss", "flops", "flops_dense", "joules"),
    "epoch": ("val_loss", "val_accuracy"),
}
Curves = dict[str, tuple[str, dict[str, Any]]]
"""Label and style of each series of a panel."""


class LiveBoard:
    """An observer that plots threshold, activation rate, loss, accuracy and cost during a run.

    Drawing is excluded from the trainer's clocks, and limited to a frame every two seconds and a
    tenth of the time; the last frame is always drawn. If drawing fails, training continues without.

    Args:
        live: ``False`` disables the board; ``ASTKIT_LIVE=0`` disables all boards.

    Attributes:
        series: logged values as pairs of step and value, by name; of long runs every second one is
            dropped again and again.
    """

    def __init__(self, live: bool | None = None) -> None:
        self.shown = frontend.mode(live) != "off"
        self.series: dict[str, list[tuple[float, float]]] = {}
        self.events: list[int] = []
        self._reason = "no meter was given"
        self._due = 0.0
        self._handle: Any = None

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Store the metrics of a batch; draw if a frame is due."""
        if phase == "event" and len(self.events) < POINTS:
            self.events.append(step)
        self._reason = metrics.get("joules_reason") or self._reason
        for name in _SERIES.get(phase, ()):
            if metrics.get(name) is not None:
                points = self.series.setdefault(name, [])
                points.append((step, float(metrics[name])))
                if len(points) > POINTS:
                    del points[1::2]
        if self.shown and time.perf_counter() >= self._due:
            self.draw()

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
        points = {name: np.array(each) for name, each in self.series.items()}
        panels = {title: panel for title, panel in _panels(points).items() if panel[1]}
        rows = max(1, -(-len(panels) // 2))
        figure = picture(2, rows, width=5.0, height=2.5, layout=None)
        inch = 1 / (2.5 * rows)
        room = {"left": 0.07, "right": 0.93, "bottom": 0.8 * inch, "top": 1 - 0.35 * inch}
        figure.subplots_adjust(**room, wspace=0.37, hspace=0.55)  # as constrained, but faster
        what = {"joules": f"joules not measured: {self._reason}", "flops": "FLOPs not counted"}
        note = " · ".join(text for name, text in what.items() if name not in points)
        figure.text(0.01, 0.06 * inch, fill(shorten(note, 280), 140), size=8, color=SOFT)
        axes = list(figure.axes)
        for axis, (title, (unit, curves)) in zip(axes, panels.items(), strict=False):
            axis.set_title(title, loc="left", size=10)
            axis.set_xlabel("step (batches)", size=8)
            axis.set_ylabel(unit, size=8)
            _draw(axis, curves, points, self.events)
        for empty in axes[len(panels) :]:
            empty.set_axis_off()
        return figure


def _panels(points: dict[str, NDArray[Any]]) -> dict[str, tuple[str, Curves]]:
    """Unit and curves of each panel by its title; only curves with ``points``."""
    first = {**line("this run", markers=False), "linestyle": "-"}
    dense = {**line("dense", markers=False), "linestyle": "--"}
    thin, dashed = {**first, "lw": 0.8}, {"color": SOFT, "ls": "--", "drawstyle": "steps-pre"}
    learning: Curves = {  # of hard rows the loss is higher
        "loss": ("selected" if "rate" in points else "training", thin),
        "val_loss": ("validation", line(2, markers=False)),
        "val_accuracy": ("accuracy", {**line(5), "ms": 3}),
    }
    cost: Curves = {"flops": ("this run", first), "flops_dense": ("dense", dense)}
    panels: dict[str, tuple[str, Curves]] = {
        "threshold": ("score of a sample", {"threshold": ("threshold", first)}),
        "activation rate": (
            "share of the batch",
            {"rate": ("rate", thin), "target_rate": ("set point", dashed)},
        ),
        "loss, accuracy" if "val_accuracy" in points else "loss": ("mean loss", learning),
    }
    if "joules" in points:
        panels["energy of training"] = "energy (J)", {"joules": ("this run", first)}
    else:
        panels["cost of training"] = "FLOPs, counted", cost
    return {
        title: (unit, {name: curve for name, curve in curves.items() if name in points})
        for title, (unit, curves) in panels.items()
    }


def _draw(axis: Axes, curves: Curves, points: dict[str, NDArray[Any]], marks: list[int]) -> None:
    """Draw ``curves``, accuracy on an axis at the right, and the steps in ``marks``."""
    sides, lines = [axis], []
    for name, (label, style) in curves.items():
        if name == "val_accuracy":
            sides.append(right := axis.twinx())
            right.set(ylim=(0, 1.02))
            right.set_ylabel("validation accuracy", size=8, color=style["color"])
            right.spines.right.set_visible(True)
            right.grid(False)
        lines += sides[-1].plot(*points[name].T, label=label, **style)
    for mark in marks:
        axis.axvline(mark, color=SOFT, lw=0.8, ls=":")
    axis.set_xlim(0, max(points[name][-1, 0] for name in curves) or 1)
    if "threshold" not in curves:
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]) if axis.dataLim.y0 < 0 else 0)
    if "flops" in curves:
        axis.yaxis.set_major_formatter(EngFormatter())
    if len(lines) > 1:  # above the axes, outside the lines
        place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.97), "ncols": 3}
        axis.legend(handles=lines, fontsize=8, columnspacing=0.8, handlelength=1.5, **place)
    for side in sides:
        side.tick_params(labelsize=8)
        side.locator_params(nbins=5)
