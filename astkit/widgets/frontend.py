"""A notebook's front end: what it shows, and the widgets of this folder."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from importlib.resources import files
from typing import Any, Literal

from astkit.progress import kernel

Mode = Literal["off", "headless", "ask"]


def mode(live: bool | None = None) -> Mode:
    """Whether to show figures ("headless"), and controls too ("ask"), or nothing ("off").

    papermill, nbval and nbconvert send requests without metadata, while front ends that show
    widgets add at least the cell's id; ``live`` overrides what is detected.
    """
    running = kernel()
    if running is None or live is False:
        return "off"
    parent = getattr(running, "get_parent", None)  # only ipykernel has it
    return "ask" if live or parent is None or parent("shell").get("metadata") else "headless"


def widget(name: str, **content: Any) -> Any:
    """A widget of the script and the style ``name`` of this folder; ``None`` without anywidget.

    ``content``: what its script finds in ``model``.
    """
    try:
        import anywidget
        import traitlets
    except ImportError:
        return None
    room = files("astkit.widgets")
    parts = {"_esm": room.joinpath(f"{name}.js"), "_css": room.joinpath(f"{name}.css")}
    members: dict[str, Any] = {key: path.read_text() for key, path in parts.items()}
    members |= {key: traitlets.Any().tag(sync=True) for key in content}
    return type("Widget", (anywidget.AnyWidget,), members)(**content)


def has_loop() -> bool:
    """Whether an event loop runs here, as in a kernel's main thread."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False


def in_cell() -> bool:
    """Whether a cell of a notebook is what runs now, and not a message of a widget."""
    parent = getattr(kernel(), "get_parent", None)
    header = parent("shell").get("header", {}) if parent else {}
    return bool(header.get("msg_type") == "execute_request")


def cell_events() -> Any:
    """IPython's events before and after each cell of the notebook; ``None`` elsewhere."""
    return getattr(getattr(kernel(), "shell", None), "events", None)
