"""Figures of a lattice: a sample and its flows, learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.collections import LineCollection
from torch import Tensor

from astkit.systems.lattice.model import EnergyFlowLattice, Flows, LatticeOutput, Rollout
from astkit.widgets.style import INK, SOFT, Picture, line, picture, styled

_FLOW = ["slot", "born"]  # a slot that is free again holds another flow


@torch.no_grad()
def flow_table(model: EnergyFlowLattice, x: Tensor) -> tuple[LatticeOutput, pd.DataFrame]:
    """Run ``x [batch, dim]`` without gradients; returns the output, and a row per step and flow.

    Columns: ``step`` from 0 on, ``sample``, ``slot`` within the sample, ``x``, ``y``, ``z`` in
    lattice units, ``energy``, ``age``, the steps that the flow has taken, and ``born``, the step
    that it set out in; slots are used again. Its last row is where a flow landed.
    """
    each, rollout = model.config.flows_per_sample, Rollout(model, model.mapper(x))
    tables: list[pd.DataFrame] = []

    def keep(flows: Flows) -> None:
        slot, place, age, _ = (part.cpu().numpy() for part in flows)
        table = pd.DataFrame(place, columns=["x", "y", "z", "energy"])
        step, sample = rollout.number, slot // each
        table = table.assign(step=step, sample=sample, slot=slot % each, age=age)
        tables.append(table.assign(born=step - table["age"]))

    keep(rollout.flows)
    while len(rollout.flows.slot):
        rollout.step()
        for flows in (rollout.flows, *rollout.landings[-2:]):
            keep(flows)
    return rollout.output(), pd.concat(tables, ignore_index=True)


@styled
def drawing(flows: pd.DataFrame, depth: int, step: int | None = None) -> Picture:
    """One sample in a lattice: its first surface, its flows on their way, and what has arrived.

    Args:
        flows: rows of one sample, from `flow_table`.
        depth: planes of the lattice.
        step: the step to show; the last one by default.
    """
    shown = flows if step is None else flows[flows["step"] <= step]
    first, now = flows[flows["step"] == 0], shown.sort_values("step").groupby(_FLOW).last()
    arrived, largest = now[now["z"] >= depth - 1], float(flows["energy"].abs().max())
    look: dict[str, Any] = {"cmap": "PuOr", "vmin": -largest, "vmax": largest, "edgecolor": SOFT}
    figure = picture(3, height=3.6)
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


def _moves(flows: pd.DataFrame) -> np.ndarray:
    """Plane and energy before and after each step of each flow, ``[n, 2, 2]``."""
    ordered = flows.sort_values([*_FLOW, "step"])
    before = ordered.groupby(_FLOW).shift()
    same = before["step"].notna()
    axes = ["z", "energy"]
    return np.stack([before.loc[same, axes], ordered.loc[same, axes]], axis=1)


@styled
def learning(curves: pd.DataFrame, marks: Mapping[str, float], metric: str, label: str) -> Picture:
    """A metric by training step, one line per model with the range over seeds.

    ``curves``: ``model``, ``seed``, ``step`` and ``metric``; ``label``: label of the metric's axis;
    ``marks``: values of the baselines, plotted as lines.
    """
    figure = picture(height=3.8)
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
