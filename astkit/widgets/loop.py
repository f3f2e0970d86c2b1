"""The board in a training loop of one's own."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from astkit.checks import check_count, check_types
from astkit.gating.selection import Selection
from astkit.trainers.history import few_scores
from astkit.widgets import frontend
from astkit.widgets.board import LiveBoard
from astkit.widgets.screen import SEND_S, Display, message


class Board:
    """Shows a training loop of one's own in a notebook while it runs::

        gate = Gate(0.25)
        with Board(steps=len(loader)) as board:
            for x, y in loader:
                chosen = gate(model, x, y)
                loss = chosen.mean(criterion(model(x[chosen.index]), y[chosen.index]))
                loss.backward()
                board.log(chosen, loss)  # and accuracy=... where it was measured

    A running cell hears nothing from the page, so there are no controls. When the block ends, the
    output keeps one picture; without a front end it is the only one, and a script shows nothing.

    Args:
        steps: batches of the whole loop; ``None`` if unknown.
        live: ``False`` shows nothing.

    Attributes:
        board: what is shown; ``board.picture()`` is a figure.
    """

    def __init__(self, steps: int | None = None, live: bool | None = None) -> None:
        titles = {"loss": "loss", "cost": "rows trained on (dashed: all)"}
        known = None if steps is None else check_count("steps", steps)
        self.board = LiveBoard(titles, known, unit=" rows")
        self.board.latest["joules_reason"] = ""
        self._mode = frontend.mode(live)
        self._step, self._trained, self._seen = 0, 0, 0
        self._began, self._due = time.time(), 0.0
        self._widget, self._display = None, Display()

    def __enter__(self) -> Self:
        if self._mode == "ask":
            sent = self._message("running")
            self._widget = frontend.widget("board", began=self._began, sent=sent)
        if self._widget is not None:
            self._display.widget(self._widget)
        return self

    def log(self, chosen: Selection | None, loss: Any, **metrics: float) -> None:
        """Show a batch: its rows, its loss, and ``metrics`` where they were measured.

        ``chosen``: what a gate or a policy gave; ``None`` for all rows. ``loss``: a number, or a
        tensor of one element, for whose value a GPU is waited for.
        """
        check_types(chosen=(chosen, Selection | None))
        self._step += 1
        values: dict[str, Any] = {"loss": float(loss.item() if hasattr(loss, "item") else loss)}
        if chosen is not None:
            self._trained += len(chosen)
            self._seen += len(chosen) if chosen.candidates is None else chosen.candidates
            values |= {"flops": self._trained, "flops_dense": self._seen}
            for name in ("measured_rate", "threshold", "rate"):
                if (value := getattr(chosen, name)) is not None:
                    values[name] = float(value)
            values |= {name: each.tolist() for name, each in few_scores(chosen).items()}
        self.board.log(self._step, phase="train", **values)
        if metrics:
            self.board.titles["metric"] = ""  # the name alone
            measured = {f"val_{name}": float(value) for name, value in metrics.items()}
            self.board.log(self._step, phase="epoch", **measured)
        if self._widget is not None and (began := time.perf_counter()) > self._due:
            self._due = began + SEND_S
            self._widget.sent = self._message("running")

    def _message(self, status: str) -> dict[str, Any]:
        step = f"step {self._step}" + (f" of {self.board.steps}" if self.board.steps else "")
        readout = [status, step, f"{time.time() - self._began:.0f} s"]
        return message(self.board, status=status, ended=status != "running", readout=readout)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._mode == "off":
            return
        self.board.steps = self._step or None  # without a future
        words = f"{'ended' if kind is None else kind.__name__} after {self._step:,} batches"
        try:
            if self._widget is not None:
                self._widget.sent = self._message("ended")
            self._display.picture(self.board.picture(words).png(160), words)
        except Exception as error:  # the loop's own error matters more
            print(f"the board could not be drawn: {error!r}", file=sys.stderr)
