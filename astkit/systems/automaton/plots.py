"""Figures of a logic automaton: circuit, losses, shares of gates, rollouts side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.ticker import FuncFormatter
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from astkit import files
from astkit.systems.automaton.automaton import CENTRE
from astkit.systems.automaton.circuit import PASSIVE, PATCH, Circuit
from astkit.widgets.style import COLOURS, HATCHES, INK, PAPER, SOFT, Picture, line, picture, styled

Floats = NDArray[np.float64]

OPS = ("0", "∧", "a∧¬b", "a", "¬a∧b", "b", "⊕", "∨", "⊽", "≡", "¬b", "a∨¬b", "¬a", "¬a∨b", "⊼", "1")
"""The sixteen gates of a and b by index."""

_SYMBOLS = "0∧∧a∧b⊕∨⊽≡¬∨¬∨⊼1"  # negated inputs are dashed wires
_FAMILIES = {  # ops, colour, marker
    "and": ((1, 2, 4, 14), COLOURS[0], "o"),
    "or": ((7, 8, 11, 13), COLOURS[1], "s"),
    "xor": ((6, 9), COLOURS[3], "D"),
    "not": ((10, 12), COLOURS[5], "p"),
    "wire or constant": (PASSIVE, SOFT, "X"),
}
_NEGATES_A, _NEGATES_B = (4, 13), (2, 11)
_READ = "#b9c6d8"
_MISSING = "#F4B183"  # of cells that should be 1
_CELL = 0.33  # inches
_LABELLED = 60
"""Maximum number of gates with symbols; more would be too small to read."""


@styled
def circuit_diagram(circuit: Circuit) -> Picture:
    """The circuit of one cell from left to right: neighbourhood, gates by depth, new channels.

    Inputs in use are filled; the cell itself has a thick border. A dashed wire is negated by the
    gate that reads it. Up to 60 gates are labelled; more are distinguished by colour and shape.
    """
    begins, ends, size = _laid_out(circuit)
    gates, right, tall = begins[circuit.inputs :], ends[0, 0], ends[0, 1] + ends[-1, 1]
    figure = picture(width=max(right + 2, 5), height=0.9 - tall)
    axis = figure.axes[0]
    axis.set_axis_off()
    axis.set(aspect="equal", xlim=(-0.9, right + 0.7), ylim=(tall, 0))
    _draw_wires(axis, circuit, begins, ends)
    for name, (ops, colour, marker) in _FAMILIES.items():
        x, y = gates[np.isin(circuit.ops, ops)].T
        if len(x):
            style: dict[str, Any] = {"c": colour, "marker": marker, "lw": 0, "zorder": 3}
            axis.scatter(x, y, s=size**2, label=f"{name}, {len(x)}", **style)
    for op, (x, y) in zip(circuit.ops, gates, strict=True):
        if circuit.gates <= _LABELLED:
            style = {"color": PAPER, "size": 0.62 * size, "weight": "bold", "zorder": 4}
            axis.text(x, y, _SYMBOLS[op], ha="center", va="center_baseline", **style)
    _draw_cells(axis, circuit, begins)
    x, y = ends.T
    axis.scatter(x, y, s=max(size, 5) ** 2, c=PAPER, edgecolors=INK, marker="s", zorder=3)
    for channel, wire in enumerate(circuit.outputs.tolist()):
        text = f"{channel}" if wire >= 0 else f"{channel} = {~wire}"
        axis.text(right + 0.2, y[channel], text, va="center", size=9)
        axis.text(-0.6, y[channel], f"{channel}", ha="right", va="center", size=9)
    axis.set_title(f"circuit of one cell: {circuit.gates} gates, depth {circuit.depths().max()}")
    if circuit.gates:
        legend = axis.get_legend_handles_labels()
        figure.legend(*legend, loc="outside lower center", ncols=6, markerscale=7 / size)
    return figure


def _laid_out(circuit: Circuit) -> tuple[Floats, Floats, float]:
    """Where each wire begins, ``[inputs + gates, 2]``, and each output is, ``[channels, 2]``, in
    inches; and the size of a gate in points.

    Gates are in columns by depth, neighbourhoods and outputs stacked vertically. A column's gates
    are sorted by the mean height of their inputs (the barycentre of Sugiyama, Tagawa and Toda,
    1981), so that fewer wires cross.
    """
    depths, inputs, channels = circuit.depths(), circuit.inputs, circuit.channels
    reach, most = int(depths.max()), max(np.bincount(depths[inputs:], minlength=1))
    tall = max(1.15 * channels, min(0.4 * most, 9.5), 2.0)
    column = float(np.clip(14 / (reach + 3), 0.45, 0.95))
    begins, number = np.zeros((len(depths), 2)), np.arange(inputs)
    rows = -tall * (np.arange(channels) + 0.5) / channels
    begins[:inputs, 0] = 1.06 * _CELL * (number % 3 - 1)
    begins[:inputs, 1] = rows[number // 9] - 1.06 * _CELL * (number % 9 // 3 - 1)
    reads = np.stack([circuit.a, circuit.b])
    for depth in range(1, reach + 1):
        gates = np.flatnonzero(depths[inputs:] == depth)
        order = gates[np.argsort(-begins[reads[:, gates], 1].mean(0), kind="stable")]
        begins[inputs + order, 0] = 0.5 + depth * column
        begins[inputs + order, 1] = -tall * (np.arange(len(order)) + 0.5) / len(order)
    ends = np.stack([np.full(channels, 0.5 + (reach + 1) * column), rows], 1)
    size = float(np.clip(43 * min(column, tall / max(most, 1)), 3, 15))
    return begins, ends, size


def _draw_wires(axis: Axes, circuit: Circuit, begins: Floats, ends: Floats) -> None:
    gates, driven = begins[circuit.inputs :], circuit.outputs >= 0
    lines = {"-": [np.stack([begins[circuit.outputs[driven]], ends[driven]], 1)], "--": []}
    for wires, negates in ((circuit.a, _NEGATES_A), (circuit.b, _NEGATES_B)):
        segments, negated = np.stack([begins[wires], gates], 1), np.isin(circuit.ops, negates)
        lines["-"].append(segments[~negated])
        lines["--"].append(segments[negated])
    alpha = float(np.clip(60 / max(circuit.gates, 1), 0.35, 0.9))
    for style, parts in lines.items():
        segments = np.concatenate(parts)
        if len(segments):
            look: dict[str, Any] = {"colors": SOFT, "lw": 0.8, "alpha": alpha, "linestyles": style}
            look["label"] = "negated input" if style == "--" else None
            axis.add_collection(LineCollection(list(segments), **look))


def _draw_cells(axis: Axes, circuit: Circuit, begins: Floats) -> None:
    read = {*circuit.a.tolist(), *circuit.b.tolist(), *circuit.outputs.tolist()}
    for own in (False, True):  # the thick borders last, over the others
        wires = [wire for wire in range(circuit.inputs) if (wire % PATCH == CENTRE) == own]
        colours = [_READ if wire in read else PAPER for wire in wires]
        style: dict[str, Any] = {"c": colours, "edgecolors": INK, "lw": 1.8 if own else 0.6}
        x, y = begins[wires].T
        axis.scatter(x, y, s=(72 * _CELL) ** 2, marker="s", zorder=0.5, **style)


@styled
def soft_and_hard(history: pd.DataFrame) -> Picture:
    """Losses of the soft and the hard automaton during training, and the hard accuracy.

    ``history``: a row per pass with ``step``, ``val_loss``, ``val_hard_loss`` and ``val_accuracy``.
    """
    figure = picture(2, width=4.6, height=3.2)
    losses, right = figure.axes
    for name, column in (("soft", "val_loss"), ("hard", "val_hard_loss")):
        losses.plot(history["step"], history[column], label=name, **line(name, markers=False))
    losses.set_yscale("symlog", linthresh=1e-3)  # a hard loss can be 0
    losses.set(
        xlabel="update", ylabel="loss per sample", title="soft and hard loss", ylim=(0, None)
    )
    losses.legend()
    right.plot(history["step"], history["val_accuracy"], **line("hard", markers=False))
    right.set(xlabel="update", title="hard cells that are right", ylim=(None, 1.005))
    right.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    return figure


@styled
def gate_histogram(counts: Mapping[str, ArrayLike]) -> Picture:
    """Shares of the sixteen gates on a logarithmic axis, with counts above the bars.

    ``counts``: for each name ("before", "after") the number of gates of each op, [16], not all 0.
    """
    figure = picture(width=9.6, height=3.6)
    axis, wide, largest = figure.axes[0], 0.84 / len(counts), 0
    for place, (name, values) in enumerate(counts.items()):
        table = np.asarray(values)
        largest = max(largest, table.sum())
        at = np.arange(len(OPS)) + wide * (place - (len(counts) - 1) / 2)
        look: dict[str, Any] = {"color": COLOURS[place % 7], "hatch": HATCHES[place % 7]}
        label = f"{name}, {table.sum():,} gates"
        bars = axis.bar(at, table / table.sum(), wide, label=label, edgecolor=PAPER, **look)
        shown = [f"{count}" if count else "" for count in table]
        axis.bar_label(bars, shown, padding=2, size=7, rotation=90)
    axis.set_yscale("log")
    axis.set_ylim(0.5 / largest, 5)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    axis.set_xticks(range(len(OPS)), OPS, size=8)
    axis.grid(visible=False, axis="x")
    axis.set(title="share of each gate", xlabel="gate of a and b")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def rollout_frames(trajectories: Mapping[str, ArrayLike], at: Sequence[int]) -> Picture:
    """States of several rollouts: a column per rollout, a row per step.

    The first rollout is the reference; cells of the others that differ from it, rounded, are
    coloured and counted. ``trajectories``: for each name values in [0, 1], ``[T, H, W]``, all of
    one shape; ``at``: the steps to show.

    Raises ``ValueError`` for shapes that differ, or a step out of range.
    """
    states = {name: np.asarray(values, np.float64) for name, values in trajectories.items()}
    shapes = {values.shape for values in states.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 3:
        shown = ", ".join(f"{name} {list(values.shape)}" for name, values in states.items())
        raise ValueError(f"trajectories are {shown or 'none'}: give them all as one [T, H, W]")
    ((steps, rows, columns),) = shapes
    if not at or not all(0 <= step < steps for step in at):
        raise ValueError(f"at is {list(at)}: give steps from 0 to {steps - 1}")
    true = next(iter(states.values()))
    figure = picture(len(states), len(at), width=2.6, height=2.4 * rows / columns + 0.4)
    axes = iter(figure.axes)
    for step in at:
        for name, values in states.items():
            axis = next(axes)
            wrong = _show(axis, values[step], true[step])
            if values is true:
                axis.set_ylabel(f"step {step}")
            else:
                name = f"{name}: {wrong:,} of {true[step].size:,} differ"
            axis.set_title(name, size=9)
    return figure


def save_rollouts(
    path: str | os.PathLike[str], trajectories: Mapping[str, ArrayLike], fps: int = 10
) -> Path:
    """Write the rollouts side by side as an animated GIF, atomically; returns the path.

    ``trajectories``: see `rollout_frames`. Raises ``ValueError`` for a path that does not end in
    ``.gif``, shapes that differ, or less than 1 frame per second (``fps``).
    """
    if Path(path).suffix != ".gif":
        raise ValueError(f"path is {str(path)!r}: give a name that ends in .gif")
    if fps < 1:
        raise ValueError(f"fps is {fps}: give 1 frame per second or more")
    steps = max((len(np.asarray(values)) for values in trajectories.values()), default=1)
    frames = [
        Image.open(BytesIO(rollout_frames(trajectories, [step]).png(dpi=80)))
        for step in range(steps)
    ]
    options: dict[str, Any] = {"append_images": frames[1:], "duration": 1000 // fps, "loop": 0}
    frames[0].save(gif := BytesIO(), "gif", save_all=True, **options)
    return files.write_atomic(path, gif.getvalue())


def _show(axis: Axes, values: Floats, true: Floats) -> int:
    """Ink where 1, paper where 0; wrong cells, which are counted, orange, paler if they should be
    1."""
    shade = np.clip(values, 0, 1)[..., None]
    image = np.array(to_rgb(PAPER)) * (1 - shade) + np.array(to_rgb(INK)) * shade
    extra, missing = (values >= 0.5) & (true < 0.5), (values < 0.5) & (true >= 0.5)
    image[extra], image[missing] = to_rgb(COLOURS[1]), to_rgb(_MISSING)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(True)
    axis.imshow(image, interpolation="nearest")
    return int(extra.sum() + missing.sum())
