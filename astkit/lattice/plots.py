"""Pictures of a lattice: flows on their way, steps until they stop, times, learning."""

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

from astkit.lattice.flows import Flows
from astkit.lattice.model import EnergyFlowLattice, LatticeOutput
from astkit.widgets.style import SOFT, Picture, line, picture, styled

_SLIDE_DPI = 72  # there are many of them in one notebook
_COLOURS = "cividis"  # reads the same for the colour-blind


@torch.no_grad()
def flow_table(
    model: EnergyFlowLattice, x: Tensor, *, adaptive: bool = True
) -> tuple[LatticeOutput, pd.DataFrame]:
    """Run ``x [batch, dim]`` without gradients: the output, and a row a step and flow.

    Columns: ``step`` from 0 on, ``sample``, ``slot`` within the sample, which a flow keeps, ``x``,
    ``y``, ``z`` in lattice units, and ``energy``.
    """
    each = model.config.flows_per_sample
    parts: list[Tensor] = []

    def keep(step: int, flows: Flows) -> None:
        slot = flows.slot
        numbers = torch.stack([torch.full_like(slot, step), slot // each, slot % each], 1)
        parts.append(torch.cat([numbers.to(flows.place.dtype), flows.place], 1).cpu())

    output = model(x, adaptive=adaptive, observer=keep)
    names = ["step", "sample", "slot", "x", "y", "z", "energy"]
    table = pd.DataFrame(torch.cat(parts).numpy(), columns=names)
    return output, table.astype(dict.fromkeys(names[:3], int))


@styled
def flow_paths(flows: pd.DataFrame, depth: int, upto: int | None = None) -> Picture:
    """The paths of a sample's flows: from the side, and in space, coloured by energy.

    Args:
        flows: of one sample, as `flow_table` gives them.
        depth: planes of the lattice; the last one is where flows arrive.
        upto: the last step that is drawn; all by default.

    Raises ``ValueError`` for flows without a row.
    """
    if flows.empty:
        raise ValueError("flows has no rows: record some with flow_table")
    largest = max(float(flows["energy"].abs().max()), 1e-12)
    colour = ScalarMappable(Normalize(-largest, largest), _COLOURS)
    shown = flows if upto is None else flows[flows["step"] <= upto]
    figure = picture(2, width=4.8, height=3.6)
    side, space = figure.axes
    space.remove()
    space = figure.add_subplot(1, 2, 2, projection="3d")
    starts, ends, energy = _moves(shown)
    if len(starts):
        segments = np.stack([starts[:, [2, 0]], ends[:, [2, 0]]], axis=1)
        side.add_collection(LineCollection(list(segments), colors=colour.to_rgba(energy), lw=0.8))
        for start, end, ink in zip(starts, ends, colour.to_rgba(energy), strict=True):
            space.plot(*zip(start, end, strict=True), color=ink, lw=0.7)
    now = shown[shown["step"] == shown["step"].max()]
    side.scatter(now["z"], now["x"], c=colour.to_rgba(now["energy"]), s=9, edgecolors="none")
    side.axvline(depth - 1, color=SOFT, ls=":", lw=1.2)
    width, height = flows["x"].max(), flows["y"].max()
    side.set(xlim=(-0.2, depth), ylim=(-0.5, width + 0.5), xlabel="z", ylabel="x")
    space.set(xlim=(0, width), ylim=(0, height), zlim=(0, depth - 1))
    space.set(xlabel="x", ylabel="y", zlabel="z")
    steps = int(shown["step"].max())
    side.set_title(f"from the side, after {steps} steps")
    space.set_title("in space")
    figure.colorbar(colour, ax=[side], label="energy", location="left", shrink=0.8)
    return figure


def _moves(flows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each flow's steps: where from and where to, ``[n, 3]``, and its energy there, ``[n]``."""
    ordered = flows.sort_values(["slot", "step"])
    before = ordered.groupby("slot").shift()
    # a slot that was free for a while, or goes back, holds another flow
    same = (ordered["step"] - before["step"] == 1) & (ordered["z"] > before["z"])
    axes = ["x", "y", "z"]
    starts, ends = before.loc[same, axes], ordered.loc[same, axes]
    return starts.to_numpy(), ends.to_numpy(), ordered.loc[same, "energy"].to_numpy()


class Slides:
    """Pictures with a slider below them, as one piece of HTML that needs no widgets."""

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
    """How many steps each sample took, and in which steps the flows arrived.

    Args:
        steps: one number a sample.
        allowed: steps that a sample may take.
        arrivals: flows that arrived in step 1, 2, ...
    """
    figure = picture(2, width=4.4, height=3.0)
    samples, flows = figure.axes
    samples.hist(list(steps), bins=[i + 0.5 for i in range(allowed + 1)], color=line(0)["color"])
    samples.set(xlabel="steps", ylabel="samples", title=f"steps of a sample, {allowed} allowed")
    flows.bar(range(1, len(arrivals) + 1), list(arrivals), color=line(1)["color"])
    flows.set(xlabel="step", ylabel="flows", title="flows that arrive")
    return figure


@styled
def times(rows: pd.DataFrame, slopes: Mapping[str, float] | None = None) -> Picture:
    """Seconds of a step against flows, one line a way, both axes logarithmic.

    ``rows``: ``way``, ``flows``, ``seconds``. ``slopes``: of each way, for the legend: 1 is time in
    proportion to flows.
    """
    figure = picture(1, width=6.4, height=3.8)
    (axis,) = figure.axes
    for place, (way, group) in enumerate(rows.groupby("way", sort=False)):
        group = group.sort_values("flows")
        slope = (slopes or {}).get(str(way))
        label = f"{way}, slope {slope:.2f}" if slope is not None else str(way)
        axis.plot(group["flows"], group["seconds"], label=label, **line(place))
    axis.set(xscale="log", yscale="log", xlabel="flows in the batch", ylabel="seconds a step")
    axis.set_title("forward and backward")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


@styled
def learning(curves: pd.DataFrame, marks: Mapping[str, float], metric: str = "val_mrr") -> Picture:
    """A metric over training steps, one line a model with a band over seeds; marks as lines.

    ``curves``: ``model``, ``seed``, ``step`` and the metric; ``marks``: of the baselines.
    """
    figure = picture(1, width=6.4, height=3.8)
    (axis,) = figure.axes
    for place, (model, group) in enumerate(curves.groupby("model", sort=False)):
        spread: Any = group.groupby("step")[metric].agg(["mean", "min", "max"])
        style = line(place)
        axis.plot(spread.index, spread["mean"], label=str(model), **style)
        axis.fill_between(
            spread.index, spread["min"], spread["max"], color=style["color"], alpha=0.15, lw=0
        )
    for name, value in marks.items():
        axis.axhline(value, color=SOFT, lw=1.0, ls=":")
        axis.annotate(
            name,
            (1.0, value),
            xycoords=("axes fraction", "data"),
            fontsize=8,
            va="bottom",
            ha="right",
        )
    axis.set(xlabel="training step", ylabel=metric.removeprefix("val_"), ylim=(0, None))
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
