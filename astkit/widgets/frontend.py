"""Detect a notebook's front end."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal


def kernel() -> Any | None:
    """The IPython kernel that runs this code; ``None`` outside notebooks."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None)


def mode(live: bool | None = None) -> Literal["off", "headless", "ask"]:
    """Whether to show figures ("headless"), and controls too ("ask"), or nothing ("off").

    papermill, nbval and nbconvert send requests without metadata, while front ends that show
    widgets add at least the cell's id. ``ASTKIT_LIVE`` (0 or 1) overrides ``live``, and both what
    is detected. Raises ``ValueError`` for another value of ``ASTKIT_LIVE``.
    """
    wish = os.environ.get("ASTKIT_LIVE", "")
    if wish not in ("", "0", "1"):
        raise ValueError(f"ASTKIT_LIVE is {wish!r}: set it to 0 or 1, or unset it")
    live = wish == "1" if wish else live
    running = kernel()
    if running is None or live is False:
        return "off"
    parent = getattr(running, "get_parent", None)  # only ipykernel has it
    return "ask" if live or parent is None or parent("shell").get("metadata") else "headless"
