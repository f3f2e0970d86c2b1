"""Bars by tqdm's convention, and sentences beside them."""

from __future__ import annotations

import shutil
import sys
import warnings
from textwrap import fill
from threading import RLock
from types import FrameType
from typing import Any

from tqdm.std import tqdm

from astkit import distributed
from astkit.files import is_own

COLUMNS = 100  # of a bar in a notebook
_warned: dict[str, Any] = {}  # sentences, and the filters under which each was said, or None


def kernel() -> Any | None:
    """The IPython kernel that runs this code; ``None`` outside notebooks."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None)


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this process."""
    return kernel() is not None


class Bar(tqdm):  # type: ignore[type-arg]
    """A bar in terminals and, as one line of text, in notebooks; nothing elsewhere.

    tqdm's own bar for notebooks is a widget, which an open page loses when the kernel ends. The
    text stays in the file.

    Args:
        shown: whether to show it; ``None``: in terminals and notebooks.
        options: see ``tqdm``.
    """

    monitor_interval = 0  # no thread
    gui = False
    sentence = ""
    handle: Any = None

    def __init__(self, shown: bool | None = None, **options: Any) -> None:
        notebook = in_notebook()
        hidden = not (notebook or sys.stderr.isatty()) if shown is None else not shown
        super().__init__(
            disable=hidden or distributed.rank() > 0,
            gui=notebook,  # else tqdm writes to standard error
            ncols=COLUMNS if notebook else None,
            dynamic_ncols=not notebook,
            miniters=0,
            smoothing=0,  # the average speed
            **options,
        )
        if self.gui:
            self.refresh()

    def __str__(self) -> str:
        return self.sentence or super().__str__()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show ``msg``, by default the bar."""
        if not self.gui:
            super().display(msg, pos)
            return
        from IPython.display import display

        text = {"text/plain": str(self) if msg is None else msg}
        if self.handle is None:
            self.handle = display(text, raw=True, display_id=True)
        else:
            self.handle.update(text, raw=True)

    def clear(self, *args: Any, **options: Any) -> None:
        """Make room in a terminal for a line."""
        if not self.gui:
            super().clear(*args, **options)

    def finish(self, count: int, unit: str) -> None:
        """Replace the bar by one line, such as "20 runs in 1:49"."""
        plural = "" if count == 1 else "s"
        self.sentence = f"{count} {unit}{plural} in {duration(self.seconds)}"
        self.refresh()
        self.close()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return float(self.format_dict["elapsed"])


Bar.set_lock(RLock())  # tqdm's own would settle how processes are started


def duration(seconds: float) -> str:
    """``90`` as "1:30", ``3700`` as "1:01:40"."""
    return Bar.format_interval(round(seconds)).removeprefix("0")


def announce(sentence: str, bold: bool = False) -> None:
    """Print ``sentence``, above a bar if there is one; in a terminal wrapped, and may be bold.

    It is no longer said by `warn`.
    """
    _warned[sentence] = None
    if sys.stdout.isatty():
        options: Any = {"subsequent_indent": "  ", "break_on_hyphens": False}
        sentence = fill(sentence, shutil.get_terminal_size().columns, **options)
        sentence = f"\033[1m{sentence}\033[0m" if bold else sentence
    Bar.write(sentence)
    sys.stdout.flush()


def warn(sentence: str) -> None:
    """Warn once, with the line of the user's code that led here; in a notebook that of a cell."""
    said = _warned.get(sentence, sentence)
    if said is None or said is warnings.filters:
        return  # Python itself forgets what was said whenever a library touches the filters
    _warned[sentence] = warnings.filters
    frame: FrameType | None = sys._getframe()
    while frame is not None and not is_own(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    place, line = ("astkit", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    with Bar.external_write_mode(sys.stderr):
        warnings.warn_explicit(sentence, UserWarning, "cell" if in_notebook() else place, line)
