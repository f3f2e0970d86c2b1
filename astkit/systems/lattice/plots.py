"""Figures of a lattice: paths of flows, times, learning curves."""

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
