"""Pictures, still and moving, of several rollouts of a cellular automaton side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.animation import AbstractMovieWriter, HTMLWriter, PillowWriter
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike, NDArray

from astkit import files
from astkit.widgets.style import COLOURS, INK, PAPER, Picture, picture, styled

Floats = NDArray[np.float64]


@styled
def rollout_frames(trajectories: Mapping[str, ArrayLike], at: Sequence[int]) -> Picture:
    """States of several rollouts side by side: a row a rollout, a column a step.

    The first rollout is the true one; cells of the others that differ from it, rounded, are
    coloured and counted.

    Args:
        trajectories: for each name values in [0, 1], ``[T, H, W]``, all of one shape.
        at: the steps to show.

    Raises ``ValueError`` for shapes that differ, or a step that is not there.
    """
    states = _checked(trajectories)
    steps = len(next(iter(states.values())))
    wrong = [step for step in at if not 0 <= step < steps]
    if not at or wrong:
        raise ValueError(f"at is {list(at)}: give steps from 0 to {steps - 1}")
    figure = picture(len(at), len(states), width=2.2, height=2.4)
    for place, (name, values) in enumerate(states.items()):
        for column, step in enumerate(at):
            axis = figure.axes[place * len(at) + column]
            _show(axis, values, next(iter(states.values())), step)
            axis.set_title(_title(f"step {step}" if place == 0 else "", states, name, step), size=9)
            if column == 0:
                axis.set_ylabel(name)
    return figure


@styled
def save_rollouts(
    path: str | os.PathLike[str], trajectories: Mapping[str, ArrayLike], fps: int = 10
) -> Path:
    """Write the rollouts side by side as a moving picture, atomically; returns the path.

    The name's ending chooses: ``.gif``, or ``.html`` with buttons to stop it and go step by step.
    ``trajectories`` are those of `rollout_frames`; ``fps`` is frames a second.

    Raises ``ValueError`` for another ending, shapes that differ, or ``fps`` below 1.
    """
    path, states = Path(path), _checked(trajectories)
    if path.suffix not in (".gif", ".html"):
        raise ValueError(f"path is {str(path)!r}: let it end in .gif or .html")
    if fps < 1:
        raise ValueError(f"fps is {fps}: give 1 frame a second or more")
    writer: AbstractMovieWriter
    writer = PillowWriter(fps) if path.suffix == ".gif" else HTMLWriter(fps, embed_frames=True)
    figure, true = picture(len(states), width=3.2, height=3.5), next(iter(states.values()))
    images = [
        _show(axis, values, true, 0)
        for axis, values in zip(figure.axes, states.values(), strict=True)
    ]
    with TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        with writer.saving(figure, str(made), dpi=56):
            for step in range(len(true)):
                for axis, image, (name, values) in zip(
                    figure.axes, images, states.items(), strict=True
                ):
                    image.set_data(_coloured(values[step], true[step]))
                    axis.set_title(_title(name, states, name, step), size=9)
                figure.supxlabel(f"step {step}", size=9)
                if step == 0:  # the same places in every frame, and worked out but once
                    figure.draw_without_rendering()
                    figure.set_layout_engine("none")
                writer.grab_frame()
        return files.write_atomic(path, made.read_bytes())


_MISSING = "#F4B183"  # the wrong colour, paler: it should be ink


def _checked(trajectories: Mapping[str, ArrayLike]) -> dict[str, Floats]:
    states = {name: np.asarray(values, np.float64) for name, values in trajectories.items()}
    shapes = {values.shape for values in states.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 3 or 0 in next(iter(shapes)):
        found = ", ".join(f"{name} {list(values.shape)}" for name, values in states.items())
        raise ValueError(f"trajectories are {found or 'none'}: give them all as one [T, H, W]")
    return states


def _show(axis: Axes, values: Floats, true: Floats, step: int) -> Any:
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(True)
    return axis.imshow(_coloured(values[step], true[step]), interpolation="nearest")


def _coloured(values: Floats, true: Floats) -> Floats:
    """[H, W, 3]: ink where 1, paper where 0; wrong ones orange, dark if they should be 0."""
    shade = np.clip(values, 0, 1)[..., None]
    image = np.array(to_rgb(PAPER)) * (1 - shade) + np.array(to_rgb(INK)) * shade
    image[(values >= 0.5) & (true < 0.5)] = to_rgb(COLOURS[1])
    image[(values < 0.5) & (true >= 0.5)] = to_rgb(_MISSING)
    return image


def _title(text: str, states: Mapping[str, Floats], name: str, step: int) -> str:
    first = next(iter(states))
    if name == first:
        return text
    off = int(((states[name][step] >= 0.5) != (states[first][step] >= 0.5)).sum())
    return f"{text}{': ' if text else ''}{off:,} of {states[name][step].size:,} differ"
