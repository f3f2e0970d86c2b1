"""The live board: one picture in a notebook that follows a run, and never its timings."""

from __future__ import annotations

import base64
import sys
import time
from textwrap import fill, shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astkit.widgets import frontend
from astkit.widgets.live_figure import Curve, LiveFigure, Panel, Series
from astkit.widgets.style import Picture, line

POINTS = 500
_TEXT = "<LiveBoard>"  # constant: readers of notebooks compare the text of two runs

_SERIES = ("threshold", "rate", "target_rate", "loss", "flops", "flops_dense", "joules")


class LiveBoard:
    """An observer that draws threshold, activation rate, loss and accuracy, and cost while it runs.

    It is told of every batch while no clock of the trainer runs, and draws only as often as
    ``every_s`` and ``max_share`` allow; the last frame is drawn always. When drawing fails the
    board switches itself off and training goes on.

    Args:
        every_s: seconds between two frames, at least.
        max_share: share of the time since the first frame that drawing may take, in (0, 1].
        live: ``False`` shows nothing; ``ASTKIT_LIVE=0`` does that for all boards.

    Attributes:
        set_up: seconds of CPU time that the first frame took: loading matplotlib, laying out.
        spent: seconds of CPU time that all further frames have taken; ``max_share`` is theirs.
        frames: how many frames were drawn.

    Raises ``ValueError`` for a share outside (0, 1] or negative seconds.
    """

    def __init__(
        self,
        every_s: float = 2.0,
        max_share: float = 0.02,
        live: bool | None = None,
    ) -> None:
        if not 0 < max_share <= 1:
            raise ValueError(f"max_share is {max_share}: give a share above 0 and at most 1")
        if not every_s >= 0:
            raise ValueError(f"every_s is {every_s}: give seconds, 0 or more")
        self.every_s, self.max_share = every_s, max_share
        self.missing = "no meter was given"
        self.shown = frontend.mode(live) != "off"
        self.set_up, self.spent, self.frames = 0.0, 0.0, 0
        self.steps: dict[str, list[float]] = {name: [] for name in ("step", *_SERIES)}
        self.epochs: dict[str, list[float]] = {"step": [], "val_accuracy": []}
        self.events: list[int] = []
        self._started: float | None = None
        self._last = 0.0
        self._handle: Any = None
        self._figure: LiveFigure | None = None
        self._joules_shown = False

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Keep the numbers of a batch; draw if a frame is due."""
        if phase == "event":
            self.events.append(step)
        elif phase == "epoch" and "val_accuracy" in metrics:
            self.epochs["step"].append(step)
            self.epochs["val_accuracy"].append(metrics["val_accuracy"])
        elif phase == "train":
            self.missing = metrics.get("joules_reason") or self.missing
            self.steps["step"].append(step)
            for name in _SERIES:
                value = metrics.get(name)
                self.steps[name].append(float("nan") if value is None else float(value))
        if self.shown and self._due():
            self.draw()

    def _due(self) -> bool:
        now = time.perf_counter()
        if self._started is None:
            return True
        allowed = self.max_share * (now - self._started)
        return now - self._last >= self.every_s and self.spent <= allowed

    def draw(self) -> None:
        """Draw a frame now and put it in the place of the one before."""
        start = time.thread_time()
        try:
            self._show()
        except Exception as error:  # whatever it is, it is not worth a training run
            self.shown = False
            print(f"the live board is off, training goes on: {error!r}", file=sys.stderr)
        cost = time.thread_time() - start
        self._last = time.perf_counter()
        self.frames += 1
        if self._started is None:
            self._started, self.set_up = self._last, cost
        else:
            self.spent += cost

    def _show(self) -> None:
        from IPython.display import display

        measured = self._measured()
        if self._figure is None or measured != self._joules_shown:
            self._figure, self._joules_shown = self._new_figure(), measured
        figure = self._figure
        figure.update(self._series(), self.events)
        png = base64.b64encode(figure.png()).decode()
        bundle = {"image/png": png, "text/plain": _TEXT}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def close(self) -> None:
        """Draw the last frame."""
        if self.shown and self.steps["step"]:
            self.draw()

    def picture(self) -> Picture:
        """What the board has seen, as a picture of its own."""
        figure = self._new_figure()
        figure.update(self._series(), self.events)
        return figure.finished()

    def _measured(self) -> bool:
        return bool(np.isfinite(self.steps["joules"]).any())

    def _series(self) -> dict[str, Series]:
        steps = _thinned(self.steps["step"])
        series = {name: (steps, _thinned(self.steps[name])) for name in _SERIES}
        accuracy = self.epochs["step"], self.epochs["val_accuracy"]
        return {**series, "val_accuracy": (_thinned(accuracy[0]), _thinned(accuracy[1]))}

    def _new_figure(self) -> LiveFigure:
        solid, dashed = line(0, markers=False), line(1, markers=False)
        dense = [Curve("flops_dense", "dense", dashed)]
        cost = Panel("joules", [Curve("joules", "this run", solid)], 0.0)
        if not self._measured():
            title = fill(shorten(f"joules not measured: {self.missing}", 80), 44)
            cost = Panel(
                title,
                [*dense, Curve("flops", "this run", solid)],
                0.0,
                "FLOPs, counted",
                "upper left",
            )
        accuracy = Curve("val_accuracy", "accuracy", {**line(1), "ms": 3}, right=True)
        return LiveFigure(
            [
                Panel("threshold", [Curve("threshold", "", solid)]),
                Panel(
                    "activation rate",
                    [
                        Curve("rate", "rate", {**solid, "lw": 1.0}),
                        Curve("target_rate", "set point", {**dashed, "lw": 2.0}),
                    ],
                    0.0,
                ),
                Panel("loss, validation accuracy", [Curve("loss", "loss", solid), accuracy], 0.0),
                cost,
            ]
        )


def _thinned(values: list[float]) -> NDArray[np.float64]:
    # means of equal stretches, because leaving points out would show noise that is not there
    array = np.asarray(values, dtype=float)
    stretch = -(-len(array) // POINTS)
    if stretch < 2:
        return array
    starts = np.arange(0, len(array), stretch)
    return np.add.reduceat(array, starts) / np.diff(np.append(starts, len(array)))
