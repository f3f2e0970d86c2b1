"""Progress with ETA: a bar in notebooks and terminals, one line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from io import TextIOBase
from typing import Any, TextIO

from astkit.background import BackgroundWriter, Coalesced

PER_EPOCH = 10  # maximum number of bar updates
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

    Args:
        label: name of the run.
        bar: show a tqdm bar; ``None`` does so in notebooks and terminals if tqdm is installed.
        stream: output of lines without a bar; ``None`` for standard output.
        writer: background writer for output, so that a slow front end or a full pipe does not
            delay training; bar updates may be skipped, lines are not. Do not share it: other jobs
            would wait for the front end as well.
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
        self.shown = 0  # completed parts of the current epoch shown by the bar
        self.loss = 0.0
        self.text = ""
        self.bar: Any = _tqdm(label) if (interactive() if bar is None else bar) else None
        self._gathered = None if writer is None else Coalesced(writer, self._consume, "progress")

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Update the bar, or print a line at the end of an epoch."""
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
        """Close the bar; waits at most `PATIENCE` seconds for the front end."""
        if self.writer is None or self._gathered is None:
            if self.bar is not None:
                self.bar.close()
            return
        self._gathered.hand_over()
        if self.bar is not None:
            self.writer.put(self.bar.close, "progress")
        # a blocked front end could not show a warning either
        with suppress(TimeoutError):
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
