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
from astkit.widgets.screen import TEXT, bundle, content

SHARE, SEND_S = 0.03, 0.25  # maximum share of the time spent on frames, and the least between two


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
        self._began = self._due = time.perf_counter()
        self._widget: Any = None
        self._handle: Any = None

    def __enter__(self) -> Self:
        if self._mode == "ask":
            self._widget = frontend.widget("board", sent=self._sent("running"))
        if self._widget is not None:
            self._show({**self._widget._repr_mimebundle_()[0], "text/plain": TEXT})
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
            self._widget.sent = self._sent("running")
            took = time.perf_counter() - began
            self._due = began + max(SEND_S, took / SHARE)

    def _sent(self, status: str) -> dict[str, Any]:
        """All points: a page that opens late gets the newest value of a widget alone."""
        message, buffers = content(self.board, {})
        step = f"step {self._step}" + (f" of {self.board.steps}" if self.board.steps else "")
        readout = [status, step, f"{time.perf_counter() - self._began:.0f} s"]
        state = {"status": status, "ended": status != "running", "readout": readout}
        fresh = {"fresh": not self._step, "state": state}
        return {"message": {**message, **fresh}, "buffers": buffers}

    def _show(self, shown: dict[str, str], about: dict[str, Any] | None = None) -> None:
        from IPython.display import display

        options: Any = {"metadata": about, "raw": True}
        if self._handle is None:
            self._handle = display(shown, **options, display_id=True)
        else:
            self._handle.update(shown, **options)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        words = f"{'ended' if kind is None else kind.__name__} after {self._step:,} batches"
        self.board.steps = self._step or None  # without a future
        if self._mode == "off":
            return
        try:
            if self._widget is not None:
                self._widget.sent = self._sent("ended")
            self._show(*bundle(self.board.picture(words).png(160), words))
        except Exception as error:  # the loop's own error matters more
            print(f"the board could not be drawn: {error!r}", file=sys.stderr)
