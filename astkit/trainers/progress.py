"""Progress with ETA: a bar where somebody watches, one line an epoch where nobody does."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO


def interactive() -> bool:
    """Whether output goes to a notebook's front end or a terminal."""
    main = sys.modules.get("IPython")
    shell = main.get_ipython() if main is not None else None
    return hasattr(shell, "kernel") or sys.stderr.isatty()


def duration(seconds: float) -> str:
    """``90`` as "1:30", ``3700`` as "1:01:40"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """An observer that prints how far a run is.

    Args:
        label: what the run is called.
        per_epoch: bar updates an epoch, at most.
        bar: draw a tqdm bar; ``None`` does so where somebody watches and tqdm is installed.
        stream: where lines go when there is no bar; ``None`` for standard output.
    """

    def __init__(
        self,
        label: str = "",
        per_epoch: int = 10,
        bar: bool | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.label, self.per_epoch, self.stream = label, per_epoch, stream
        self.start = time.perf_counter()
        self.shown = 0  # parts of the present epoch that the bar shows as done
        self.loss = 0.0
        self.bar: Any = _tqdm(label) if (interactive() if bar is None else bar) else None

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Move the bar, or print a line at the end of an epoch."""
        progress: float = metrics["progress"]
        if phase == "epoch":
            self._epoch(progress, metrics)
        elif phase == "train":
            if metrics["loss"] is not None:
                self.loss = metrics["loss"]
            parts = int(metrics["of_epoch"] * self.per_epoch)
            if self.bar is not None and self.shown < parts < self.per_epoch:
                self._move(progress, parts)

    def _move(self, progress: float, parts: int) -> None:
        self.bar.n = round(progress, 3)
        self.bar.refresh()
        self.shown = parts

    def _epoch(self, progress: float, metrics: dict[str, Any]) -> None:
        elapsed = time.perf_counter() - self.start
        left = elapsed * (1 - progress) / progress if progress else 0.0
        parts = [f"epoch {metrics['epoch']}", f"loss {self.loss:.4f}"]
        if "val_accuracy" in metrics:
            parts.append(f"validation accuracy {metrics['val_accuracy']:.2%}")
        if self.bar is not None:
            self.bar.set_postfix_str(", ".join(parts), refresh=False)
            self._move(progress, 0)
            return
        parts += [f"{progress:.0%} of the budget", f"{duration(left)} left"]
        head = f"{self.label}: " if self.label else ""
        print(head + ", ".join(parts), file=self.stream or sys.stdout, flush=True)

    def close(self) -> None:
        """Leave the bar as it is and go on below it."""
        if self.bar is not None:
            self.bar.close()


def _tqdm(label: str) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining} {postfix}"
    return tqdm(total=1.0, desc=label or "training", bar_format=layout, leave=True)
