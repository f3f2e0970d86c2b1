"""An interrupt that waits for the end of a batch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Hold an interrupt (SIGINT) back within a block; yields whether one was received.

    A second interrupt takes effect at once, as for a loader that hangs.
    """
    before, received = signal.getsignal(signal.SIGINT), False
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received:
            before(number, frame)
        received = True

    signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: received
    finally:
        signal.signal(signal.SIGINT, before)
