"""The layers of a lattice: mapper in, neuron and GRU of the flows, collector out.

Sizes are those of LL1yt/EnergyFlowSwift, energy_flow at 7730fce.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from astkit.lattice.config import LatticeConfig

SIGNAL = 64
"""Features that a neuron hands to the carrier."""

MOVE, ENERGY, CHILD, ADVANCE, GATE = slice(0, 2), slice(2, 3), 3, slice(4, 5), 5
"""Columns of the carrier's output: x and y, energy, energy of children; z, spawn gate."""

SIGNED = 4
"""The first so many columns are squashed by tanh, the others by a sigmoid."""


class Mapper(nn.Module):
    """Embeddings ``[batch, dim]`` to a surface ``[batch, height * width]`` of energies, row-major.

    ``tanh(MLP(scale * x)) * gain + bias + position``, without the original's dropout, so that a
    forward pass draws no random numbers.
    """

    def __init__(self, config: LatticeConfig) -> None:
        super().__init__()
        cells, wide = config.cells, config.widest
        self.scale = config.scale
        self.layers = nn.Sequential(
            *_block(config.dim, wide), *_block(wide, 2 * cells), nn.Linear(2 * cells, cells)
        )
        self.gain = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(()))
        self.position = nn.Parameter(0.02 * torch.randn(cells))

    def forward(self, x: Tensor) -> Tensor:
        surface: Tensor = torch.tanh(self.layers(x * self.scale))
        return surface * self.gain + self.bias + self.position


class Collector(nn.Sequential):
    """A surface ``[batch, height * width]`` to embeddings ``[batch, dim]``: the mapper mirrored."""

    def __init__(self, config: LatticeConfig) -> None:
        cells, wide = config.cells, config.widest
        super().__init__(
            *_block(cells, 2 * cells), *_block(2 * cells, wide), nn.Linear(wide, config.dim)
        )


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs), nn.GELU(), nn.LayerNorm(outputs)


class Neuron(nn.Sequential):
    """``[flows, 4]``, position in [-1, 1] and energy, to signals ``[flows, 64]``.

    Without the original's first layer, of which it used 3 outputs.
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(4, 32),
            nn.LayerNorm(32),
            nn.GELU(),
            nn.Linear(32, 32),
            nn.LayerNorm(32),
            nn.GELU(),
            nn.Linear(32, SIGNAL),
        )


class Carrier(nn.Module):
    """A stack of GRU cells over a flow's steps, and one linear layer for all that it decides."""

    def __init__(self, config: LatticeConfig) -> None:
        super().__init__()
        sizes = [SIGNAL + 1, *[config.hidden] * config.layers]
        self.cells = nn.ModuleList(
            nn.GRUCell(inputs, config.hidden) for inputs in sizes[: config.layers]
        )
        self.heads = nn.Linear(config.hidden, 6)
        with torch.no_grad():
            # a flow starts out by landing near its own cell, with about its own energy
            self.heads.weight[MOVE] *= 0.1
            self.heads.weight[ENERGY] *= 0.1
            self.heads.bias.zero_()

    def forward(
        self, inputs: Tensor, hidden: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Advance the memory by a step.

        Args:
            inputs: ``[flows, 65]``, signal and energy.
            hidden: one ``[flows, hidden]`` a layer.

        Returns:
            Decisions ``[flows, 6]`` in (-1, 1) and (0, 1), and the new memory.
        """
        memory = []
        for cell, old in zip(self.cells, hidden, strict=True):
            inputs = cell(inputs, old)
            memory.append(inputs)
        decided = self.heads(inputs)
        signed, unsigned = decided[:, :SIGNED].tanh(), decided[:, SIGNED:].sigmoid()
        return torch.cat([signed, unsigned], 1), tuple(memory)
