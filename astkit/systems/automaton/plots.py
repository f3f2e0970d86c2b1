"""Figures of a logic automaton: losses, numbers of gates, rollouts side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike, NDArray

from astkit.widgets.style import (
    COLOURS,
    INK,
    PAPER,
    WIDTH,
    Film,
    Picture,
    picture,
    styled,
)

Floats = NDArray[np.float64]

_MISSING = "#E8A3A5"  # of cells that should be 1; a paler COLOURS[0]


@styled
def rollout_frames(
    trajectories: Mapping[str, ArrayLike],
    at: Sequence[int],
    *,
    truth: ArrayLike | None = None,
    outline: ArrayLike | None = None,
) -> Picture:
    """A row of states: of each rollout, step by step.

    Cells that differ from the truth, rounded, are coloured and counted; where any does, in any
    step, the colours are explained.

    Args:
        trajectories: for each name values in [0, 1], ``[T, H, W]``, all of one shape.
        at: the steps to show.
        truth: likewise; by default the first rollout.
        outline: bool ``[H, W]``: cells around which a line is drawn.
    """
    states = {name: np.asarray(values, np.float64) for name, values in trajectories.items()}
    first = next(iter(states.values()))
    true = first if truth is None else np.asarray(truth, np.float64)
    _, rows, columns = first.shape
    single = len(states) == 1
    panels = len(at) * len(states)
    panel = min(2.6, WIDTH / panels)  # inches
    figure = picture(panels, width=panel * panels, height=0.92 * panel * rows / columns + 0.4)
    for axis, (step, name) in zip(figure.axes, product(at, states), strict=True):
        wrong = _show(axis, states[name][step], true[step])
        if outline is not None:
            axis.contour(np.asarray(outline, float), [0.5], colors=COLOURS[1], linewidths=2)
        title = f"step {step}" if single else name
        if states[name] is not true:
            title += f": {wrong:,} of {true[step].size:,} differ"
        elif not single:
            axis.set_ylabel(f"step {step}")
        axis.set_title(title, size=9)
    if any(_wrong(each, true)[0].any() for each in states.values()):
        wide = int(14 * figure.get_figwidth())  # characters
        figure.suptitle(fill("red: wrong, should be 0; pale red: wrong, should be 1", wide), size=9)
    return figure


def film(trajectories: Mapping[str, ArrayLike], fps: int = 8, **options: Any) -> Film:
    """The rollouts side by side, ``fps`` frames per second.

    For ``trajectories`` and ``options`` see `rollout_frames`.
    """
    steps = len(np.asarray(next(iter(trajectories.values()))))
    frames = (rollout_frames(trajectories, [step], **options) for step in range(steps))
    return Film(frames, fps)


def coloured(values: ArrayLike, true: ArrayLike) -> NDArray[np.uint8]:
    """Ink where 1, paper where 0; wrong cells are red, pale if they should be 1: RGB ``[H, W, 3]``.

    ``values``, in [0, 1], and ``true`` are ``[H, W]``.
    """
    shade = np.clip(np.asarray(values, np.float64), 0, 1)
    paper, ink = np.array(to_rgb(PAPER)), np.array(to_rgb(INK))
    image = paper + (ink - paper) * shade[..., None]
    wrong, missing = _wrong(shade, np.asarray(true, np.float64))
    image[wrong], image[missing] = to_rgb(COLOURS[0]), to_rgb(_MISSING)
    return np.rint(255 * image).astype(np.uint8)


def _wrong(values: Floats, true: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Cells that differ when rounded, and those of them that should be 1."""
    wrong = (values >= 0.5) != (true >= 0.5)
    return wrong, wrong & (true >= 0.5)


def _show(axis: Axes, values: Floats, true: Floats) -> int:
    """Draw the cells; returns how many are wrong."""
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(True)
    axis.imshow(coloured(values, true), interpolation="nearest")
    return int(_wrong(values, true)[0].sum())
