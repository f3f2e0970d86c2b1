"""Progress with ETA: a bar in notebooks and terminals, one line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from functools import partial
from io import TextIOBase
from typing import Any, TextIO

from astkit.background import BackgroundWriter

PER_EPOCH = 10  # maximum number of bar updates
PAUSE = 0.2  # seconds between bar updates; waking a thread may cost the time of short steps
PATIENCE = 5.0  # seconds to wait for the front end at the end of a run


def _in_notebook() -> bool:
    main = sys.modules.get("IPython")
    return hasattr(main.get_ipython() if main is not None else None, "kernel")


def interactive() -> bool:
    """Whether output goes to a notebook or a terminal."""
    return _in_notebook() or sys.stderr.isatty()


def duration(seconds: float) -> str:
    """``90`` as "1:30", ``3700`` as "1:01:40"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """An observer that displays the progress of a run.

    It draws in the background: a slow front end or a full pipe does not delay training. Bar
    updates may be skipped, lines are not.

    Args:
        label: name of the run.
        bar: show a tqdm bar; ``None`` does so in notebooks and terminals if tqdm is installed.
        stream: output of lines without a bar; ``None`` for standard output.
    """

    def __init__(
        self, label: str = "", bar: bool | None = None, stream: TextIO | None = None
    ) -> None:
        self.label, self.stream = label, stream
        self.start = time.perf_counter()
        self.before: float | None = None  # progress at that time, above 0 in a resumed run
        self.shown = 0  # completed parts of the current epoch shown by the bar
        self.drawn = 0.0  # time of the latest such update
        self.loss = 0.0
        self.text, self.closed = "", False
        self.bar: Any = _tqdm(label) if (interactive() if bar is None else bar) else None
        self.writer = BackgroundWriter(daemon=True)

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Update the bar, or print a line at the end of an epoch."""
        progress: float = metrics["progress"]
        if self.before is None:
            self.start, self.before = time.perf_counter(), progress
            if self.closed:  # by an earlier part of the run
                self.bar, self.closed = _tqdm(self.label), False
            if self.bar is not None:
                self.bar.initial = progress
        if phase == "epoch":
            self._epoch(progress, metrics)
        elif phase == "train":
            if metrics["loss"] is not None:
                self.loss = metrics["loss"]
            parts = int(metrics["of_epoch"] * PER_EPOCH)
            due = self.bar is not None and self.shown < parts < PER_EPOCH
            if due and (now := time.perf_counter()) - self.drawn >= PAUSE:
                self.shown, self.drawn = parts, now
                self._put((round(progress, 3), self.text))

    def _epoch(self, progress: float, metrics: dict[str, Any]) -> None:
        parts = [f"epoch {metrics['epoch']}", f"loss {self.loss:.4f}"]
        if "val_accuracy" in metrics:
            parts.append(f"validation accuracy {metrics['val_accuracy']:.2%}")
        elif "val_loss" in metrics:
            parts.append(f"validation loss {metrics['val_loss']:.4f}")
        if self.bar is not None:
            self.shown, self.text = 0, ", ".join(parts)
            self._put((round(progress, 3), self.text))
            return
        parts.append(f"{progress:.0%} of the budget")
        if gained := progress - (self.before or 0.0):
            left = (time.perf_counter() - self.start) * (1 - progress) / gained
            parts.append(f"{duration(left)} left")
        self._put((f"{self.label}: " if self.label else "") + ", ".join(parts))

    def _put(self, item: Any) -> None:
        """Print the line ``item``, or show the bar at ``(progress, text)``."""
        if self.bar is None:
            line = partial(print, item, file=self.stream or sys.stdout, flush=True)
            self.writer.put(line, "progress")
        else:
            self.writer.put(partial(self._draw, *item), "progress", key="bar")

    def _draw(self, progress: float, text: str) -> None:
        self.bar.n = progress
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.refresh()

    def close(self) -> None:
        """Close the bar; waits at most `PATIENCE` seconds for the front end."""
        self.before, self.closed = None, self.bar is not None
        if self.bar is not None:
            self.writer.put(self.bar.close, "progress")
        self.writer.flush(PATIENCE)


def _tqdm(label: str) -> Any:
    try:
        from tqdm import tqdm  # not tqdm.auto: a saved notebook shows widgets as blanks
    except ImportError:
        return None
    layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining} {postfix}"
    stream = _Cell() if _in_notebook() else sys.stderr
    return tqdm(total=1.0, desc=label or "training", bar_format=layout, file=stream)


class _Cell(TextIOBase):
    """A stream whose latest line is displayed in a notebook, and kept in the saved notebook."""

    encoding = "utf-8"

    def __init__(self) -> None:
        from IPython.display import Pretty, display

        self._as_text = Pretty
        self._handle = display(Pretty(""), display_id=True)

    def write(self, text: str) -> int:
        if line := text.strip("\r\n"):
            self._handle.update(self._as_text(line))
        return len(text)
