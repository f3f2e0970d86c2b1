"""Rollouts side by side, as frames or as a GIF."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from astkit import files
from astkit.widgets.style import COLOURS, INK, PAPER, Picture, picture, styled

Floats = NDArray[np.float64]


@styled
def rollout_frames(trajectories: Mapping[str, ArrayLike], at: Sequence[int]) -> Picture:
    """States of several rollouts: a row per rollout, a column per step.

    The first rollout is the reference; cells of the others that differ from it, rounded, are
    coloured and counted. ``trajectories``: for each name values in [0, 1], ``[T, H, W]``, all of
    one shape; ``at``: the steps to show.

    Raises ``ValueError`` for shapes that differ, or a step out of range.
    """
    films = _films(trajectories)
    steps = len(films[0].images)
    if not at or not all(0 <= step < steps for step in at):
        raise ValueError(f"at is {list(at)}: give steps from 0 to {steps - 1}")
    figure = picture(len(at), len(films), width=2.2, height=2.4)
    for axis, (place, column) in zip(figure.axes, np.ndindex(len(films), len(at)), strict=True):
        film, step = films[place], at[column]
        _show(axis, film.images[step])
        axis.set_title(film.differ[step] if place else f"step {step}", size=9)
        if column == 0:
            axis.set_ylabel(film.name)
    return figure


@styled
def save_rollouts(
    path: str | os.PathLike[str], trajectories: Mapping[str, ArrayLike], fps: int = 10
) -> Path:
    """Write the rollouts side by side as an animated GIF, atomically; returns the path.

    ``trajectories``: see `rollout_frames`. Raises ``ValueError`` for a path that does not end in
    ``.gif``, shapes that differ, or less than 1 frame per second (``fps``).
    """
    path, films = Path(path), _films(trajectories)
    if path.suffix != ".gif":
        raise ValueError(f"path is {str(path)!r}: give a name that ends in .gif")
    if fps < 1:
        raise ValueError(f"fps is {fps}: give 1 frame per second or more")
    figure, frames = picture(len(films), width=3.2, height=3.5), []
    shown = [_show(axis, film.images[0]) for axis, film in zip(figure.axes, films, strict=True)]
    for step in range(len(films[0].images)):
        for axis, image, film in zip(figure.axes, shown, films, strict=True):
            image.set_data(film.images[step])
            title = film.name if film is films[0] else f"{film.name}: {film.differ[step]}"
            axis.set_title(title, size=13)
        figure.supxlabel(f"step {step}", size=13)
        if step == 0:  # one layout for all frames
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        frames.append(Image.open(BytesIO(figure.png(dpi=56))))
    options: dict[str, Any] = {"append_images": frames[1:], "duration": 1000 // fps, "loop": 0}
    frames[0].save(gif := BytesIO(), "gif", save_all=True, **options)
    return files.write_atomic(path, gif.getvalue())


_MISSING = "#F4B183"  # of cells that should be 1


class _Film(NamedTuple):
    name: str
    images: Floats  # [T, H, W, 3]
    differ: list[str]  # of each step, how many cells differ


def _films(trajectories: Mapping[str, ArrayLike]) -> list[_Film]:
    states = {name: np.asarray(values, np.float64) for name, values in trajectories.items()}
    shapes = {values.shape for values in states.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 3 or 0 in next(iter(shapes)):
        found = ", ".join(f"{name} {list(values.shape)}" for name, values in states.items())
        raise ValueError(f"trajectories are {found or 'none'}: give them all as one [T, H, W]")
    true = next(iter(states.values()))
    films = []
    for name, values in states.items():
        off = ((values >= 0.5) != (true >= 0.5)).sum((1, 2))
        differ = [f"{count:,} of {true[0].size:,} differ" for count in off.tolist()]
        films.append(_Film(name, _coloured(values, true), differ))
    return films


def _show(axis: Axes, image: Floats) -> Any:
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(True)
    return axis.imshow(image, interpolation="nearest")


def _coloured(values: Floats, true: Floats) -> Floats:
    """[..., 3]: ink where 1, paper where 0; wrong cells orange, paler if they should be 1."""
    shade = np.clip(values, 0, 1)[..., None]
    image = np.array(to_rgb(PAPER)) * (1 - shade) + np.array(to_rgb(INK)) * shade
    image[(values >= 0.5) & (true < 0.5)] = to_rgb(COLOURS[1])
    image[(values < 0.5) & (true >= 0.5)] = to_rgb(_MISSING)
    return image
