"""A figure whose lines grow: between changes of an axis only the lines are drawn anew.

Most of the time of a whole frame goes into labels. So axes get some room to grow, what does not
move is kept as a background, and a frame is that background with the lines upon it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from textwrap import fill, shorten
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray
from PIL import Image

from astkit.widgets.style import SOFT, Picture, look, picture, styled

ROOM = 0.25
"""How much further than its data an axis reaches when it is made longer, as a share of them."""


FLOPS = "FLOPs, counted"


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    ``curves``: of each series its label and style. ``right``: the series that the right axis shows,
    which reaches from 0 to 1, and the label of that axis. ``floor``: the left axis begins at 0.
    """

    title: str
    unit: str
    curves: Mapping[str, tuple[str, dict[str, Any]]]
    right: tuple[str, str] = ("", "")
    floor: bool = True


class LiveFigure:
    """Draws ``panels`` two in a row, with ``note`` below them, quickly and again and again."""

    @styled
    def __init__(self, panels: Sequence[Panel], note: str = "") -> None:
        rows = -(-len(panels) // 2)
        self.figure: Picture = picture(2, rows, width=5.0, height=2.5, layout=None)
        self.figure.set_dpi(80)
        inch = 1 / (2.5 * rows)
        self.figure.subplots_adjust(
            left=0.07, right=0.93, wspace=0.32, hspace=0.55, bottom=0.8 * inch, top=1 - 0.35 * inch
        )
        self.figure.text(0.01, 0.06 * inch, fill(shorten(note, 280), 140), size=8, color=SOFT)
        self._lines: dict[str, Line2D] = {}
        self._sides: dict[Axes, bool] = {}  # left axes, and whether they begin at 0
        self._marks = 0
        self._background: Any = None
        for axis, panel in zip(list(self.figure.axes), panels, strict=False):
            self._build(axis, panel)
        for empty in self.figure.axes[len(panels) : 2 * rows]:
            empty.set_axis_off()

    def _build(self, axis: Axes, panel: Panel) -> None:
        axis.set_title(panel.title, loc="left", fontsize=10)
        axis.set_xlabel("step (batches)", fontsize=8)
        axis.set_ylabel(panel.unit, fontsize=8)
        if panel.unit == FLOPS:
            axis.yaxis.set_major_formatter(EngFormatter())
        axis.set_xlim(0, 1e-9)
        self._sides[axis] = panel.floor
        sides, right = [axis], panel.right[0]
        if right:
            sides.append(axis.twinx())
            sides[1].set(ylim=(0, 1))
            colour = panel.curves[right][1]["color"]
            sides[1].set_ylabel(panel.right[1], fontsize=8, color=colour)
            sides[1].spines.right.set_visible(True)
            sides[1].grid(False)
        for key, (label, style) in panel.curves.items():
            (line,) = sides[key == right].plot([], [], animated=True, label=label, **style)
            self._lines[key] = line
        if len(panel.curves) > 1:
            handles = [self._lines[key] for key in panel.curves]
            above: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.97)}
            above |= {"columnspacing": 1.0, "handlelength": 1.6}
            axis.legend(handles=handles, ncols=3, fontsize=8, **above)
        for side in sides:
            side.tick_params(labelsize=8)
            side.locator_params(nbins=5)

    def update(
        self, series: Mapping[str, NDArray[Any]], marks: Sequence[float], fit: bool = False
    ) -> None:
        """Give every curve its points, and draw a vertical line at each of ``marks``.

        ``series``: x and y of each point. ``fit``: let the axes end where the data do.
        """
        for key, line in self._lines.items():
            line.set_data(series[key].T)
        for mark in marks[self._marks :]:
            with look():
                for axis in self._sides:
                    axis.axvline(mark, color=SOFT, lw=0.8, ls=":")
            self._background = None
        self._marks = len(marks)
        for axis in self._sides:
            keys = [key for key, line in self._lines.items() if line.axes is axis]
            self._limits(axis, np.concatenate([series[key] for key in keys]), fit)

    def _limits(self, axis: Axes, points: NDArray[Any], fit: bool) -> None:
        points = points[np.isfinite(points).all(axis=1)]
        if not len(points):
            return
        (_, low), (end, high) = points.min(axis=0), points.max(axis=0)
        (bottom, top), last = axis.get_ylim(), axis.get_xlim()[1]
        new = last < 1e-6
        if fit or end > last:
            axis.set_xlim(0, max(end, 1.0) * (1 if fit else 1 + ROOM))
            self._background = None
        if fit or new or low < bottom or high > top:
            room = (0.05 if fit else ROOM) * ((high - low) or abs(high) or 1.0)
            lowest = max(low - room, 0.0) if low >= 0 else low - room
            axis.set_ylim(min(0.0, lowest) if self._sides[axis] else lowest, high + room)
            self._background = None

    def png(self) -> bytes:
        """The frame as a PNG file."""
        canvas: Any = self.figure.canvas
        if self._background is None:
            canvas.draw()
            self._background = canvas.copy_from_bbox(self.figure.bbox)
        canvas.restore_region(self._background)
        for line in self._lines.values():
            line.axes.draw_artist(line)  # type: ignore[union-attr]
        buffer = BytesIO()
        Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(
            buffer, "png", compress_level=1
        )
        return buffer.getvalue()

    def finished(self) -> Picture:
        """The figure as an ordinary picture."""
        for line in self._lines.values():
            line.set_animated(False)
        self._background = None
        return self.figure
