"""Settings of an energy-flow lattice, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

EnergyRule = Literal["residual", "origin"]


@dataclass(frozen=True)
class LatticeConfig:
    """What an `EnergyFlowLattice` is built from.

    Args:
        dim: length of an embedding, input and output.
        width, height: cells of the surface along x and y; one flow starts in each.
        depth: planes along z; a flow arrives at ``z >= depth - 1``.
        hidden, layers: units and layers of a flow's GRU.
        mapper_width: units of the widest hidden layer of mapper and collector;
            None: ``max(384, 2 * width * height)``.
        max_flows: most flows alive at a time **per sample**; None: ``2 * width * height``. Children
            that find no free slot are counted in ``dropped``.
        max_steps: steps allowed; None: as many as the slowest flow takes, ``(depth - 1) / z_min``.
        z_min, z_max: least and greatest advance along z a step, in planes.
        reach: greatest move along x and y a step, in cells.
        spawn_threshold: a flow spawns when its gate exceeds this, in (0, 1); 1 turns spawning off.
        max_children: most children a flow has a step, 1 to 4.
        theta_e: a flow dies when its energy falls below this in magnitude; 0 turns death off.
        tau: a sample stops once this share of its flows has arrived or died.
        patience: ... or once this many steps brought no arrival, counted after the first arrival;
            ``math.inf`` turns the rule off. Flows left are deposited where they are.
        min_steps: neither rule stops a sample before this many steps.
        energy_rule: "residual" adds to a flow's energy; "origin" replaces it, as the original does.
        input_scale: embeddings are multiplied by this; None: ``sqrt(dim)``, which brings the
            elements of vectors of length 1 to about 1.
        lattice: False leaves the flows out: mapper and collector alone.
        seed: of the weights.
        recompute_every: keep the activations of only every so many steps for the backward pass and
            compute those between again; 0 keeps all.

    Raises:
        ValueError: for a setting outside its range.
    """

    dim: int = 768
    width: int = 12
    height: int = 12
    depth: int = 6
    hidden: int = 32
    layers: int = 1
    mapper_width: int | None = None
    max_flows: int | None = None
    max_steps: int | None = None
    z_min: float = 0.5
    z_max: float = 1.5
    reach: float = 1.0
    spawn_threshold: float = 0.6
    max_children: int = 3
    theta_e: float = 0.0
    tau: float = 0.95
    patience: float = 3
    min_steps: int = 5
    energy_rule: EnergyRule = "residual"
    input_scale: float | None = None
    lattice: bool = True
    seed: int = 0
    recompute_every: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} is {value}: give at least {least}")
        if self.flows_per_sample < self.cells:
            raise ValueError(
                f"max_flows is {self.max_flows} a sample, but {self.cells} flows start in each"
                f" ({self.width} x {self.height}): give at least {self.cells}"
            )
        if not 0 < self.z_min <= self.z_max:
            raise ValueError(
                f"z_min is {self.z_min} and z_max {self.z_max}: give 0 < z_min <= z_max, so that"
                " every flow arrives"
            )
        for name in ("spawn_threshold", "tau"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give a share in (0, 1]")
        if self.max_children > 4:
            raise ValueError(
                f"max_children is {self.max_children}: give at most 4, one for each neighbour"
            )
        if self.energy_rule not in get_args(EnergyRule):
            known = ", ".join(get_args(EnergyRule))
            raise ValueError(f"energy_rule is {self.energy_rule!r}: choose one of {known}")

    @property
    def cells(self) -> int:
        """Cells of the surface, which is also the number of flows a sample starts with."""
        return self.width * self.height

    @property
    def flows_per_sample(self) -> int:
        """Slots of a sample: most flows it can have alive at a time."""
        return 2 * self.cells if self.max_flows is None else self.max_flows

    @property
    def steps_allowed(self) -> int:
        """Most steps a sample runs."""
        if self.max_steps is not None:
            return self.max_steps
        return math.ceil((self.depth - 1) / self.z_min)

    @property
    def scale(self) -> float:
        """What embeddings are multiplied by."""
        return math.sqrt(self.dim) if self.input_scale is None else self.input_scale

    @property
    def widest(self) -> int:
        """Units of the widest hidden layer of mapper and collector."""
        return max(384, 2 * self.cells) if self.mapper_width is None else self.mapper_width


_LEAST: dict[str, float] = {
    **dict.fromkeys(("width", "height", "depth"), 2),
    **dict.fromkeys(("dim", "hidden", "layers", "mapper_width", "max_steps", "max_children"), 1),
    **dict.fromkeys(("patience", "min_steps"), 1),
    **dict.fromkeys(("reach", "theta_e", "recompute_every"), 0),
}

PRESETS = {
    "debug": LatticeConfig(width=8, height=8, depth=4, hidden=16),
    "experiment": LatticeConfig(width=12, height=12, depth=6, hidden=32),
    "large": LatticeConfig(width=32, height=32, depth=12, hidden=128, layers=2, recompute_every=2),
}
"""The original's sizes by name. Its own gave most samples of a batch no flow at all; these give
each sample one a cell, on smaller surfaces."""
