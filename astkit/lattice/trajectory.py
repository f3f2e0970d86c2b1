"""Where flows went: the record of a run, for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from astkit.lattice.flows import Flows
from astkit.lattice.model import EnergyFlowLattice, LatticeOutput


class Frame(NamedTuple):
    """The flows alive after ``step`` steps, on the CPU.

    ``sample`` and ``slot`` int64 ``[n]``; ``position`` ``[n, 3]`` x, y, z in lattice units;
    ``energy`` ``[n]``. A flow keeps its slot for life.
    """

    step: int
    sample: Tensor
    slot: Tensor
    position: Tensor
    energy: Tensor


@torch.no_grad()
def trajectory(
    model: EnergyFlowLattice, x: Tensor, *, adaptive: bool = True
) -> tuple[LatticeOutput, list[Frame]]:
    """Run ``x [batch, dim]`` without gradients: the output, and a frame for each step from 0 on.

    Runs in the mode that the model is in; put a model with noise in eval mode first. A model with
    ``lattice=False`` gives no frames.
    """
    each = model.config.flows_per_sample
    frames: list[Frame] = []

    def keep(step: int, flows: Flows) -> None:
        slot, place = flows.slot.cpu(), flows.place.cpu()
        frames.append(Frame(step, slot // each, slot % each, place[:, :3], place[:, 3]))

    return model.run(x, adaptive=adaptive, observer=keep), frames


def rows(frames: Sequence[Frame], sample: int = 0) -> list[dict[str, float]]:
    """One mapping a step and flow of a sample, for tables and `astkit.widgets.lattice_plots`.

    ``step``, ``slot``, ``x``, ``y``, ``z`` in lattice units, and ``energy``.
    """
    found = []
    for frame in frames:
        own = frame.sample == sample
        places = zip(
            frame.slot[own].tolist(),
            frame.position[own].tolist(),
            frame.energy[own].tolist(),
            strict=True,
        )
        found += [
            {"step": frame.step, "slot": slot, "x": x, "y": y, "z": z, "energy": energy}
            for slot, (x, y, z), energy in places
        ]
    return found
