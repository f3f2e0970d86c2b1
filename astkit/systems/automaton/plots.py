"""Figures of a logic automaton: losses, numbers of gates, rollouts side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import ArrayLike, NDArray

from astkit.widgets.style import (
    COLOURS,
    INK,
    PAPER,
    SOFT,
    WIDTH,
    Picture,
    animation,
    line,
    picture,
    styled,
)

Floats = NDArray[np.float64]

WORDS = (
    *("never", "a and b", "a and not b", "a", "b and not a", "b", "either a or b", "a or b"),
    *("neither a nor b", "a equals b", "not b", "a or not b", "not a", "b or not a"),
    *("not both", "always"),
)
"""The sixteen gates of a and b by index."""

WIRE = 3
"""The gate a."""

_MISSING = "#E8A3A5"  # of cells that should be 1; a paler COLOURS[0]


@styled
def soft_and_hard(history: pd.DataFrame) -> Picture:
    """Soft loss and wrong cells of the hard automaton by training step, a line per seed.

    ``history``: a row per seed and pass with ``seed``, ``step``, ``val_loss`` and ``val_wrong``.
    """
    figure = picture(2)
    losses, wrong = figure.axes
    for seed, run in history.groupby("seed"):
        look = {**line(f"seed {seed}", markers=False), "lw": 1.2, "label": f"seed {seed}"}
        losses.plot(run["step"], run["val_loss"], **look)
        wrong.plot(run["step"], run["val_wrong"], **look)
    losses.set(title="soft automaton: loss", xlabel="training step", ylabel="loss per sample")
    losses.set_yscale("log")
    wrong.set_yscale("symlog", linthresh=1)
    most = max(1, int(history["val_wrong"].max()))
    wrong.set_yticks([0, *(10**power for power in range(len(str(most))))])
    wrong.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    wrong.set_ylim(-0.3, 2 * most)
    wrong.axhline(1, color=SOFT, lw=1.0, ls=":")  # below, the axis is linear
    wrong.set(xlabel="training step", ylabel="cells wrong", title="hard automaton: cells wrong")
    return figure


@styled
def gate_histogram(counts: ArrayLike) -> Picture:
    """Numbers of the gates other than plain wires "a", with which a training starts.

    ``counts``: the number of gates of each op, [16].
    """
    numbers = np.asarray(counts)
    shown = sorted((op for op in range(len(WORDS)) if op != WIRE), key=lambda op: numbers[op])
    figure = picture(height=3.8)
    axis = figure.axes[0]
    bars = axis.barh([WORDS[op] for op in shown], numbers[shown], color=COLOURS[2])
    axis.bar_label(bars, [f"{count:,}" for count in numbers[shown]], padding=3)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("gates")
    return figure


@styled
def rollout_frames(
    trajectories: Mapping[str, ArrayLike],
    at: Sequence[int],
    *,
    truth: ArrayLike | None = None,
    outline: ArrayLike | None = None,
) -> Picture:
    """A row of states: of each rollout, step by step.

    Cells that differ from the truth, rounded, are coloured and counted.

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
    axes = iter(figure.axes)
    for step in at:
        for name, values in states.items():
            axis = next(axes)
            wrong = _show(axis, values[step], true[step])
            if outline is not None:
                axis.contour(np.asarray(outline, float), [0.5], colors=COLOURS[1], linewidths=2)
            title = f"step {step}" if single else name
            if values is not true:
                title += f": {wrong:,} of {true[step].size:,} differ"
            elif not single:
                axis.set_ylabel(f"step {step}")
            axis.set_title(title, size=9)
    wide = int(14 * figure.get_figwidth())  # characters
    figure.suptitle(fill("red: wrong, should be 0; pale red: wrong, should be 1", wide), size=9)
    return figure


def film(trajectories: Mapping[str, ArrayLike], fps: int = 8, **options: Any) -> bytes:
    """The rollouts side by side as an animated PNG of ``fps`` frames per second.

    For ``trajectories`` and ``options`` see `rollout_frames`.
    """
    steps = len(np.asarray(next(iter(trajectories.values()))))
    frames = (rollout_frames(trajectories, [step], **options) for step in range(steps))
    return animation(frames, fps)


def _show(axis: Axes, values: Floats, true: Floats) -> int:
    """Ink where 1, paper where 0; wrong cells, which it counts, red, pale if they should be 1."""
    shade = np.clip(values, 0, 1)[..., None]
    image = np.array(to_rgb(PAPER)) * (1 - shade) + np.array(to_rgb(INK)) * shade
    extra, missing = (values >= 0.5) & (true < 0.5), (values < 0.5) & (true >= 0.5)
    image[extra], image[missing] = to_rgb(COLOURS[0]), to_rgb(_MISSING)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(True)
    axis.imshow(image, interpolation="nearest")
    return int(extra.sum() + missing.sum())
