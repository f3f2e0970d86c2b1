"""Explorer: which samples each method trained on, and their losses, in a notebook or a page.

Nothing is loaded from elsewhere, so the page works offline. `astkit.comparison.samples.explorer`
makes one of a comparison.
"""

from __future__ import annotations

import base64
import json
import os
from html import escape
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from PIL import Image

from astkit.files import plain_values, write_atomic
from astkit.widgets import frontend
from astkit.widgets.plots import pixels

SIDE = 96  # largest side of an embedded picture, in pixels
_PAGE, _SCRIPT, _STYLE = (
    files("astkit.widgets").joinpath(f"explore.{kind}").read_text("utf-8")
    for kind in ("html", "js", "css")
)


class Explorer:
    """A widget to choose a method, a class and a group, and to see their samples.

    ``save`` writes a page of the same that needs no kernel; without anywidget notebooks show that
    page. ``content``, which JSON can represent, is embedded in both: some thousand small pictures
    are a few megabytes.

    - ``title``;
    - ``samples``, mappings with ``row``, ``label``, ``picture`` (see `embedded`), ``text`` and
      ``fields``, pairs of words; the first of these three that is not empty is displayed;
    - ``methods``, mappings with ``name``, ``colour``, ``counts`` (``[sample][part of the run]``,
      how often trained on), ``losses`` (alike, `None` if unknown) and ``groups``, places of samples
      by name.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self._widget: Any = None

    def page(self) -> str:
        """A self-contained HTML page."""
        embedded = json.dumps(plain_values(self.content)).replace("<", "\\u003c")
        title = escape(self.content["title"])
        parts = {"title": title, "style": _STYLE, "content": embedded, "script": _SCRIPT}
        return Template(_PAGE).substitute(parts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `page`, atomically."""
        return write_atomic(path, self.page())

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        if self._widget is None:
            self._widget = frontend.widget("explore", content=self.content)
        if self._widget is None:
            frame = f'<iframe srcdoc="{escape(self.page())}" width="100%" height="600"></iframe>'
            return {"text/html": frame, "text/plain": "<Explorer>"}
        return self._widget._repr_mimebundle_(**kwargs)


def embedded(image: Any) -> str:
    """``image``, see `pixels`, as a data address of at most `SIDE` pixels a side."""
    small, file = Image.fromarray(np.uint8(pixels(image) * 255)), BytesIO()
    small.thumbnail((SIDE, SIDE))
    small.save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
