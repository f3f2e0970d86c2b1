"""Where a run is shown: a widget in the browser, or a picture; and a picture when it has ended."""

from __future__ import annotations

import base64
import math
import sys
import time
from bisect import bisect_right
from typing import Any

import numpy as np

from astkit.gating import Gate
from astkit.names import REGISTRIES, registered
from astkit.widgets import frontend
from astkit.widgets.board import LiveBoard
from astkit.widgets.run import Run

SEND_S = 0.1  # minimum time between two messages to the widget
FRAME_S = 2.0  # minimum time between two pictures
ANSWER_S = 3.0  # seconds to wait for an answer of the front end
SHARE = {"ask": 0.1, "headless": 0.02}  # maximum share of the time spent on pictures
STEER = "trainer.steer(name, value), run.pause(), run.resume() and run.stop() work in other cells"
UNHEARD = f"no controls, since the front end shows no widget: {STEER}"
NOT_INSTALLED = f"no controls, since anywidget is not installed: {STEER}"

_TEXT = "<LiveBoard>"  # constant: readers of notebooks compare the text of two runs


class Screen:
    """Shows a run's board in the output of a cell.

    With ``controls`` it is a widget, which receives new points at most ten times a second; without
    them pictures, and also if the front end has not answered within `ANSWER_S`, until it does.

    Attributes:
        mode: see `frontend.mode`; "off" shows nothing.
        widget: ``None`` without controls.
        pictures: whether pictures are shown.
        heard: whether a front end has answered.
        started: when the run began, in seconds; later by the time that it has waited.
    """

    def __init__(self, run: Run, board: LiveBoard, mode: frontend.Mode, controls: bool) -> None:
        self.run, self.board, self.mode = run, board, mode
        self.widget: Any = frontend.widget("board") if controls else None
        self.note = NOT_INSTALLED if controls and self.widget is None else ""
        self.heard, self.pictures = False, self.widget is None
        self.started, self._first = time.perf_counter(), run.trainer.progress
        self._due, self._deadline = 0.0, math.inf
        self._sent: dict[str, float] = {}  # step of the newest point sent, by series
        self._asked = True  # for all points, by a page that opens
        self._handle: Any = None
        if self.widget is not None:
            self.widget.on_msg(lambda _, content, buffers: self.take(content))
            self._view = {**self.widget._repr_mimebundle_()[0], "text/plain": _TEXT}
            self._display(self._view)
            self.expect()

    def _display(self, bundle: dict[str, str], metadata: dict[str, Any] | None = None) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bundle, metadata=metadata, raw=True, display_id=True)
        else:
            self._handle.update(bundle, metadata=metadata, raw=True)

    def take(self, content: dict[str, Any]) -> None:
        """A message of the front end; may come on another thread."""
        if "ready" in content:
            self.heard, self._asked, self._due = True, True, 0.0
        elif "set" in content:
            self.run.trainer.steer(*content["set"])
        elif content.get("press") in ("pause", "resume", "step", "stop"):
            getattr(self.run, content["press"])()

    def follow(self, now: bool = False) -> None:
        """Show what is new, if it is time to, or ``now``; called between batches."""
        moment = time.perf_counter()
        if self.mode == "off" or (moment < self._due and not now):
            return
        try:
            if not self.pictures and not self.heard and moment > self._deadline:
                self.pictures, self.note = True, UNHEARD
            elif self.pictures and self.heard:  # late
                self.pictures, self.note = False, ""
                self._display(self._view)
            if self.pictures:
                self._picture()
            elif self.heard:
                self._due = moment + SEND_S
                self.widget.send(*self.message())
        except Exception as error:  # must not end a training run
            self.mode = "off"
            print(f"the live board is off, training continues: {error!r}", file=sys.stderr)

    def expect(self) -> None:
        """From now on the front end has `ANSWER_S` to answer: the kernel can hear it."""
        self._deadline = time.perf_counter() + ANSWER_S

    def message(self) -> tuple[dict[str, Any], list[bytes]]:
        """What the front end draws, with points and scores as float64.

        The points are pairs of step and value, one series after the other; the scores triples of
        step, score and whether it was selected.
        """
        board = self.board
        every, self._asked = self._asked, False
        if every:
            self._sent = {}
        series = {name: self._unsent(name, points) for name, points in board.series.items()}
        points = [np.array(each).ravel() for each in series.values()]
        scores = [
            np.stack([np.full(len(each), step), each, selected], 1).ravel()
            for step, each, selected in self._unsent("scores", board.cloud)
        ]
        panels = [{"name": n, "title": t, "curves": c} for n, (t, c) in board.panels().items()]
        content = {
            "all": every,
            "counts": [[name, len(each)] for name, each in series.items()],
            "panels": panels,
            "events": board.events,
            "state": self.state(),
        }
        return content, [np.concatenate([*part, []]).tobytes() for part in (points, scores)]

    def _unsent(self, name: str, points: list[Any]) -> list[Any]:
        """The ``points`` that have not been sent yet."""
        first = bisect_right(points, self._sent.get(name, -1), key=lambda point: point[0])
        if points:
            self._sent[name] = points[-1][0]
        return points[first:]

    def state(self) -> dict[str, Any]:
        """Status, cost and settings of the run."""
        cost = [*self.board.cost(), *[self.note] * bool(self.note)]
        status = self.run.status
        said = {"status": status, "enabled": status in ("running", "paused"), "cost": cost}
        return {**said, "readout": self.readout(), "gate": self.gate()}

    def gate(self) -> dict[str, Any] | None:
        """Settings that can be changed, as they are after the next batch; ``None`` without any."""
        gate = self.run.trainer.policy
        if not isinstance(gate, Gate):
            return None
        requested = self.run.trainer.steering.requested
        controller, names = gate.controller, sorted(REGISTRIES["controller"])
        gains = {n: requested.get(n, getattr(controller, n)) for n in controller.gains}
        return {
            "rate": requested.get("rate", gate.rate),
            "least": min(0.01, gate.rate),
            "controller": requested.get("controller", registered("controller", type(controller))),
            "controllers": names,
            "gains": [[n, v] for n, v in gains.items() if isinstance(v, int | float) and v > 0],
        }

    def readout(self) -> str:
        """The status of the run in one line; shares are of the last 20 batches."""
        trainer, status = self.run.trainer, self.run.status
        spent, steps = trainer.progress, trainer.history.steps[-20:]
        words = "paused while another cell runs" if status == "waiting" else status
        parts = [words, f"step {trainer.step}", f"epoch {trainer.epoch}"]
        parts += [f"{spent:.0%} of the budget"]
        if spent > self._first and status == "running":
            passed = time.perf_counter() - self.started
            parts += [f"{passed * (1 - spent) / (spent - self._first):.0f} s left"]
        if rates := [s["measured_rate"] for s in steps if s.get("measured_rate") is not None]:
            trained, seen = (sum(step[name] for step in steps) for name in ("trained", "seen"))
            parts += [f"threshold {steps[-1]['threshold']:.4g}"]
            parts += [f"rate {sum(rates) / len(rates):.3f}, trained on {trained / seen:.3f}"]
        return " · ".join(parts)

    def caption(self) -> str:
        """How the run ended, and its settings then."""
        run, gate = self.run, self.gate()
        parts = [f"{run.status} after {run.trainer.step:,} batches"]
        if run.status == "failed":
            parts += [f"{type(run.error).__name__}: {run.error}"]
        if gate is not None:
            parts += [f"rate {gate['rate']:.3g}", f"controller {gate['controller']}"]
            parts += [f"{name} {value:.3g}" for name, value in gate["gains"]]
            parts += [f"settings changed: {len(self.board.events)}"]
        return " · ".join(parts)

    def _picture(self, caption: str = "", dpi: int = 80) -> None:
        start = time.perf_counter()
        said = caption or self.note
        figure = self.board.picture(said)
        picture = {"image/png": base64.b64encode(figure.png(dpi)).decode(), "text/plain": _TEXT}
        about = {"alt": f"board of a run: {said}", "width": figure.pixels_wide}
        self._display(picture, {"image/png": about})
        end = time.perf_counter()
        self._due = end + max(FRAME_S, (end - start) / SHARE[self.mode])

    def end(self) -> None:
        """Put a picture and the final settings in the place of the widget, or of the last one."""
        if self.mode == "off":
            return
        try:
            self._picture(self.caption(), dpi=160)
            if self.widget is not None:
                self.widget.close()
        except Exception as error:  # a run has ended, and its error matters more
            print(f"the board could not be drawn: {error!r}", file=sys.stderr)
        self.mode = "off"
