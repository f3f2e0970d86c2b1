"""Detect a notebook's front end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from astkit.progress import kernel


def mode(live: bool | None = None) -> Literal["off", "headless", "ask"]:
    """Whether to show figures ("headless"), and controls too ("ask"), or nothing ("off").

    papermill, nbval and nbconvert send requests without metadata, while front ends that show
    widgets add at least the cell's id; ``live`` overrides what is detected.
    """
    running = kernel()
    if running is None or live is False:
        return "off"
    parent = getattr(running, "get_parent", None)  # only ipykernel has it
    return "ask" if live or parent is None or parent("shell").get("metadata") else "headless"


def has_loop() -> bool:
    """Whether an event loop runs here, as in a kernel's main thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def in_cell() -> bool:
    """Whether a cell of a notebook is what runs now, and not a message of a widget."""
    parent = getattr(kernel(), "get_parent", None)
    if parent is None:
        return False
    return bool(parent("shell").get("header", {}).get("msg_type") == "execute_request")


@contextmanager
def between_cells(busy: Callable[[], None], free: Callable[[], None]) -> Iterator[None]:
    """Within the block, call ``busy`` before each cell of the notebook and ``free`` after it."""
    events = getattr(getattr(kernel(), "shell", None), "events", None)
    if events is None:
        yield
        return
    events.register("pre_execute", busy)
    events.register("post_execute", free)
    try:
        yield
    finally:
        events.unregister("pre_execute", busy)
        events.unregister("post_execute", free)
