"""Figures of a lattice: one drawing, also with a slider, paths of flows, times, learning curves."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import torch
from IPython.display import HTML
from matplotlib.collections import LineCollection
from torch import Tensor

from astkit.systems.lattice.model import EnergyFlowLattice, Flows, LatticeOutput, Rollout
from astkit.widgets.style import INK, SOFT, Picture, line, picture, styled

_SOURCE = "data:image/png;base64,"


@torch.no_grad()
def flow_table(model: EnergyFlowLattice, x: Tensor) -> tuple[LatticeOutput, pd.DataFrame]:
    """Run ``x [batch, dim]`` without gradients; returns the output, and a row per step and flow.

    Columns: ``step`` from 0 on, ``sample``, ``slot`` within the sample, ``x``, ``y``, ``z`` in
    lattice units, ``energy``, and ``age``, the steps that the flow has taken. Its last row is
    where a flow landed.
    """
    each, rollout = model.config.flows_per_sample, Rollout(model, model.mapper(x))
    tables: list[pd.DataFrame] = []

    def keep(flows: Flows) -> None:
        slot, place, age, _ = (part.cpu().numpy() for part in flows)
        table = pd.DataFrame(place, columns=["x", "y", "z", "energy"])
        step, sample = rollout.number, slot // each
        tables.append(table.assign(step=step, sample=sample, slot=slot % each, age=age))

    keep(rollout.flows)
    while len(rollout.flows.slot):
        rollout.step()
        for flows in (rollout.flows, *rollout.landings[-2:]):
            keep(flows)
    return rollout.output(), pd.concat(tables, ignore_index=True)


@styled
def flow_paths(tables: Mapping[str, pd.DataFrame], depth: int) -> Picture:
    """Energy of each flow by depth until it lands, a panel per table with the same limits.

    Args:
        tables: rows of one sample, from `flow_table`, by title.
        depth: planes of the lattice; flows land on the last one, which is marked.
    """
    rows = pd.concat(tables.values())
    largest = max(float(rows["energy"].abs().max()), 1e-12)
    figure = picture(len(tables), width=4.8, height=3.6)
    for axis, (title, flows) in zip(figure.axes, tables.items(), strict=True):
        axis.add_collection(LineCollection(list(_moves(flows)), colors=SOFT, lw=0.7, alpha=0.6))
        last = flows.sort_values("step").groupby("slot").last()
        for label, ends in (("start", flows[flows["step"] == 0]), ("end", last)):
            style = {**line(label), "linestyle": "none", "ms": 4}
            axis.plot(ends["z"], ends["energy"], label=label, **style)
        axis.axvline(depth - 1, color=INK, ls=":", lw=1.2, label="last plane")
        axis.set(xlim=(-0.2, rows["z"].max() + 0.2), ylim=(-1.1 * largest, 1.1 * largest))
        axis.set(xlabel="plane (z)", ylabel="energy", title=title)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    return figure


@styled
def drawing(flows: pd.DataFrame, depth: int, step: int | None = None) -> Picture:
    """One sample in a lattice: its first surface, its flows on their way, and what has arrived.

    Args:
        flows: rows of one sample, from `flow_table`.
        depth: planes of the lattice.
        step: the step to show; the last one by default.
    """
    shown = flows if step is None else flows[flows["step"] <= step]
    first, now = flows[flows["step"] == 0], shown.sort_values("step").groupby("slot").last()
    arrived, largest = now[now["z"] >= depth - 1], float(flows["energy"].abs().max())
    look: dict[str, Any] = {"cmap": "PuOr", "vmin": -largest, "vmax": largest, "edgecolor": SOFT}
    figure = picture(3, width=4.0, height=3.6)
    surface, way, answer = figure.axes
    way.add_collection(LineCollection(list(_moves(shown)), colors=SOFT, lw=0.7, alpha=0.6))
    way.scatter(now["z"], now["energy"], c=now["energy"], s=22, linewidth=0.5, **look)
    way.axvline(depth - 1, color=INK, ls=":", lw=1.2)
    way.set(xlim=(-0.3, flows["z"].max() + 0.3), ylim=(-1.1 * largest, 1.1 * largest))
    way.set(xlabel="plane (z), the last one dotted", ylabel="energy", title="2. flows move")
    for axis, cells in ((surface, first), (answer, arrived)):
        dots = axis.scatter(
            cells["x"], cells["y"], c=cells["energy"], marker="s", s=90, linewidth=0.5, **look
        )
        axis.set(xlim=(-0.7, first["x"].max() + 0.7), ylim=(-0.7, first["y"].max() + 0.7))
        axis.set(xlabel="x (cells)", ylabel="y (cells)", aspect="equal")
    surface.set_title("1. energy on the first surface")
    answer.set_title(f"3. on the last plane: {len(arrived)} of {len(now)} flows")
    figure.colorbar(dots, ax=answer, label="energy", shrink=0.8)
    return figure


def slider(pictures: Sequence[Picture], name: str = "step") -> HTML:
    """Pictures behind a slider that needs no kernel; where scripts do not run, the last one."""
    images = [base64.b64encode(each.png(dpi=66)).decode() for each in pictures]
    show = f"this.closest('div').querySelector('img').src = {_SOURCE!r} + {images}[this.value]"
    last = len(images) - 1
    return HTML(
        f'<div><img src="{_SOURCE}{images[-1]}"><br><label>{escape(name)} <input type="range"'
        f' min="0" max="{last}" value="{last}" oninput="{escape(show)}"></label></div>'
    )


def _moves(flows: pd.DataFrame) -> np.ndarray:
    """Plane and energy before and after each step of each flow, ``[n, 2, 2]``."""
    ordered = flows.sort_values(["slot", "step"])
    before = ordered.groupby("slot").shift()
    same = ordered["age"] - before["age"] == 1  # else a new flow in the same slot
    same &= ordered["step"] - before["step"] == 1
    axes = ["z", "energy"]
    return np.stack([before.loc[same, axes], ordered.loc[same, axes]], axis=1)


@styled
def times(rows: pd.DataFrame) -> Picture:
    """Milliseconds per step and flow, one line per ``way``, both axes logarithmic.

    ``rows``: ``way``, ``flows`` and ``seconds`` per step.
    """
    figure = picture(width=6.4, height=3.8)
    (axis,) = figure.axes
    for way, group in rows.sort_values("flows").groupby("way", sort=False):
        a_flow = 1e3 * group["seconds"] / group["flows"]
        axis.plot(group["flows"], a_flow, label=str(way), **line(str(way)))
    axis.set(xscale="log", yscale="log", xlabel="flows in the batch", ylabel="ms per flow and step")
    axis.set_title("time of a step, forward and backward, divided by its flows")
    figure.legend(loc="outside right center")
    return figure


@styled
def learning(curves: pd.DataFrame, marks: Mapping[str, float], metric: str, label: str) -> Picture:
    """A metric by training step, one line per model with the range over seeds.

    ``curves``: ``model``, ``seed``, ``step`` and ``metric``; ``label``: label of the metric's axis;
    ``marks``: values of the baselines, plotted as lines.
    """
    figure = picture(width=6.4, height=3.8)
    (axis,) = figure.axes
    for model, group in curves.groupby("model", sort=False):
        seeds, style = group.groupby("step")[metric], line(str(model))
        axis.plot(seeds.mean(), label=str(model), **style)
        band = (seeds.mean().index, seeds.min(), seeds.max())
        axis.fill_between(*band, color=style["color"], alpha=0.15, lw=0)
    for name, value in marks.items():
        axis.axhline(value, color=SOFT, lw=1.0, ls=":")
        at: Any = {"xy": (1.01, value), "xycoords": ("axes fraction", "data"), "va": "center"}
        axis.annotate(name, **at, fontsize=8, color=SOFT)
    axis.set(xlabel="training step", ylabel=label, ylim=(0, None))
    count = curves["seed"].nunique()
    over = f"mean of {count} seeds and their range" if count > 1 else "one seed"
    axis.set_title(f"{metric.removeprefix('val_').upper()} on validation data: {over}")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
