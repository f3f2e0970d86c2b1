"""Where a run is shown: a widget in the browser, or a picture; and a picture when it has ended."""

from __future__ import annotations

import asyncio
import base64
import math
import sys
import time
from typing import Any

import numpy as np

from astkit.gating import Gate
from astkit.names import REGISTRIES, registered, resolve
from astkit.widgets import frontend
from astkit.widgets.board import TITLES, LiveBoard
from astkit.widgets.run import LOOK_S, Run
from astkit.widgets.style import PIXELS, WIDTH, few_colours

SEND_S = 0.1  # minimum time between two messages to the widget
FRAME_S = 2.0  # minimum time between two pictures
IMAGE_S = 0.5  # minimum time between two looks at what a trainer shows of itself
ANSWER_S = 3.0  # seconds to wait for an answer of the front end
PICTURE_S = 1.0  # and for its picture of a run that has ended
SHARE = {"ask": 0.1, "headless": 0.02}  # maximum share of the time spent on pictures
LETTERS = 115  # of the words in a picture
STEER = "trainer.steer(name, value), run.pause(), run.resume() and run.stop() work in other cells"
UNHEARD = f"no controls, since the front end shows no widget: {STEER}"
NOT_INSTALLED = f"no controls, since anywidget is not installed: {STEER}"

TEXT = "<LiveBoard>"  # constant: readers of notebooks compare the text of two runs


def message(board: LiveBoard, **state: Any) -> dict[str, Any]:
    """What the front end draws: points and scores as float32, an image as uint8.

    The points are pairs of step and value, one series after the other; the scores triples of step,
    score and whether it was selected. All of them travel as a trait: a page that opens late gets
    the newest value of a widget alone.
    """
    points = [np.array(each, np.float32).ravel() for each in board.series.values()]
    parts = [points, [dots.ravel() for _, dots in board.cloud]]
    buffers = [np.concatenate([np.empty(0, np.float32), *part]).tobytes() for part in parts]
    content = {
        "counts": [[name, len(each)] for name, each in board.series.items()],
        "panels": [{**vars(each), "curves": [*each.curves.items()]} for each in board.panels()],
        "events": board.events,
        "step": board.step,
        "total": board.total,
        "state": state,
    }
    if board.image is not None:
        content["image"] = {"height": board.image.shape[0], "width": board.image.shape[1]}
        buffers.append(board.image.tobytes())
    return {"content": content, "buffers": buffers}


