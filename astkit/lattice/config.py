"""Settings of an energy-flow lattice, checked at construction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

EnergyRule = Literal["residual", "original"]


@dataclass(frozen=True)
class LatticeConfig:
    """Settings of an `EnergyFlowLattice`.

    Args:
        dim: length of an embedding, input and output.
        width, height: cells of the surface along x and y; one flow starts in each.
        depth: planes along z; a flow arrives at ``z >= depth - 1``.
        hidden, layers: units and layers of a flow's GRU.
        mapper_width: units of the widest hidden layer of mapper and collector;
            None: ``max(384, 2 * width * height)``.
        max_flows: maximum number of flows alive at a time **per sample**; None:
            ``2 * width * height``. Children without a free slot are counted in ``dropped``.
        max_steps: maximum number of steps; None: ``ceil((depth - 1) / z_min)``, which the slowest
            flow needs.
        z_min, z_max: minimum and maximum advance along z per step, in planes.
        reach: maximum move along x and y per step, in cells.
        spawn_threshold: a flow spawns when its gate exceeds this, in (0, 1); 1 disables spawning.
        max_children: maximum number of children per flow and step, 1 to 4.
        theta_e: a flow dies when the magnitude of its energy falls below this; 0 disables death.
        tau: a sample stops once this share of its flows has arrived or died.
        patience: ... or after this many steps without an arrival, counted from the first arrival;
            ``math.inf`` disables the rule. Remaining flows are deposited where they are.
        min_steps: neither rule stops a sample before this many steps.
        energy_rule: "residual" adds to a flow's energy; "original" replaces it.
        input_scale: embeddings are multiplied by this; None: ``sqrt(dim)``, which scales the
            elements of unit vectors to about 1.
        lattice: False omits the flows: mapper and collector only (the bypass).
        seed: seed of the weights.

    Raises:
        ValueError: for a setting out of range.
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

    def __post_init__(self) -> None:
        for names, low, high in _RANGES:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not low <= value <= high:
                    limit = f"to {high:g}" if math.isfinite(high) else "or more"
                    raise ValueError(f"{name} is {value}: give {low:g} {limit}")
        if self.flows_per_sample < self.cells:
            raise ValueError(
                f"max_flows is {self.max_flows} per sample, but {self.cells} flows start in each"
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
        if self.energy_rule not in get_args(EnergyRule):
            known = ", ".join(get_args(EnergyRule))
            raise ValueError(f"energy_rule is {self.energy_rule!r}: choose one of {known}")

    @property
    def cells(self) -> int:
        """Cells of the surface: initial number of flows per sample."""
        return self.width * self.height

    @property
    def flows_per_sample(self) -> int:
        """Maximum number of concurrent flows per sample."""
        return 2 * self.cells if self.max_flows is None else self.max_flows

    @property
    def steps_allowed(self) -> int:
        """Maximum number of steps per sample."""
        if self.max_steps is not None:
            return self.max_steps
        return math.ceil((self.depth - 1) / self.z_min)


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("width height depth", 2, math.inf),
    ("dim hidden layers mapper_width max_steps patience min_steps", 1, math.inf),
    ("max_children", 1, 4),  # one for each neighbour
    ("reach theta_e", 0, math.inf),
)

PRESETS = {
    "debug": LatticeConfig(width=8, height=8, depth=4, hidden=16),
    "experiment": LatticeConfig(width=12, height=12, depth=6, hidden=32),
    "large": LatticeConfig(width=32, height=32, depth=12, hidden=128, layers=2),
}
"""The original's presets by name, on smaller surfaces, so that every sample has all its flows."""
