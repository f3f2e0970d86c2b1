"""Progress with the time left: a bar in notebooks and terminals, one line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

PER_EPOCH = 10  # maximum number of bar updates


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
    """An observer that displays the progress of a run, at most `PER_EPOCH` times an epoch.

    Args:
        label: name of the run.
        bar: show a tqdm bar; ``None`` does so in notebooks and terminals if tqdm is installed.
    """

    def __init__(self, label: str = "", bar: bool | None = None) -> None:
        self.label = label
        self.wanted = in_notebook() or sys.stderr.isatty() if bar is None else bar
        self.start = time.perf_counter()
        self.before: float | None = None  # progress at that time, above 0 in a resumed run
        self.shown = 0  # completed parts of the current epoch shown by the bar
        self.loss = 0.0
        self.bar: Any = None

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Update the bar, or print a line at the end of an epoch."""
        progress: float = metrics["progress"]
        if self.before is None:
            self.start, self.before = time.perf_counter(), progress
            self.bar = _tqdm(self.label or "training", progress) if self.wanted else None
        if phase == "epoch":
            self._epoch(progress, metrics)
        elif phase == "train":
            if metrics["loss"] is not None:  # a batch may have trained on no row
                self.loss = metrics["loss"]
            parts = int(metrics["of_epoch"] * PER_EPOCH)
            if self.bar is not None and self.shown < parts < PER_EPOCH:
                self.shown = parts
                self._draw(progress)

    def _epoch(self, progress: float, metrics: dict[str, Any]) -> None:
        parts = [f"epoch {metrics['epoch']}", f"loss {self.loss:.4f}"]
        if "val_accuracy" in metrics:
            parts.append(f"validation accuracy {metrics['val_accuracy']:.2%}")
        elif "val_loss" in metrics:
            parts.append(f"validation loss {metrics['val_loss']:.4f}")
        if self.bar is not None:
            self.shown = 0
            self.bar.set_postfix_str(", ".join(parts), refresh=False)
            self._draw(progress)
            return
        parts.append(f"{progress:.0%} of the budget")
        if gained := progress - (self.before or 0.0):
            left = (time.perf_counter() - self.start) * (1 - progress) / gained
            parts.append(f"{duration(left)} left")
        print((f"{self.label}: " if self.label else "") + ", ".join(parts), flush=True)

    def _draw(self, progress: float) -> None:
        self.bar.n = round(progress, 3)
        self.bar.refresh()

    def close(self) -> None:
        """Close the bar."""
        self.before = None
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def _tqdm(label: str, progress: float) -> Any:
    try:
        from tqdm import tqdm  # not tqdm.auto: a saved notebook shows widgets as blanks
    except ImportError:
        return None
    layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining} {postfix}"
    return tqdm(total=1.0, desc=label, bar_format=layout, initial=round(progress, 3))
