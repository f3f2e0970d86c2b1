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
from typing import Any

import anywidget
import numpy as np
import traitlets
from PIL import Image

from astkit.files import plain_values, write_atomic
from astkit.widgets.plots import pixels

SIDE = 96  # largest side of an embedded picture, in pixels
_SCRIPT = files("astkit.widgets").joinpath("explore.js").read_text()
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>body {{ margin: 1rem; }}
{style}</style></head><body><main id="explorer"></main>
<script type="application/json" id="content">{content}</script>
<script type="module">
{script}
const embedded = JSON.parse(document.getElementById("content").textContent);
render({{ model: {{ get: () => embedded }}, el: document.getElementById("explorer") }});
</script></body></html>
"""


class Explorer(anywidget.AnyWidget):
    """A widget to choose a method, a class and a group, and to see their samples.

    ``save`` writes a page of the same that needs no kernel. ``content``, which JSON can represent,
    is embedded in both: some thousand small pictures are a few megabytes.

    - ``title``;
    - ``samples``, mappings with ``row``, ``label``, ``picture`` (see `embedded`), ``text`` and
      ``fields``, pairs of words; the first of these three that is not empty is displayed;
    - ``methods``, mappings with ``name``, ``colour``, ``counts`` (``[sample][part of the run]``,
      how often trained on), ``losses`` (alike, `None` if unknown) and ``groups``, places of samples
      by name.
    """

    _esm = _SCRIPT + "\nexport default { render };\n"
    _css = files("astkit.widgets").joinpath("explore.css").read_text()
    content = traitlets.Dict().tag(sync=True)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a self-contained HTML page, atomically."""
        embedded = json.dumps(plain_values(self.content)).replace("<", "\\u003c")
        page = _PAGE.format(
            title=escape(self.content["title"]), style=self._css, content=embedded, script=_SCRIPT
        )
        return write_atomic(path, page)


def embedded(image: Any) -> str:
    """``image``, see `pixels`, as a data address of at most `SIDE` pixels a side."""
    small, file = Image.fromarray(np.uint8(pixels(image) * 255)), BytesIO()
    small.thumbnail((SIDE, SIDE))
    small.save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