class Display:
    """What a cell displays, first as a widget, then as a picture in its place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def widget(self, widget: Any) -> None:
        """Show the view of a widget."""
        self._show({**widget._repr_mimebundle_()[0], "text/plain": TEXT})

    def picture(self, png: bytes, words: str) -> None:
        """Show a picture, with ``words`` for those who do not see it."""
        about = {"alt": f"board of a run: {words}", "width": round(WIDTH * PIXELS)}
        shown = {"image/png": base64.b64encode(png).decode(), "text/plain": TEXT}
        self._show(shown, {"image/png": about})

    def _show(self, shown: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(shown, metadata=metadata, raw=True, display_id=True)
        else:
            self._handle.update(shown, metadata=metadata, raw=True)


class Screen:
    """Shows a run's board in the output of a cell.

    With ``controls`` it is a widget, which receives new points at most ten times a second; without
    them pictures, and also if the front end has not answered within `ANSWER_S`, until it does.
    When the run has ended, the page sends its picture of the board, which the file keeps, and stays
    as it is.

    Attributes:
        mode: see `frontend.mode`; "off" shows nothing.
        widget: ``None`` without controls.
        pictures: whether pictures are shown.
        pages: those that have answered; a second one may be the first, opened again.
        ending: the picture of a run that has ended; ``None`` before.
        started: when the run began, in seconds; later by the time that it has waited.
    """

    def __init__(self, run: Run, board: LiveBoard, mode: frontend.Mode, controls: bool) -> None:
        self.run, self.board, self.mode = run, board, mode
        self.note, self.display = "", Display()
        self.pages, self.pictures = set[Any](), True
        self.ending: bytes | None = None
        self.started, self._first = time.perf_counter(), run.trainer.progress
        self._due, self._looked, self._deadline = 0.0, -math.inf, math.inf
        board.titles, board.steps = self.titles(), run.trainer.budget.steps
        self.widget: Any = None
        if controls:
            self.widget = frontend.widget("board", began=time.time(), sent=self.message())
            self.note = NOT_INSTALLED if self.widget is None else ""
        if self.widget is not None:
            self.pictures = False
            self.widget.on_msg(lambda _, content, buffers: self.take(content))
            self.display.widget(self.widget)
            self.expect()

    def titles(self) -> dict[str, str]:
        """Titles of the panels that this run fills, by name."""
        trainer, titles = self.run.trainer, {}
        if isinstance(trainer.policy, Gate):
            score = trainer.policy.score if isinstance(trainer.policy.score, str) else "score"
            titles = {"threshold": f"{score} of each sample", "rate": TITLES["rate"]}
        titles["loss"] = "loss"
        if trainer.validation is not None:
            titles |= {name: TITLES[name] for name in ("loss", "metric")}
        counter = getattr(trainer.ledger.meter, "counter", None)
        titles["cost"] = TITLES["cost"] if counter else "work (no joule counter)"
        return titles

    def take(self, content: dict[str, Any]) -> None:
        """A message of the front end; may come on another thread."""
        if "ready" in content:
            self.pages.add(content["ready"])
            self._due = 0.0
        elif "picture" in content:
            late, self.ending = self.ending, few_colours(base64.b64decode(content["picture"]))
            if late is not None:
                self.display.picture(self.ending, self.caption())
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
            if not self.pictures and not self.pages and moment > self._deadline:
                self.pictures, self.note = True, UNHEARD
            elif self.pictures and self.pages:  # late
                self.pictures, self.note = False, ""
                self.display.widget(self.widget)
            if self.pictures:
                self._picture()
            elif self.pages:
                self._due = moment + SEND_S
                self.widget.sent = self.message()
        except Exception as error:  # must not end a training run
            self.mode = "off"
            print(f"the live board is off, training continues: {error!r}", file=sys.stderr)

    def expect(self) -> None:
        """From now on the front end has `ANSWER_S` to answer: the kernel can hear it."""
        self._deadline = time.perf_counter() + ANSWER_S

    def _look(self) -> None:
        """Bring the board up to date with what only the trainer knows."""
        trainer, board = self.run.trainer, self.board
        if board.steps is None and trainer.budget.epochs and trainer.progress:
            board.steps = round(trainer.step / trainer.progress)
        if hasattr(trainer, "picture") and time.perf_counter() - self._looked > IMAGE_S:
            self._looked = time.perf_counter()
            board.image = np.ascontiguousarray(trainer.picture(), np.uint8)

    def message(self) -> dict[str, Any]:
        """What the front end draws, see `message`, and status, words and settings of the run."""
        self._look()
        status = self.run.status
        return message(
            self.board,
            status=status,
            # also while a cell or a message is dealt with, else a key would cost a slider its focus
            enabled=status in ("running", "paused", "waiting"),
            ended=status in ("finished", "stopped", "interrupted", "failed"),
            readout=self.readout(),
            caption=self.caption()[:LETTERS],
            notes=[*[self.note] * bool(self.note), *self.board.notes()],
            gate=self.gate(),
        )

    def gate(self) -> dict[str, Any] | None:
        """Settings that can be changed, as they are after the next batch; ``None`` without any."""
        gate = self.run.trainer.policy
        if not isinstance(gate, Gate):
            return None
        requested = self.run.trainer.steering.requested
        controller = gate.controller
        if "controller" in requested:
            controller = resolve("controller", requested["controller"])(gate.rate)
        gains = {n: requested.get(n, getattr(controller, n)) for n in controller.gains}
        return {
            "rate": requested.get("rate", gate.rate),
            "least": min(0.01, gate.rate),
            "controller": registered("controller", type(controller)),
            "controllers": sorted(REGISTRIES["controller"]),
            "gains": [[n, v] for n, v in gains.items() if isinstance(v, int | float) and v > 0],
        }

    def readout(self) -> list[str]:
        """Status, batch, epoch, and the time left or taken."""
        trainer, status = self.run.trainer, self.run.status
        spent, total = trainer.progress, self.board.steps
        words = "paused while another cell runs" if status == "waiting" else status
        step = f"step {trainer.step}" + (f" of {total}" if total else f", {spent:.0%}")
        passed = time.perf_counter() - self.started
        left = f"{passed:.0f} s"
        if spent > self._first and status in ("running", "paused"):
            left = f"{passed * (1 - spent) / (spent - self._first):.0f} s left"
        return [words, step, f"epoch {trainer.epoch + (spent < 1)}", left]

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

    def _picture(self, caption: str = "", dpi: int = 80) -> bytes:
        """Draw the board, and show it in the place of what was shown before."""
        start = time.perf_counter()
        self._look()
        said = caption or self.note
        png = self.board.picture(said).png(dpi)
        self.display.picture(png, said)
        end = time.perf_counter()
        self._due = end + max(FRAME_S, (end - start) / SHARE[self.mode])
        return png

    async def leave(self) -> None:
        """Let the page draw the picture of a run that has ended; without an answer it is drawn."""
        end = time.perf_counter() + PICTURE_S
        self._close_axis()
        if self.pages and not self.pictures:
            self.follow(now=True)
            while self.ending is None and self.mode != "off" and time.perf_counter() < end:
                await asyncio.sleep(LOOK_S)
        self.end()

    def end(self) -> None:
        """Put a picture and the final settings in the place of the widget, or of the last one.

        A widget stays open for a page that has not drawn it yet, or was opened again.
        """
        if self.mode == "off":
            return
        self._close_axis()
        try:
            if answered := self.ending is not None:
                self.display.picture(self.ending, self.caption())
            else:
                self.ending = self._picture(self.caption(), dpi=160)
            if self.widget is not None and len(self.pages) == answered:
                self.widget.close()
        except Exception as error:  # a run has ended, and its error matters more
            print(f"the board could not be drawn: {error!r}", file=sys.stderr)
        self.mode = "off"

    def _close_axis(self) -> None:
        """A run that was stopped has no future."""
        self.board.steps = self.board.step or None

    def again(self) -> None:
        """Show the picture of a run that has ended here too, if its page was opened again."""
        if len(self.pages) > 1 and self.ending is not None:
            Display().picture(self.ending, self.caption())
