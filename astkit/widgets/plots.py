"""Figures from tidy tables; legible in greyscale, on white and on dark pages.

All functions take a data frame or a list of mappings and return a `Picture`, a
`matplotlib.figure.Figure` outside pyplot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from astkit.widgets.style import (
    COLOURS,
    PIXELS,
    SELECTED,
    SKIPPED,
    WIDTH,
    Picture,
    Table,
    legend_outside,
    line,
    picture,
    styled,
)

POINTS = 250  # per curve of a gate; longer runs are averaged in windows
GAP, LABEL = 0.12, 2.2  # in units of the side of the square that an image of a sample fits in
FEWEST = 8  # images that a row has room for
CAPTION, LETTER = 0.14, 0.065  # inches of a line of a caption, and of its letters

# --- a run ------------------------------------------------------------------------------------


@styled
def learning_curves(steps: Table, epochs: Table) -> Picture:
    """Training loss by batch, and each validation metric by epoch, over the batches trained on.

    Args:
        steps: columns ``step`` and ``loss``, as in ``History.steps``; may be empty.
        epochs: column ``step`` and columns whose names begin with ``val_``, as in
            ``History.epochs``; may be empty.

    The loss of more than 250 batches is the mean over windows of them.
    """
    batches, ends = pd.DataFrame(steps), pd.DataFrame(epochs)
    metrics = [name for name in ends.columns if name.startswith("val_") and name != "val_loss"]
    figure = picture(1 + len(metrics), height=2.4)
    loss, *others = figure.axes
    if "loss" in batches:
        curve = batches.groupby(_windows(batches["step"]))[["step", "loss"]].mean()
        style = {"lw": 1.2, "label": "training", **line("training", markers=False)}
        loss.plot(curve["step"], curve["loss"], **style)
    if "val_loss" in ends:
        loss.plot(ends["step"], ends["val_loss"], lw=1.4, label="validation", **line("validation"))
    loss.set(title="loss", ylabel="mean over rows")
    for axis, name in zip(others, metrics, strict=True):
        axis.plot(ends["step"], ends[name], lw=1.4, **line("validation"))
        title = name.removeprefix("val_").replace("_", " ")
        axis.set(title=f"validation {title}", ylabel=title)
    for axis in figure.axes:
        axis.set_xlabel("step (batches)")
    if loss.lines:
        legend_outside(figure, loss)
    return figure


def _windows(steps: pd.Series) -> pd.Series:
    """Of each step the number of its window; as many as there are steps, up to `POINTS`."""
    return (steps.rank(method="dense") - 1) // np.ceil(steps.nunique() / POINTS)


# --- samples ----------------------------------------------------------------------------------


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
    width = max(FEWEST, *map(len, rows.values())) * (1 + GAP) + LABEL
    side = WIDTH / width  # inches
    letters = int((1 + GAP) * side / LETTER)
    captions = {
        name: ["\n".join(fill(part, letters) for part in text.splitlines()) for text in row]
        for name, row in (captions or {}).items()
    }
    lines = [text.count("\n") + 1 for row in captions.values() for text in row]
    step = 1 + GAP + CAPTION / side * max(lines, default=0)
    height = len(rows) * step
    tall = height * side + 0.35 * bool(title)
    figure = Picture(figsize=(WIDTH, tall), dpi=2 * PIXELS)  # a layout would be slower
    axis = figure.add_axes((0, 0, 1, height * side / tall))
    axis.set(xlim=(-LABEL, width - LABEL), ylim=(height, 0), aspect="equal")
    axis.set_axis_off()
    kinds = list(dict.fromkeys(map(_kind, rows)))
    for place, (name, row) in enumerate(rows.items()):
        usual = COLOURS[kinds.index(_kind(name)) % len(COLOURS)]
        colour = {"selected": SELECTED, "skipped": SKIPPED}.get(_kind(name), usual)
        top = place * step + GAP / 2
        words = "\n".join(fill(part, 18) for part in name.split(": "))
        plain: Any = {"size": 9, "color": colour, "parse_math": False}
        axis.text(-0.15, top + 0.5, words, ha="right", va="center", **plain)
        for column, image in enumerate(row):
            left = column * (1 + GAP)
            tall, wide = (extent / max(image.shape[:2]) for extent in image.shape[:2])
            x, y = left + (1 - wide) / 2, top + (1 - tall) / 2
            look: Any = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "nearest"}
            axis.imshow(image, extent=(x, x + wide, y + tall, y), **look)
            axis.add_patch(Rectangle((left, top), 1, 1, fill=False, lw=1.6, edgecolor=colour))
        plain = {"size": 8, "parse_math": False}
        for column, text in enumerate(captions.get(name, ())):
            axis.text(column * (1 + GAP) + 0.5, top + 1.04, text, ha="center", va="top", **plain)
    figure.headline(title)
    return figure


def _kind(name: str) -> str:
    """The word that determines the colour of a row."""
    return re.split(r"\W", name.rpartition(": ")[2])[0]


def pixels(image: Any) -> np.ndarray:
    """``image`` as float ``[height, width]`` or ``[height, width, 3 or 4]`` in [0, 1]."""
    if getattr(image, "mode", None) in ("P", "PA", "LA", "CMYK", "YCbCr", "LAB", "HSV"):  # of PIL
        image = image.convert("RGBA" if "A" in image.getbands() else "RGB")
    if hasattr(image, "detach"):
        image = image.detach().cpu()
        image = image.float() if image.is_floating_point() else image  # NumPy has no bfloat16
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype == np.uint8:
        return array / 255
    low, high = float(array.min()), float(array.max())
    return (array - low) / ((high - low) or 1.0)
