"""Progress with ETA: a bar in a notebook or terminal, one line an epoch elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any, TextIO

from astkit.background import BackgroundWriter, Coalesced

PER_EPOCH = 10  # bar updates, at most
PATIENCE = 5.0  # seconds that the end of a run waits for a front end to take the last drawing


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
        label: name of the run.
        bar: draw a tqdm bar; ``None`` does so in a notebook or terminal where tqdm is installed.
        stream: of the lines where there is no bar; ``None`` for standard output.
        writer: draws in its thread, so that a slow front end, or a pipe that is not read, does not
            delay a step; bar updates may be left out then, lines are not. Use one for this alone:
            its other jobs would wait for the front end as well.
    """

    def __init__(
        self,
        label: str = "",
        bar: bool | None = None,
        stream: TextIO | None = None,
        writer: BackgroundWriter | None = None,
    ) -> None:
        self.label, self.stream, self.writer = label, stream, writer
        self.start = time.perf_counter()
        self.shown = 0  # parts of the present epoch that the bar shows as done
        self.loss = 0.0
        self.text = ""
        self.bar: Any = _tqdm(label) if (interactive() if bar is None else bar) else None
        self._gathered = None if writer is None else Coalesced(writer, self._consume, "progress")

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Move the bar, or print a line at the end of an epoch."""
        progress: float = metrics["progress"]
        if phase == "epoch":
            self._epoch(progress, metrics)
        elif phase == "train":
            if metrics["loss"] is not None:
                self.loss = metrics["loss"]
            parts = int(metrics["of_epoch"] * PER_EPOCH)
            if self.bar is not None and self.shown < parts < PER_EPOCH:
                self.shown = parts
                self._put((round(progress, 3), self.text))

    def _epoch(self, progress: float, metrics: dict[str, Any]) -> None:
        elapsed = time.perf_counter() - self.start
        left = elapsed * (1 - progress) / progress if progress else 0.0
        parts = [f"epoch {metrics['epoch']}", f"loss {self.loss:.4f}"]
        if "val_accuracy" in metrics:
            parts.append(f"validation accuracy {metrics['val_accuracy']:.2%}")
        elif "val_loss" in metrics:
            parts.append(f"validation loss {metrics['val_loss']:.4f}")
        if self.bar is not None:
            self.shown, self.text = 0, ", ".join(parts)
            self._put((round(progress, 3), self.text))
            return
        parts += [f"{progress:.0%} of the budget", f"{duration(left)} left"]
        self._put((f"{self.label}: " if self.label else "") + ", ".join(parts))

    def _put(self, item: Any) -> None:
        if self._gathered is None:
            self._consume([item])
        else:
            self._gathered.put(item)

    def _consume(self, items: list[Any]) -> None:
        if self.bar is None:
            print("\n".join(items), file=self.stream or sys.stdout, flush=True)
            return
        self.bar.n, text = items[-1]
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.refresh()

    def close(self) -> None:
        """Leave the bar as it is; waits `PATIENCE` seconds for a front end."""
        if self.writer is None or self._gathered is None:
            if self.bar is not None:
                self.bar.close()
            return
        self._gathered.hand_over()
        if self.bar is not None:
            self.writer.put(self.bar.close, "progress")
        # a front end that takes no drawing would take no warning either
        with suppress(TimeoutError):
            self.writer.flush(PATIENCE)


def _tqdm(label: str) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining} {postfix}"
    return tqdm(total=1.0, desc=label or "training", bar_format=layout, leave=True)
