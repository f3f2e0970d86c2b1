"""The live board: one picture in a notebook that follows a run, and never its timings."""

from __future__ import annotations

import base64
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astkit.widgets import frontend
from astkit.widgets.live_figure import FLOPS, LiveFigure, Panel
from astkit.widgets.style import Picture, line

POINTS = 1000
"""A series keeps at most so many points, however long the run; an even number."""

MARKS = 100
"""At most so many changes of settings are marked."""

_TEXT = "<LiveBoard>"  # constant: readers of notebooks compare the text of two runs
_SERIES = {
    "train": ("threshold", "rate", "target_rate", "loss", "flops", "flops_dense", "joules"),
    "epoch": ("val_loss", "val_accuracy"),
}


class Trace:
    """A series of bounded length: when it is full, each two neighbours become one point.

    A point is the mean of ``stride`` values in a row: leaving values out would show noise that is
    not there.
    """

    def __init__(self) -> None:
        self.stride = 1
        self._points: list[tuple[float, float]] = []
        self._x = self._y = 0.0
        self._open = 0

    def add(self, x: float, y: float) -> None:
        """Append a value."""
        self._x, self._y, self._open = self._x + x, self._y + y, self._open + 1
        if self._open < self.stride:
            return
        self._points.append((self._x / self.stride, self._y / self.stride))
        self._x = self._y = 0.0
        self._open = 0
        if len(self._points) == POINTS:
            pairs = np.array(self._points).reshape(-1, 2, 2).mean(axis=1)
            self._points = [(x, y) for x, y in pairs.tolist()]
            self.stride *= 2

    def points(self) -> NDArray[np.float64]:
        """x and y of each point."""
        rest = [(self._x / self._open, self._y / self._open)] if self._open else []
        return np.array(self._points + rest, dtype=float).reshape(-1, 2)


class LiveBoard:
    """An observer that draws threshold, activation rate, loss and accuracy, and cost while it runs.

    It is told of every batch while no clock of the trainer runs, and draws only as often as
    ``every_s`` and ``max_share`` allow; the last frame is drawn always. It keeps at most `POINTS`
    points of each series. When drawing fails the board switches itself off and training goes on.

    Args:
        every_s: seconds between two frames, at least.
        max_share: share of the time since the first frame that drawing may take, in (0, 1].
        live: ``False`` shows nothing; ``ASTKIT_LIVE=0`` does that for all boards.

    Attributes:
        series: what was logged, by name.
        set_up: seconds of CPU time that the first frame took: loading matplotlib, laying out.
        spent: seconds of CPU time that all further frames have taken; ``max_share`` is theirs.
        frames: how many frames were drawn.

    Raises ``ValueError`` for a share outside (0, 1] or negative seconds.
    """

    def __init__(
        self, every_s: float = 2.0, max_share: float = 0.02, live: bool | None = None
    ) -> None:
        if not 0 < max_share <= 1:
            raise ValueError(f"max_share is {max_share}: give a share above 0 and at most 1")
        if not every_s >= 0:
            raise ValueError(f"every_s is {every_s}: give seconds, 0 or more")
        self.every_s, self.max_share = every_s, max_share
        self.shown = frontend.mode(live) != "off"
        self.set_up, self.spent, self.frames = 0.0, 0.0, 0
        self.series = {name: Trace() for names in _SERIES.values() for name in names}
        self.events: list[int] = []
        self._reason = "no meter was given"
        self._started: float | None = None
        self._last = 0.0
        self._handle: Any = None
        self._figure: LiveFigure | None = None
        self._built_for: object = None

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Keep the numbers of a batch; draw if a frame is due."""
        if phase == "event" and len(self.events) < MARKS:
            self.events.append(step)
        self._reason = metrics.get("joules_reason") or self._reason
        for name in _SERIES.get(phase, ()):
            if metrics.get(name) is not None:
                self.series[name].add(step, float(metrics[name]))
        if self.shown and self._due():
            self.draw()

    def _due(self) -> bool:
        now = time.perf_counter()
        if self._started is None:
            return True
        allowed = self.max_share * (now - self._started)
        return now - self._last >= self.every_s and self.spent <= allowed

    def draw(self, last: bool = False) -> None:
        """Draw a frame now and put it in the place of the one before.

        ``last``: let the axes end where the run did.
        """
        start = time.thread_time()
        try:
            self._show(last)
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

    def _show(self, last: bool) -> None:
        from IPython.display import display

        points = self._points()
        if self._figure is None or self._built_for != (set(points), self._reason):
            self._figure = self._new_figure(points)
            self._built_for = (set(points), self._reason)
        self._figure.update(points, self.events, fit=last)
        png = base64.b64encode(self._figure.png()).decode()
        bundle = {"image/png": png, "text/plain": _TEXT}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def close(self) -> None:
        """Draw the last frame."""
        if self.shown and self._points():
            self.draw(last=True)

    def picture(self) -> Picture:
        """What the board has seen, as a picture of its own."""
        points = self._points()
        figure = self._new_figure(points)
        figure.update(points, self.events, fit=True)
        return figure.finished()

    def _points(self) -> dict[str, NDArray[np.float64]]:
        points = {name: trace.points() for name, trace in self.series.items()}
        return {name: each for name, each in points.items() if np.isfinite(each).all(1).any()}

    def _new_figure(self, there: dict[str, Any]) -> LiveFigure:
        what = {"joules": f"joules not measured: {self._reason}", "flops": "FLOPs not counted"}
        notes = [note for name, note in what.items() if name not in there]
        return LiveFigure(_panels(there), " · ".join(notes))


def _panels(there: dict[str, Any]) -> list[Panel]:
    """The panels that have something to show."""
    first, second, third = (line(place, markers=False) for place in range(3))
    accuracy = {**line(1), "ms": 3}
    cost = Panel("energy of training", "energy (J)", {"joules": ("this run", first)})
    if "joules" not in there:
        flops = {"flops": ("this run", first), "flops_dense": ("dense", second)}
        cost = Panel("cost of training", FLOPS, flops)
    rates = {"rate": ("rate", {**first, "lw": 0.8}), "target_rate": ("set point", second)}
    losses = {
        "loss": ("training", {**first, "lw": 0.8}),
        "val_loss": ("validation", third),
        "val_accuracy": ("accuracy", accuracy),
    }
    measured = "val_accuracy" in there
    right = ("val_accuracy", "validation accuracy") if measured else ("", "")
    threshold = {"threshold": ("threshold", first)}
    panels = [
        Panel("threshold", "score of a sample", threshold, floor=False),
        Panel("activation rate", "share of the batch", rates),
        Panel("loss, accuracy" if measured else "loss", "mean loss", losses, right),
        cost,
    ]
    found = [
        Panel(p.title, p.unit, {k: c for k, c in p.curves.items() if k in there}, p.right, p.floor)
        for p in panels
    ]
    return [panel for panel in found if panel.curves]
