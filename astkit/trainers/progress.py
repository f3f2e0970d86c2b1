"""Progress with the time left: a line an epoch, which moves in notebooks and terminals."""

from __future__ import annotations

import sys
import time
from typing import Any

PER_EPOCH = 10  # maximum number of updates


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this process."""
    main = sys.modules.get("IPython")
    return hasattr(main.get_ipython() if main is not None else None, "kernel")


def duration(seconds: float) -> str:
    """``90`` as "1:30", ``3700`` as "1:01:40"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """An observer that prints a line an epoch: losses, accuracy, and the time left.

    Args:
        label: name of the run.
        live: rewrite the line in place, at most `PER_EPOCH` times an epoch; ``None`` does so in
            notebooks and terminals.
    """

    def __init__(self, label: str = "", live: bool | None = None) -> None:
        self.label = f"{label}: " if label else ""
        self.live = in_notebook() or sys.stdout.isatty() if live is None else live
        self.start = time.perf_counter()
        self.before: float | None = None  # progress at that time, above 0 in a resumed run
        self.shown = 0  # completed parts of the current epoch that the line has shown
        self.loss: float | None = None  # of the latest batch that trained

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Print the line at the end of an epoch, and in place as often as it moves."""
        progress: float = metrics["progress"]
        if self.before is None:
            self.start, self.before = time.perf_counter(), progress
        if phase == "epoch":
            self._print(metrics, progress, "\n")
            self.shown = 0
        elif phase == "train":
            if metrics["loss"] is not None:  # a batch may have trained on no row
                self.loss = metrics["loss"]
            parts = int(metrics["of_epoch"] * PER_EPOCH)
            if self.live and self.shown < parts < PER_EPOCH:
                self.shown = parts
                self._print(metrics, progress, "")

    def _print(self, metrics: dict[str, Any], progress: float, end: str) -> None:
        parts = [f"epoch {metrics['epoch'] + (not end)}"]  # a batch's epoch counts from 0
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if "val_accuracy" in metrics:
            parts.append(f"validation accuracy {metrics['val_accuracy']:.2%}")
        elif "val_loss" in metrics:
            parts.append(f"validation loss {metrics['val_loss']:.4f}")
        parts.append(f"{progress:.0%} of the budget")
        if gained := progress - (self.before or 0.0):
            left = (time.perf_counter() - self.start) * (1 - progress) / gained
            parts.append(f"{duration(left)} left")
        line = self.label + ", ".join(parts)
        # spaces cover the rest of a longer line
        print(f"\r{line:<79}" if self.live else line, end=end, flush=True)

    def close(self) -> None:
        """A run that continues counts its time anew."""
        self.before = None
