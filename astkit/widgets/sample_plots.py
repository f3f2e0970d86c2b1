"""Figures of samples: rows of images, each with a caption."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from astkit.widgets.style import COLOURS, SELECTED, SKIPPED, Picture, picture, styled

SIDE = 0.62  # width and height of the square that an image fits in, in inches
GAP, CAPTION, LABEL = 0.12, 0.22, 2.2  # in units of an image's side; a line of a caption


@styled
def image_rows(
    images: Mapping[str, Sequence[Any]],
    captions: Mapping[str, Sequence[str]] | None = None,
    title: str = "",
) -> Picture:
    """Rows of images, named at the left, each image with a frame and a caption below it.

    Args:
        images: for each row its images, of equal or different sizes: ``[height, width]``,
            ``[channels, height, width]`` with 1 or 3 channels, or PIL images; uint8 from 0 to 255,
            other values are scaled from the smallest to the largest. Empty rows are omitted. Rows
            whose names have the same word after a colon share their colour.
        captions: for each row the captions of its images, of one or more lines.
        title: title of the figure.

    Raises ``ValueError`` if there is no image.
    """
    rows = {name: [pixels(each) for each in row] for name, row in images.items() if len(row)}
    if not rows:
        raise ValueError("images holds no image: pass at least one row with one image")
    lines = [text.count("\n") + 1 for row in (captions or {}).values() for text in row]
    step = 1 + GAP + CAPTION * max(lines, default=0)
    width, height = max(map(len, rows.values())) * (1 + GAP) + LABEL, len(rows) * step
    figure = picture(width=width * SIDE, height=height * SIDE + 0.35 * bool(title), layout=None)
    axis = figure.axes[0]
    axis.set_position((0, 0, 1, height * SIDE / figure.get_figheight()))
    axis.set(xlim=(-LABEL, width - LABEL), ylim=(height, 0), aspect="equal")
    axis.set_axis_off()
    kinds = list(dict.fromkeys(map(_kind, rows)))
    for place, (name, row) in enumerate(rows.items()):
        usual = COLOURS[kinds.index(_kind(name)) % len(COLOURS)]
        colour = {"selected": SELECTED, "skipped": SKIPPED}.get(_kind(name), usual)
        top = place * step + GAP / 2
        words = "\n".join(fill(part, 18) for part in name.split(": "))
        axis.text(-0.15, top + 0.5, words, ha="right", va="center", size=9, color=colour)
        for column, image in enumerate(row):
            left = column * (1 + GAP)
            tall, wide = (extent / max(image.shape[:2]) for extent in image.shape[:2])
            x, y = left + (1 - wide) / 2, top + (1 - tall) / 2
            look: Any = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "nearest"}
            axis.imshow(image, extent=(x, x + wide, y + tall, y), **look)
            axis.add_patch(Rectangle((left, top), 1, 1, fill=False, lw=1.6, edgecolor=colour))
        for column, text in enumerate((captions or {}).get(name, ())):
            axis.text(column * (1 + GAP) + 0.5, top + 1.04, text, ha="center", va="top", size=7)
    figure.suptitle(title, x=0.02, ha="left", size=11)
    return figure


def _kind(name: str) -> str:
    """The word that determines the colour of a row."""
    return re.split(r"\W", name.rpartition(": ")[2])[0]


def pixels(image: Any) -> np.ndarray:
    """``image`` as float ``[height, width]`` or ``[height, width, 3]`` in [0, 1]."""
    array = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype == np.uint8:
        return array / 255
    low, high = float(array.min()), float(array.max())
    scaled: np.ndarray = (array - low) / ((high - low) or 1.0)
    return scaled
