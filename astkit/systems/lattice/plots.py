"""Figures of a lattice: a sample and its flows, learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Polygon
from torch import Tensor

from astkit.systems.lattice.model import EnergyFlowLattice, LatticeOutput, Rollout
from astkit.widgets.style import SOFT, Picture, picture, styled

APART = 2.0  # of planes in a drawing, in cells
_FLOW = ["slot", "born"]  # a slot that is free again holds another flow
_PLACE = ["x", "y", "z"]


@torch.no_grad()
def flow_table(model: EnergyFlowLattice, x: Tensor) -> tuple[LatticeOutput, pd.DataFrame]:
    """Run ``x [batch, dim]`` without gradients; returns the output, and a row per step and flow.

    Columns: ``step`` from 0 on, ``sample``, ``slot`` within the sample, ``x``, ``y``, ``z`` in
    lattice units, ``energy``, ``age``, the steps that the flow has taken, and ``born``, the step
    that it set out in; slots are used again. Its last row is where a flow landed.
    """
    rollout = Rollout(model, model.mapper(x))
    seen = [(0, rollout.flows)]
    while len(rollout.flows.slot):
        rollout.step()
        seen += [(rollout.number, each) for each in (rollout.flows, *rollout.landings[-2:])]
    tables = []
    for step, flows in seen:
        slot, place, age, _ = (part.cpu().numpy() for part in flows)
        sample, slot = np.divmod(slot, model.config.flows_per_sample)
        table = pd.DataFrame(place, columns=[*_PLACE, "energy"])
        tables.append(table.assign(step=step, sample=sample, slot=slot, age=age, born=step - age))
    return rollout.output(), pd.concat(tables, ignore_index=True)


@styled
def drawing(flows: pd.DataFrame, depth: int) -> Picture:
    """One sample in a lattice: its first surface, its flows on their way, and what has arrived.

    The surfaces are maps of energy, all of one scale; cells in which nothing has arrived are
    hatched. Between them planes are seen from the side, with the ways of flows in the colours of
    their energies.

    Args:
        flows: rows of one sample, from `flow_table`.
        depth: planes of the lattice.
    """
    first, now = flows[flows["step"] == 0], flows.sort_values("step").groupby(_FLOW).last()
    arrived, largest = now[now["z"] >= depth - 1], float(flows["energy"].abs().max())
    look: dict[str, Any] = {"cmap": "coolwarm", "norm": Normalize(-largest, largest)}
    sides = [1 + int(first[axis].max()) for axis in ("x", "y")]
    figure = picture(3, height=2.6)
    grid: Any = figure.axes[0].get_gridspec()
    grid.set_width_ratios([1, 2.6, 1])
    for axis, cells in zip(figure.axes[::2], (first, arrived), strict=True):
        axis.patch.set(hatch="////", edgecolor=SOFT)
        dots = axis.imshow(_surface(cells, sides), origin="lower", **look)
        axis.set(xlabel="x (cells)", xticks=[0, sides[0] - 1], yticks=[0, sides[1] - 1])
        axis.grid(visible=False)
    surface, way, answer = figure.axes
    for plane in range(depth):
        corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * (np.array(sides) - 1)
        way.add_patch(Polygon(_seen(np.c_[corners, np.full(4, plane)]), fc="none", ec=SOFT, lw=0.8))
    ordered = flows.sort_values([*_FLOW, "step"])
    before = ordered.groupby(_FLOW).shift()[_PLACE].dropna()
    after = ordered.loc[before.index]  # a step of a flow, in the colour of its energy then
    lines = _seen(np.stack([before, after[_PLACE]], axis=1))
    energies = after["energy"].to_numpy()
    way.add_collection(LineCollection(list(lines), array=energies, lw=1.1, **look))
    across, up = _seen(now[_PLACE].to_numpy()).T
    way.scatter(across, up, c=now["energy"], s=9, zorder=3, **look)
    way.set_axis_off()
    wide, high = _seen(flows[_PLACE].to_numpy()).T
    way.set(
        xlim=(min(-0.5, wide.min()), wide.max() + 0.5), ylim=(high.min() - 0.5, high.max() + 0.5)
    )
    surface.set(title="1. first surface", ylabel="y (cells)")
    way.set_title(f"2. flows through {depth} planes")
    answer.set_title(f"3. arrived: {len(arrived)} of {len(now)}")
    figure.colorbar(dots, ax=answer, label="energy", shrink=0.8)
    return figure


def _surface(cells: pd.DataFrame, sides: Sequence[int]) -> np.ndarray:
    """Sum of the energies over each cell, ``[y, x]``; NaN where there is none."""
    x, y = (cells[name].round().clip(0, side - 1) for name, side in zip("xy", sides, strict=True))
    sums = cells["energy"].groupby([y, x]).sum().unstack()
    return sums.reindex(index=range(sides[1]), columns=range(sides[0])).to_numpy(float)


def _seen(places: np.ndarray) -> np.ndarray:
    """Where points ``[..., (x, y, z)]`` of a lattice are drawn, with the planes upright."""
    x, y, z = np.moveaxis(np.asarray(places, float), -1, 0)
    return np.stack([z * APART + 0.35 * x, y + 0.35 * x], axis=-1)
