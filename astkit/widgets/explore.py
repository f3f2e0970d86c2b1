"""Explorer: which samples each method trained on, and their losses, in a notebook or a page.

The data are plain, so that anything may feed it: a list of `Sample`, and for each method a
`Choices`. Nothing is loaded from elsewhere, so the page works offline.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from astkit.files import write_atomic
from astkit.widgets.sample_plots import pixels
from astkit.widgets.style import line

SIDE = 96  # largest side of an embedded picture, in pixels
TEXT = 600  # characters of an embedded text
_FOLDER = files("astkit.widgets")
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


@dataclass(frozen=True)
class Sample:
    """One sample: its row number, its class, and what is displayed of it.

    ``picture``: ``[height, width]``, ``[channels, height, width]`` with 1 or 3 channels, or a PIL
    image; else ``text``; else ``fields``, values by name.
    """

    row: int
    label: str = ""
    picture: Any = None
    text: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Choices:
    """What one method did with n samples in each part of its run.

    ``counts``: int ``[parts, n]``, how often each was trained on. ``losses``: float ``[parts, n]``,
    NaN for unknown ones. ``groups``: positions of samples (not rows), the most typical first.
    """

    counts: ArrayLike
    losses: ArrayLike
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Explorer(anywidget.AnyWidget):
    """A widget to choose a method, a class and a group, and to see their samples.

    ``save`` writes a page of the same that needs no kernel.

    Args:
        samples: n samples, all of them embedded: some thousand small pictures are a few megabytes.
        methods: for each method what it did with them.
        title: heading.
    """

    _esm = _FOLDER.joinpath("explore.js").read_text() + "\nexport default { render };\n"
    _css = _FOLDER.joinpath("explore.css").read_text()
    content = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        samples: Sequence[Sample],
        methods: Mapping[str, Choices],
        title: str = "Which samples are trained on",
    ) -> None:
        entries = [_method(name, each) for name, each in methods.items()]
        shown = [_sample(sample) for sample in samples]
        super().__init__(content={"title": title, "samples": shown, "methods": entries})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a self-contained HTML page, atomically."""
        embedded = json.dumps(self.content).replace("<", "\\u003c")
        script = _FOLDER.joinpath("explore.js").read_text()
        title = self.content["title"].replace("<", "&lt;")
        page = _PAGE.format(title=title, style=self._css, content=embedded, script=script)
        return write_atomic(path, page)


def _method(name: str, choices: Choices) -> dict[str, Any]:
    counts, losses = np.asarray(choices.counts), np.asarray(choices.losses, dtype=float)
    return {
        "name": name,
        "colour": line(name)["color"],
        "counts": counts.T.tolist(),
        "losses": [[_short(loss) for loss in row] for row in losses.T.tolist()],
        "groups": {group: list(map(int, places)) for group, places in choices.groups.items()},
    }


def _short(loss: float) -> float | None:
    return float(f"{loss:.4g}") if np.isfinite(loss) else None


def _sample(sample: Sample) -> dict[str, Any]:
    picture = "" if sample.picture is None else _png(pixels(sample.picture))
    text = sample.text[:TEXT] + "…" * (len(sample.text) > TEXT)
    fields = [[str(name), str(value)] for name, value in sample.fields.items()]
    shown = {"picture": picture, "text": text, "fields": fields}
    return {"row": sample.row, "label": str(sample.label), **shown}


def _png(picture: NDArray[Any]) -> str:
    """A picture with values in [0, 1] as a data address."""
    image, file = Image.fromarray(np.uint8(picture * 255)), BytesIO()
    image.thumbnail((SIDE, SIDE))
    image.save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
