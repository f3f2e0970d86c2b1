"""Detect a notebook's front end."""

from __future__ import annotations

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
    widgets add at least the cell's id; ``live`` overrides what is detected.
    """
    running = kernel()
    if running is None or live is False:
        return "off"
    parent = getattr(running, "get_parent", None)  # only ipykernel has it
    return "ask" if live or parent is None or parent("shell").get("metadata") else "headless"
