"""Energy-flow lattice: maps embeddings to embeddings by flows between two surfaces."""

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
"""Called with the number of steps so far and the current flows."""


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

    Weights depend only on ``config.seed``; all of them are in ``state_dict()``. Reimplements
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
            # integers, so also exact after .double()
            self.register_buffer("extent", extent, persistent=False)

    def extra_repr(self) -> str:
        """The settings, which are compared when a run is resumed."""
        return repr(self.config)

    def forward(
        self,
        x: Tensor,
        *,
        adaptive: bool = True,
        flows_per_call: int | None = None,
        observer: Observer | None = None,
    ) -> LatticeOutput:
        """Map embeddings to embeddings.

        Args:
            x: ``[batch, dim]``.
            adaptive: False runs samples for the maximum number of steps, or until no flow is alive.
            flows_per_call: flows per call of neuron and carrier; None: all. Outputs are
                equal up to rounding.
            observer: called with the flows before the first step and after each; requires
                disabled gradients.

        Raises:
            ValueError: for ``x`` of another shape, or an observer with gradients enabled.
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
        landings = [Landing(flows.slot[:0], flows.place[:0], flows.age[:0])]  # in case none lands
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
    # one key per part: the mapper of a seed is the same with and without flows
    return rng.isolated("cpu", config.seed, "lattice", part)
