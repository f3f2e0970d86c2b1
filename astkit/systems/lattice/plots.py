"""Figures of a lattice: paths of flows, steps until samples stop, times, learning curves."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from torch import Tensor

from astkit.systems.lattice.model import EnergyFlowLattice, LatticeOutput, Rollout
from astkit.widgets.style import INK, SOFT, Picture, line, picture, styled

_SLIDE_DPI = 72  # a notebook contains many slides
_COLOURS = "cividis"  # colour-blind safe


@torch.no_grad()
def flow_table(model: EnergyFlowLattice, x: Tensor) -> tuple[LatticeOutput, pd.DataFrame]:
    """Run ``x [batch, dim]`` without gradients; returns the output, and a row per step and flow.

    Columns: ``step`` from 0 on, ``sample``, ``slot`` within the sample, ``x``, ``y``, ``z`` in
    lattice units, ``energy``, and ``age``, the steps that the flow has taken.
    """
    each, rollout = model.config.flows_per_sample, Rollout(model, model.mapper(x))
    tables: list[pd.DataFrame] = []
    while len(rollout.flows.slot):
        slot, place, age, _ = (part.cpu().numpy() for part in rollout.flows)
        table = pd.DataFrame(place, columns=["x", "y", "z", "energy"])
        step, sample = rollout.number, slot // each
        tables.append(table.assign(step=step, sample=sample, slot=slot % each, age=age))
        rollout.step()
    return rollout.output(), pd.concat(tables, ignore_index=True)


@styled
def flow_paths(flows: pd.DataFrame, depth: int, upto: int | None = None) -> Picture:
    """Flows of one sample: energy by depth, and positions on the surface.

    A flow that has arrived remains at its position before the last step.

    Args:
        flows: rows of one sample, from `flow_table`.
        depth: planes of the lattice.
        upto: last step to plot; all by default.
    """
    largest = max(float(flows["energy"].abs().max()), 1e-12)
    colour = ScalarMappable(Normalize(-largest, largest), _COLOURS)
    shown = flows if upto is None else flows[flows["step"] <= upto]
    figure = picture(2, width=4.8, height=3.6)
    along, front = figure.axes
    now = shown.sort_values("step").groupby("slot").last()
    inks = colour.to_rgba(now["energy"].to_numpy())
    along.add_collection(LineCollection(list(_moves(shown)), colors=SOFT, lw=0.7, alpha=0.6))
    along.scatter(now["z"], now["energy"], c=inks, s=14, edgecolors=INK, linewidths=0.4, zorder=2)
    along.axvline(depth - 1, color=INK, ls=":", lw=1.2)
    along.set(xlim=(-0.2, depth - 0.7), ylim=(-1.1 * largest, 1.1 * largest))
    along.set(xlabel="plane (z)", ylabel="energy", title="energy of each flow along the depth")
    front.scatter(now["x"], now["y"], c=inks, s=90, marker="s", edgecolors="none")
    front.set(xlabel="x", ylabel="y", aspect="equal", title="where the flows are on the surface")
    front.set(xlim=(-0.7, flows["x"].max() + 0.7), ylim=(-0.7, flows["y"].max() + 0.7))
    figure.colorbar(colour, ax=front, label="energy", shrink=0.8)
    figure.suptitle(f"after {int(shown['step'].max())} steps", size=10)
    return figure


def _moves(flows: pd.DataFrame) -> np.ndarray:
    """Plane and energy before and after each step of each flow, ``[n, 2, 2]``."""
    ordered = flows.sort_values(["slot", "step"])
    before = ordered.groupby("slot").shift()
    same = ordered["age"] - before["age"] == 1  # else a new flow in the same slot
    same &= ordered["step"] - before["step"] == 1
    axes = ["z", "energy"]
    return np.stack([before.loc[same, axes], ordered.loc[same, axes]], axis=1)


class Slides:
    """Figures with a slider, as plain HTML without widgets."""

    def __init__(self, pictures: Sequence[Picture], name: str = "step") -> None:
        self.images = [base64.b64encode(each.png(_SLIDE_DPI)).decode() for each in pictures]
        self.name = name

    def __repr__(self) -> str:
        return f"<Slides {self.name}>"

    def _repr_html_(self) -> str:
        last = len(self.images) - 1
        images = "".join(
            f'<img src="data:image/png;base64,{image}" style="max-width:100%;display:'
            f'{"block" if number == last else "none"}">'
            for number, image in enumerate(self.images)
        )
        show = (
            "for(let i of [...this.parentNode.parentNode.querySelectorAll('img')].entries())"
            "i[1].style.display=i[0]==this.value?'block':'none'"
        )
        return (
            f'<div>{images}<label>{self.name} <input type="range" min="0" max="{last}" '
            f'value="{last}" oninput="{show}"></label></div>'
        )


@styled
def steps_until_done(steps: Sequence[int], allowed: int, arrivals: Sequence[int]) -> Picture:
    """Histograms of the ``steps`` of each sample, at most ``allowed``, and of ``arrivals``.

    ``arrivals``: flows that arrived in step 1, 2, ...
    """
    figure = picture(2, width=4.4, height=3.0)
    samples, flows = figure.axes
    samples.hist(list(steps), bins=[i + 0.5 for i in range(allowed + 1)], color=line(0)["color"])
    samples.set(xlabel="steps", ylabel="samples", title=f"steps of a sample, {allowed} allowed")
    flows.bar(range(1, len(arrivals) + 1), list(arrivals), color=line(1)["color"])
    flows.set(xlabel="step", ylabel="flows", title="flows that arrive")
    return figure


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
    axis.set_title(f"mean of {count} seeds and their range" if count > 1 else "one seed")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
