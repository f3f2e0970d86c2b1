"""Child processes that an interrupt ends, so that none outlives whoever started it."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

_GRACE = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0))
"""What a child is sent in turn, and the seconds that it is given; SIGKILL comes after them."""
_POLL_SECONDS = 0.05
LEFT = 75
"""Exit code of a child that has left its work for later, as after a time limit (EX_TEMPFAIL)."""

_interrupted = threading.Event()
_running: set[subprocess.Popen[bytes]] = set()


@contextmanager
def interruptible(local: bool = True) -> Iterator[None]:
    """End the children at SIGINT, SIGTERM or SIGHUP; at its end the block raises for them.

    Args:
        local: whether children of this process do the work; if not, ``KeyboardInterrupt`` is raised
            at once and wherever the block is.

    Raises:
        KeyboardInterrupt: when there was such a signal.
    """
    before = {}

    def note(_number: int, _frame: FrameType | None) -> None:
        _interrupted.set()
        if not local:
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and the like asked for that
                before[number] = signal.signal(number, note)
    try:
        yield
        if _interrupted.is_set():
            raise KeyboardInterrupt
    except BaseException:
        _interrupted.set()
        while _running:
            time.sleep(_POLL_SECONDS)
        raise
    finally:
        _interrupted.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupted() -> bool:
    """Whether the children are being ended, and no more are to be started."""
    return _interrupted.is_set()


def run(command: Sequence[str], **options: Any) -> int | None:
    """Run a child to its end and return its exit code, or ``None`` where an interrupt ended it.

    ``options`` are those of ``subprocess.Popen``. A session of its own keeps the terminal's Ctrl-C
    from the child: it is ended from here.
    """
    if interrupted():
        return None
    child = subprocess.Popen(command, start_new_session=True, **options)
    _running.add(child)
    try:
        while child.poll() is None:
            if _interrupted.wait(_POLL_SECONDS):
                _end(child)
                return None
        return child.returncode
    except BaseException:
        _end(child)
        raise
    finally:
        _running.discard(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        for number, seconds in _GRACE:
            child.send_signal(number)
            try:
                child.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                continue
    finally:
        child.kill()  # of an ended child: nothing
        child.wait()
