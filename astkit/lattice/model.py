"""The energy-flow lattice: embeddings in, embeddings out, with flows in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.lattice.config import LatticeConfig
from astkit.lattice.flows import Flows, FlowStats, Stepper
from astkit.lattice.layers import Carrier, Collector, Mapper, Neuron
from astkit.lattice.surface import Landing, deposit

Observer = Callable[[int, Flows], None]
"""Called with the number of steps so far and the flows alive."""


class LatticeOutput(NamedTuple):
    """``y``: ``[batch, dim]``; ``surface``: ``[batch, height * width]``; ``stats``: counters."""

    y: Tensor
    surface: Tensor
    stats: FlowStats


class EnergyFlowLattice(nn.Module):
    """Flows that carry energy from a surface at z = 0 to one at z = depth - 1.

    The mapper maps an embedding to a surface; a flow starts in each of its cells. In a step, one
    neuron and one GRU, shared by all flows of all samples, predict each flow's move, its energy and
    its children. Flows deposit their energy where they land, and the collector maps that surface to
    an embedding::

        model = EnergyFlowLattice(LatticeConfig(dim=768, width=12, height=12, depth=6))
        y, surface, stats = model(x)

    Weights depend on ``config.seed`` alone; all of them are in ``state_dict()``. Reimplements
    energy_flow of LL1yt/EnergyFlowSwift at 7730fce, without interaction between samples: a
    sample's output does not depend on its batch.
    """

    extent: Tensor  # largest x, y and z

    def __init__(self, config: LatticeConfig) -> None:
        super().__init__()
        self.config = config
        with _seeded(config, "mapper"):
            self.mapper = Mapper(config)
        with _seeded(config, "collector"):
            self.collector = Collector(config)
        if config.lattice:
            with _seeded(config, "flows"):
                self.neuron, self.carrier = Neuron(), Carrier(config)
            extent = torch.tensor([config.width - 1.0, config.height - 1.0, config.depth - 1.0])
            # whole numbers, so exact after .double() too
            self.register_buffer("extent", extent, persistent=False)

    def forward(
        self,
        x: Tensor,
        *,
        adaptive: bool = True,
        flows_per_call: int | None = None,
        observer: Observer | None = None,
    ) -> LatticeOutput:
        """Send embeddings through the lattice.

        The host synchronises with the device once a step, to read how many flows remain.

        Args:
            x: ``[batch, dim]``.
            adaptive: False runs every sample for all steps allowed, or until no flow is alive.
            flows_per_call: flows in one call of neuron and carrier; None: all. The output is the
                same up to rounding.
            observer: called with the flows before the first step and after each; without
                gradients only.

        Raises:
            ValueError: for ``x`` of another shape, or an observer where gradients are recorded.
        """
        config = self.config
        if x.ndim != 2 or x.shape[1] != config.dim:
            raise ValueError(
                f"x has shape {list(x.shape)}: give [batch, dim] with dim {config.dim}"
            )
        if observer is not None and torch.is_grad_enabled():
            raise ValueError("observer was given while gradients are recorded: use torch.no_grad()")
        surface = self.mapper(x)
        if not config.lattice:
            none = torch.zeros(len(x), dtype=torch.int64, device=x.device)
            return LatticeOutput(self.collector(surface), surface, FlowStats(*(none,) * 6))
        stepper = Stepper(config, self.neuron, self.carrier, self.extent, adaptive, flows_per_call)
        flows, tally = stepper.begin(surface.to(self.extent.dtype))
        landings = [Landing(flows.slot[:0], flows.place[:0], flows.age[:0])]  # for when none lands
        number = 0
        if observer is not None:
            observer(number, flows)
        while len(flows.slot):
            flows, tally, landed = stepper.step(flows, tally, number)
            landings += landed
            number += 1
            if observer is not None:
                observer(number, flows)
        surface = deposit(landings, len(x), config.width, config.height)
        return LatticeOutput(self.collector(surface), surface, tally)


def _seeded(config: LatticeConfig, part: str) -> AbstractContextManager[None]:
    # a key for each part: the mapper of a seed is the same with and without flows
    return rng.isolated("cpu", config.seed, "lattice", part)
