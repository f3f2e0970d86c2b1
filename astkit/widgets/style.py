"""Style of figures: figure class, and colours, dashes and hatches legible in greyscale.

Figures have dark text on white, independent of the page's theme and ``matplotlib.rcParams``.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from textwrap import fill
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure

Table = pd.DataFrame | Sequence[Mapping[str, Any]]
"""A tidy table, or its rows as mappings."""

WIDTH, PIXELS = 7.6, 96
"""Inches of all figures, and their pixels an inch on a page; stored ones have twice as many."""

LETTERS = 13  # of a headline, an inch

PAPER, INK, SOFT = "#ffffff", "#222222", "#595959"
"""Background, text, and auxiliary lines; WCAG contrast to the background 15.9 and 7."""

# of what is no policy: contrast >= 3:1 on white, 6 apart in CIE lightness
COLOURS = ("#A4161A", "#7A9A01", "#1B2440", "#5F7F95", "#C2185B", "#2A4941", "#412462")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx", "----", "\\\\\\\\", "++++")

LOOK: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "hatch.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "patch.edgecolor"), INK),
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
}
styled = matplotlib.style.context(["default", LOOK])
"""Decorator of functions that draw: applies this style."""

SELECTED, SKIPPED = "#00857A", "#B8860B"
"""Samples that a policy selects and skips; no policy has these colours."""

LOOKS: dict[str, tuple[str, str, Any]] = {
    "dense": ("#004488", "o", "-"),
    "gate": ("#D55E00", "X", "--"),
    "batched gate": ("#D55E00", "X", "--"),
    "this run": ("#D55E00", "X", "--"),
    "auto": ("#85348A", "P", "-."),
    "random": ("#767676", "s", ":"),
    "aim": ("#117733", "D", (0, (5, 1))),
    "infobatch": ("#CC79A7", "v", (0, (3, 1, 1, 1))),
    "oracle": ("#000000", "*", (0, (1, 1))),
    "class_balanced": ("#661100", "^", "-"),
    "cached_loss": ("#D55E00", ">", "--"),
    "learned": ("#661100", "s", "-."),
    "weighted": ("#0086B3", "p", ":"),
}
"""Colour, marker and dashes of every policy; the eight in most figures share no colour."""
_others: dict[str, int] = {}  # names that are no policies, in the order of their first use


class Picture(Figure):
    """A figure that notebooks display without pyplot, with a text for those who do not see it.

    Attributes:
        alt: that text; if empty, titles and labels of the axes.
    """

    alt = ""

    @styled
    def draw(self, renderer: RendererBase) -> None:
        """Draw in this style; ticks are created only at this point."""
        super().draw(renderer)

    @styled
    def savefig(self, fname: Any, **options: Any) -> None:
        """Save in this style; see `matplotlib.figure.Figure.savefig`."""
        super().savefig(fname, **options)

    def png(self, dpi: float | None = None) -> bytes:
        """The figure as a PNG with 256 colours, which keeps notebooks small."""
        full = BytesIO()
        self.savefig(full, format="png", dpi=dpi or "figure")
        return few_colours(full.getvalue())

    def headline(self, message: str) -> None:
        """Write what the figure shows above all of it."""
        words = fill(message, int(LETTERS * self.get_figwidth()))
        self.suptitle(words, x=0.01, ha="left", size=10, weight="bold")

    def described(self) -> str:
        """``alt``, or else what is written above and beside the axes."""
        words = [self.alt or self.get_suptitle()]
        for axis in self.axes if not self.alt else ():
            labels = [label for label in (axis.get_ylabel(), axis.get_xlabel()) if label]
            words += [axis.get_title(), " against ".join(labels)]
        return "; ".join(" ".join(each.split()) for each in words if each)

    @property
    def pixels_wide(self) -> int:
        """Its width on a page."""
        return round(PIXELS * self.get_figwidth())

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        return self.png(), {"width": self.pixels_wide, "alt": self.described()}


def few_colours(png: bytes) -> bytes:
    """A PNG with 256 colours, which keeps notebooks small."""
    from PIL import Image

    few = Image.open(BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(small := BytesIO(), "png", optimize=True)
    return small.getvalue()


class Film:
    """Pictures one after the other, as an animated PNG of 48 colours that plays once.

    It is its last picture where a reader's system asks for less motion, and where no HTML is shown.

    Args:
        pictures: of one size.
        fps: of them a second.
        dpi: pixels an inch; a page shows `PIXELS`.

    Attributes:
        png: the file; ``still``: of the last picture.
        alt: text for those who do not see it; that of the last picture by default.
    """

    def __init__(self, pictures: Iterable[Picture], fps: int = 8, dpi: float = 120) -> None:
        from PIL import Image

        frames = []
        for each in pictures:
            each.savefig(drawn := BytesIO(), format="png", dpi=dpi)
            frames.append(Image.open(drawn).convert("RGB"))
            self.alt, self.width = each.described(), each.pixels_wide
        stacked = Image.fromarray(np.concatenate([np.asarray(frame) for frame in frames]))
        colours = stacked.quantize(48, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
        times: dict[str, Any] = {"append_images": few[1:], "duration": 1000 // fps, "loop": 1}
        few[0].save(film := BytesIO(), "png", save_all=True, **times)
        few[-1].save(still := BytesIO(), "png", optimize=True)
        self.png, self.still = film.getvalue(), still.getvalue()

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        film, still = (b64encode(each).decode() for each in (self.png, self.still))
        address, alt = "data:image/png;base64,", escape(self.alt)
        html = (
            f'<picture><source media="(prefers-reduced-motion: reduce)" srcset="{address}{still}">'
            f'<img width="{self.width}" alt="{alt}" src="{address}{film}"></picture>'
        )
        about = {"image/png": {"width": self.width, "alt": self.alt}}
        return {"text/html": html, "image/png": still, "text/plain": "<Film>"}, about


@styled
def picture(columns: int = 1, *, width: float = WIDTH, height: float = 3.4) -> Picture:
    """An empty figure of so many inches with axes side by side: ``picture.axes``."""
    figure = Picture(figsize=(width, height), dpi=2 * PIXELS, layout="constrained")
    figure.subplots(1, columns)
    return figure


def line(name: int | str, markers: bool = True) -> dict[str, Any]:
    """Colour, dashes and marker of a line, by name or number.

    A policy has those of `LOOKS`, also with further words ("auto, 0.85 of the FLOPs", "random at
    0.5"). Another name keeps its style in all figures of a process. The first seven numbers differ
    in colour, the first 49 in colour or dashes.
    """
    policy = next((each for each in LOOKS if re.match(rf"{each}(?![\w-])", str(name))), None)
    if policy is not None:
        colour, marker, dashes = LOOKS[policy]
    else:
        place = name if isinstance(name, int) else _others.setdefault(name, len(_others))
        turn = (place + place // len(COLOURS)) % len(DASHES)
        colour, dashes, marker = COLOURS[place % len(COLOURS)], DASHES[turn], MARKERS[turn]
    style: dict[str, Any] = {"color": colour, "linestyle": dashes}
    return {**style, "marker": marker} if markers else style


def lines(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`line` of each of ``names``; those whose colour is taken have another, such as two gates."""
    styles: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(names):
        taken = {style["color"] for style in styles.values()}
        others = (line(place) for place in range(len(COLOURS)))
        free = (style for style in (line(name), *others) if style["color"] not in taken)
        styles[name] = next(free, line(name))
    return styles


def legend_outside(figure: Picture, axis: Axes) -> None:
    """A legend right of the only axes, or below several; curves are in the order of their ends.

    ``axis``: the one whose curves they are.
    """
    handles, labels = axis.get_legend_handles_labels()
    curves = [each for each in axis.lines if each.get_transform() is axis.transData]
    last = {each.get_label(): np.asarray(each.get_ydata(), float)[-1] for each in curves}
    ends = {name: np.nan_to_num(-end, nan=np.inf) for name, end in last.items()}
    # vertical lines and shaded areas last
    order = sorted(zip(handles, labels, strict=True), key=lambda entry: ends.get(entry[1], np.inf))
    entries = list(zip(*order, strict=True))
    if len(figure.axes) > 1:
        figure.legend(*entries, loc="outside lower center", ncols=4)
    else:
        figure.legend(*entries, loc="outside right center", labelspacing=0.9)


def name_seeds(figure: Picture, seeds: int, words: str, shown: str = "") -> None:
    """Write ``shown`` and the number of ``seeds`` above the axes."""
    said = [shown] * bool(shown) + [words.format(seeds)] * (seeds > 1)
    if said:
        figure.suptitle(": ".join(said), size=10)
