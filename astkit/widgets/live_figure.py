"""A figure whose lines grow: between changes of an axis only the lines are drawn anew.

Most of the time of a whole frame goes into labels. So axes get room to grow, what
does not move is kept as a background, and a frame is that background with the lines upon it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from PIL import Image

from astkit.widgets.style import SOFT, Picture, look, picture, styled

Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # x and y of one line
X_ROOM, Y_ROOM = 2.5, 1.5
"""How much further than its data an axis reaches when it is made longer."""


@dataclass(frozen=True)
class Curve:
    """One line of a panel: which series, how it is called and drawn, and on which side its axis."""

    key: str
    label: str
    style: Mapping[str, Any]
    right: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. ``floor``: where the left axis begins, if it always begins there."""

    title: str
    curves: Sequence[Curve]
    floor: float | None = None
    label: str = ""
    legend: Literal["center right", "upper left"] = "center right"


class LiveFigure:
    """Draws ``panels`` side by side, quickly and again and again."""

    @styled
    def __init__(self, panels: Sequence[Panel], width: float = 3.1, height: float = 2.6) -> None:
        self.figure: Picture = picture(len(panels), width=width, height=height, layout=None)
        self.figure.set_dpi(80)
        self.figure.subplots_adjust(left=0.045, right=0.985, bottom=0.17, top=0.80, wspace=0.35)
        self._lines: list[tuple[Curve, Line2D, Axes]] = []
        self._floors: dict[Axes, float | None] = {}
        self._marks = 0
        self._background: Any = None
        for axis, panel in zip(list(self.figure.axes), panels, strict=True):
            self._build(axis, panel)

    def _build(self, axis: Axes, panel: Panel) -> None:
        axis.set_title(panel.title, fontsize=7 if len(panel.title) > 30 else 10)
        axis.set_xlabel("step", fontsize=8)
        axis.set_ylabel(panel.label, fontsize=8, labelpad=1)
        axis.set(xlim=(0, 100), ylim=(panel.floor or 0, 1e-9))
        self._floors[axis] = panel.floor
        right = axis.twinx() if any(curve.right for curve in panel.curves) else None
        if right is not None:
            right.set_ylim(0, 1)
            right.grid(False)
        for curve in panel.curves:
            side = right if curve.right and right is not None else axis
            (line,) = side.plot([], [], animated=True, label=curve.label, **curve.style)
            self._lines.append((curve, line, side))
        if len(panel.curves) > 1:
            handles = [line for curve, line, _ in self._lines[-len(panel.curves) :]]
            axis.legend(handles=handles, loc=panel.legend, fontsize=7)
        for side in filter(None, (axis, right)):
            side.tick_params(labelsize=8)
            side.locator_params(nbins=5)

    def update(self, series: Mapping[str, Series], marks: Sequence[float] = ()) -> None:
        """Give every curve its points, and draw a vertical line at each of ``marks``."""
        for curve, line, axis in self._lines:
            x, y = series[curve.key]
            line.set_data(x, y)
            self._widen(axis, x, y)
        for mark in marks[self._marks :]:
            with look():
                for axis in self._floors:
                    axis.axvline(mark, color=SOFT, lw=0.8, ls=":")
            self._background = None
        self._marks = len(marks)

    def _widen(self, axis: Axes, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        seen = y[np.isfinite(y)]
        if len(x) and x[-1] > axis.get_xlim()[1]:
            axis.set_xlim(0, X_ROOM * x[-1])
            self._background = None
        if not len(seen) or axis not in self._floors:
            return
        low, high = float(seen.min()), float(seen.max())
        bottom, top = axis.get_ylim()
        new = top <= 2e-9
        if new or low < bottom or high > top:
            room = (Y_ROOM - 1) * max(high - low, abs(high) / 10, 1e-9)
            lowest = low - room if new or low < bottom else bottom
            lowest = max(lowest, 0.0) if low >= 0 else lowest
            floor = self._floors[axis]
            axis.set_ylim(
                lowest if floor is None else floor, high + room if new or high > top else top
            )
            self._background = None

    def png(self) -> bytes:
        """The frame as a PNG file."""
        canvas: Any = self.figure.canvas
        if self._background is None:
            canvas.draw()
            self._background = canvas.copy_from_bbox(self.figure.bbox)
        canvas.restore_region(self._background)
        for _, line, axis in self._lines:
            axis.draw_artist(line)
        buffer = BytesIO()
        Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(
            buffer, "png", compress_level=1
        )
        return buffer.getvalue()

    def finished(self) -> Picture:
        """The figure as an ordinary picture, axes fitted to what came."""
        for _, line, axis in self._lines:
            line.set_animated(False)
            x = np.asarray(line.get_xdata(), dtype=float)
            if len(x):
                axis.set_xlim(0, max(x[-1], 1.0))
        self._background = None
        return self.figure
