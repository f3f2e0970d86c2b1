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
    """Whether to show figures, and whether to show controls.

    - "off": nothing. ``ASTKIT_LIVE=0``, ``live=False``, or no notebook.
    - "headless": figures without controls. papermill, nbval and nbconvert send requests without
      metadata, while front ends that show widgets add at least the cell's id.
    - "ask": figures, and controls if a front end responds; always with ``ASTKIT_LIVE=1`` and
      ``live=True``.

    ``ASTKIT_LIVE`` overrides ``live``. Raises ``ValueError`` for an invalid value of it.
    """
    wish = os.environ.get("ASTKIT_LIVE", "")
    if wish not in ("", "0", "1"):
        raise ValueError(f"ASTKIT_LIVE is {wish!r}: set it to 0 or 1, or unset it")
    running = kernel()
    if wish == "0" or (not wish and live is False) or running is None:
        return "off"
    if wish == "1" or live:
        return "ask"
    if os.environ.get("KAGGLE_KERNEL_RUN_TYPE", "").lower() == "batch":
        return "headless"
    try:
        metadata = running.get_parent("shell").get("metadata")
    except AttributeError:  # a kernel other than ipykernel's
        return "ask"
    return "ask" if metadata else "headless"
