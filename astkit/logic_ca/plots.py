"""Figures of a logic automaton: circuit, losses, shares of gates; see also `films`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter
from numpy.typing import ArrayLike

from astkit.logic_ca.circuit import PASSIVE, PATCH, Circuit
from astkit.logic_ca.films import Floats
from astkit.logic_ca.films import rollout_frames as rollout_frames
from astkit.logic_ca.films import save_rollouts as save_rollouts
from astkit.logic_ca.gates import CENTRE
from astkit.widgets.style import COLOURS, HATCHES, INK, PAPER, SOFT, Picture, line, picture, styled

OPS = ("0", "∧", "a∧¬b", "a", "¬a∧b", "b", "⊕", "∨", "⊽", "≡", "¬b", "a∨¬b", "¬a", "¬a∨b", "⊼", "1")
"""The sixteen gates of a and b by index."""

_FAMILIES: dict[str, tuple[tuple[int, ...], str, str, str]] = {  # ops, symbol, colour, marker
    "and": ((1, 2, 4, 14), "∧", COLOURS[0], "o"),
    "or": ((7, 11, 13, 8), "∨", COLOURS[1], "s"),
    "xor": ((6, 9), "⊕", COLOURS[3], "D"),
    "not": ((10, 12), "¬", COLOURS[5], "p"),
    "wire or constant": (PASSIVE, "", SOFT, "X"),
}
_NEGATED_A, _NEGATED_B, _NEGATED_OUT = (4, 13), (2, 11), (8, 9, 14)
_IGNORES_A, _IGNORES_B = (0, 5, 10, 15), (0, 3, 12, 15)
_READ = "#b9c6d8"
_LABELLED = 60
"""Maximum number of gates with symbols; more would be too small to read."""


@styled
def circuit_diagram(circuit: Circuit) -> Picture:
    """The circuit of one cell from left to right: neighbourhood, gates by depth, new channels.

    Inputs in use are filled; the cell itself has a thick border. A ring at the end of a wire
    negates that input, a ring after a gate its output. Up to 60 gates are labelled; more are
    distinguished by colour and shape.
    """
    layout = _laid_out(circuit)
    figure = picture(width=layout.inches[0], height=layout.inches[1])
    axis, size = figure.axes[0], layout.size
    axis.set_axis_off()
    _draw_wires(axis, circuit, layout)
    for name, (ops, symbol, colour, marker) in _FAMILIES.items():
        members = np.flatnonzero(np.isin(circuit.ops, ops))
        if len(members):
            at = layout.wires[circuit.inputs + members]
            label = f"{symbol} {name}, {len(members)}".strip()
            axis.scatter(
                at[:, 0], at[:, 1], s=size**2, c=colour, marker=marker, label=label, lw=0, zorder=3
            )
            for x, y in at if circuit.gates <= _LABELLED else ():
                style: dict[str, Any] = {"color": PAPER, "size": 0.62 * size, "weight": "bold"}
                axis.text(x, y, symbol, ha="center", va="center_baseline", zorder=4, **style)
    _draw_ends(axis, circuit, layout)
    axis.set_title(
        f"circuit of one cell: {circuit.gates} gates, depth {int(circuit.depths().max())}"
    )
    if circuit.gates:
        legend = axis.get_legend_handles_labels()
        figure.legend(*legend, loc="outside lower center", ncols=5, markerscale=7 / size)
    figure.draw_without_rendering()  # the layout determines the length of columns
    _draw_rings(axis, circuit, layout, figure.dpi)
    return figure


class _Layout(NamedTuple):
    wires: Floats  # where each wire begins: [inputs + gates, 2]
    outputs: Floats  # [channels, 2]
    cell: Floats  # of a patch: width and height
    inches: tuple[float, float]  # of the picture
    size: float  # of a gate, in points


def _laid_out(circuit: Circuit) -> _Layout:
    """Gates in columns by depth; patches and outputs stacked vertically, with square cells.

    A column's gates are sorted by the mean height of their inputs (the barycentre of Sugiyama,
    Tagawa and Toda, 1981), so that fewer wires cross.
    """
    depths, inputs, channels = circuit.depths(), circuit.inputs, circuit.channels
    reach = int(depths.max())
    most = max(np.bincount(depths[inputs:], minlength=1))
    tall = max(4.4 * channels, 6.0, min(float(most), 40.0))
    width, height = np.clip(0.9 * (reach + 3), 6.5, 16), np.clip(0.42 * tall, 3.6, 11)
    unit = np.array([width / (reach + 3.2), 0.85 * height / tall])  # inches, across and down
    cell = min(0.45 * unit[0], 0.29 * tall * unit[1] / channels) / unit
    wires, number = np.zeros((len(depths), 2)), np.arange(inputs)
    rows = -tall * (np.arange(channels) + 0.5) / channels
    wires[:inputs, 0] = -0.8 + 1.06 * cell[0] * (number % 3 - 1)
    wires[:inputs, 1] = rows[number // 9] - 1.06 * cell[1] * (number % 9 // 3 - 1)
    reads = np.stack([circuit.a, circuit.b])
    for depth in range(1, reach + 1):
        column = np.flatnonzero(depths[inputs:] == depth)
        order = column[np.argsort(-wires[reads[:, column], 1].mean(0), kind="stable")]
        wires[inputs + order, 0] = depth
        wires[inputs + order, 1] = -tall * (np.arange(len(order)) + 0.5) / len(order)
    outputs = np.stack([np.full(channels, reach + 1.0), rows], 1)
    size = 72 * 0.6 * min(unit[0], unit[1] * tall / max(most, 1))
    return _Layout(wires, outputs, cell, (width, height), float(np.clip(size, 3.0, 15.0)))


def _draw_wires(axis: Axes, circuit: Circuit, layout: _Layout) -> None:
    gates, driven = layout.wires[circuit.inputs :], circuit.outputs >= 0
    lines = [np.stack([layout.wires[circuit.outputs[driven]], layout.outputs[driven]], 1)]
    for wires, ignored in ((circuit.a, _IGNORES_A), (circuit.b, _IGNORES_B)):
        lines.append(np.stack([layout.wires[wires], gates], 1)[~np.isin(circuit.ops, ignored)])
    segments = list(np.concatenate(lines))
    alpha = float(np.clip(60 / max(len(segments), 1), 0.35, 0.9))
    axis.add_collection(LineCollection(segments, colors=SOFT, lw=0.7, alpha=alpha, zorder=1))


def _draw_rings(axis: Axes, circuit: Circuit, layout: _Layout, dpi: float) -> None:
    """Rings of negations, at a fixed distance on the page from the middle of their gates."""
    points = np.diff(axis.transData.transform([[0, 0], [1, 1]]), axis=0)[0]  # of a unit
    points *= 72 / dpi
    gates, ops = layout.wires[circuit.inputs :] * points, circuit.ops
    outwards = np.isin(ops, _NEGATED_OUT)
    places, ways = [gates[outwards]], [np.array([[1.0, 0.0]]).repeat(outwards.sum(), 0)]
    for wires, negated in ((circuit.a, _NEGATED_A), (circuit.b, _NEGATED_B)):
        turned = np.isin(ops, negated)
        places.append(gates[turned])
        ways.append((layout.wires[wires] * points - gates)[turned])
    way = np.concatenate(ways)
    way *= 0.72 * layout.size / np.linalg.norm(way, axis=1, keepdims=True)
    x, y = ((np.concatenate(places) + way) / points).T
    axis.autoscale(False)
    look: dict[str, Any] = {"facecolor": PAPER, "edgecolor": INK, "linewidth": 0.8}
    axis.scatter(x, y, s=(0.35 * layout.size) ** 2, zorder=2, **look)


def _draw_ends(axis: Axes, circuit: Circuit, layout: _Layout) -> None:
    """The neighbourhoods and the new channels."""
    read = {*circuit.a.tolist(), *circuit.b.tolist(), *circuit.outputs.tolist()}
    width, height = layout.cell
    for wire, (x, y) in enumerate(layout.wires[: circuit.inputs]):
        own = wire % PATCH == CENTRE
        look: dict[str, Any] = {"facecolor": _READ if wire in read else PAPER, "edgecolor": INK}
        look |= {"linewidth": 1.8 if own else 0.6, "zorder": 0.6 if own else 0.5}
        axis.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, **look))
        if own:
            axis.text(x - 1.8 * width, y, f"{wire // PATCH}", ha="right", va="center", size=9)
    look = {"c": PAPER, "edgecolors": INK, "marker": "s", "s": max(layout.size, 5) ** 2}
    axis.scatter(layout.outputs[:, 0], layout.outputs[:, 1], zorder=3, **look)
    for channel, wire in enumerate(circuit.outputs.tolist()):
        x, y = layout.outputs[channel]
        text = f"{channel}" if wire >= 0 else f"{channel} = {~wire}"
        axis.text(x + 0.3, y, text, va="center", size=9)
    axis.margins(x=0.04)
    axis.autoscale_view()


@styled
def soft_and_hard(history: pd.DataFrame) -> Picture:
    """Losses of the soft and the hard automaton during training, and the hard accuracy.

    ``history``: a row per pass with ``step``, ``val_loss``, ``val_hard_loss`` and ``val_accuracy``.
    Raises ``ValueError`` for a history without rows.
    """
    if history.empty:
        raise ValueError("history has no rows: train for one pass or more")
    figure = picture(2, width=4.6, height=3.2)
    losses, right = figure.axes
    for name, column in (("soft", "val_loss"), ("hard", "val_hard_loss")):
        losses.plot(history["step"], history[column], label=name, **line(name, markers=False))
    losses.set_yscale("symlog", linthresh=1e-3)  # a hard loss can be 0
    losses.set(xlabel="update", ylabel="loss a sample", title="soft and hard loss", ylim=(0, None))
    losses.legend()
    right.plot(history["step"], history["val_accuracy"], **line("hard", markers=False))
    right.set(xlabel="update", title="hard cells that are right", ylim=(None, 1.005))
    right.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    return figure


@styled
def gate_histogram(counts: Mapping[str, ArrayLike]) -> Picture:
    """Shares of the sixteen gates on a logarithmic axis, with counts above the bars.

    ``counts``: for each name ("before", "after") the number of gates of each op, [16]. Raises
    ``ValueError`` for other shapes, or a name without any gates.
    """
    tables = {name: np.asarray(table, np.float64) for name, table in counts.items()}
    if not tables or any(t.shape != (len(OPS),) or not t.sum() > 0 for t in tables.values()):
        raise ValueError(
            f"counts is {dict(counts)}: give, by name, the number of gates of each of the"
            f" {len(OPS)} ops"
        )
    figure = picture(width=9.6, height=3.6)
    axis, wide = figure.axes[0], 0.84 / len(tables)
    for place, (name, table) in enumerate(tables.items()):
        at = np.arange(len(OPS)) + wide * (place - (len(tables) - 1) / 2)
        look: dict[str, Any] = {"color": COLOURS[place % 7], "hatch": HATCHES[place % 7]}
        label = f"{name}, {int(table.sum()):,} gates"
        bars = axis.bar(at, table / table.sum(), wide, label=label, edgecolor=PAPER, **look)
        shown = [f"{int(count)}" if count else "" for count in table]
        axis.bar_label(bars, shown, padding=2, size=7, rotation=90)
    axis.set_yscale("log")
    axis.set_ylim(0.5 / max(table.sum() for table in tables.values()), 5)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    axis.set_xticks(range(len(OPS)), OPS, size=8)
    axis.grid(visible=False, axis="x")
    axis.set(title="share of each gate", xlabel="gate of a and b")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
