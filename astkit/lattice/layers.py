"""Layers of a lattice: mapper (input), neuron and GRU (flows), collector (output).

Sizes as in LL1yt/EnergyFlowSwift, energy_flow at 7730fce.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from astkit.lattice.config import LatticeConfig

SIGNAL = 64
"""Features from the neuron to the carrier."""

MOVE, ENERGY, CHILD, ADVANCE, GATE = slice(0, 2), slice(2, 3), 3, slice(4, 5), 5
"""Columns of the carrier's output: x and y, energy, energy of children; z, spawn gate."""

SIGNED = 4
"""The first four columns pass through tanh, the others through a sigmoid."""


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs), nn.GELU(), nn.LayerNorm(outputs)


def _mapper_width(config: LatticeConfig) -> int:
    return config.mapper_width or max(384, 2 * config.cells)


class Mapper(nn.Module):
    """Embeddings ``[batch, dim]`` to a surface ``[batch, height * width]`` of energies, row-major.

    ``tanh(MLP(scale * x)) * gain + bias + position``, without the original's dropout, so that a
    forward pass draws no random numbers.
    """

    def __init__(self, config: LatticeConfig) -> None:
        super().__init__()
        cells, wide = config.cells, _mapper_width(config)
        self.scale = math.sqrt(config.dim) if config.input_scale is None else config.input_scale
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
        cells, wide = config.cells, _mapper_width(config)
        super().__init__(
            *_block(cells, 2 * cells), *_block(2 * cells, wide), nn.Linear(wide, config.dim)
        )


class Neuron(nn.Sequential):
    """``[flows, 4]``, position in [-1, 1] and energy, to signals ``[flows, 64]``.

    The original's first layer is omitted; only 3 of its outputs were used.
    """

    def __init__(self) -> None:
        first, second = ((nn.Linear(n, 32), nn.LayerNorm(32), nn.GELU()) for n in (4, 32))
        super().__init__(*first, *second, nn.Linear(32, SIGNAL))


class Carrier(nn.Module):
    """A stack of GRU cells over a flow's steps, and one linear layer for all of its outputs."""

    def __init__(self, config: LatticeConfig) -> None:
        super().__init__()
        sizes = [SIGNAL + 1, *[config.hidden] * config.layers]
        self.cells = nn.ModuleList(
            nn.GRUCell(inputs, config.hidden) for inputs in sizes[: config.layers]
        )
        self.heads = nn.Linear(config.hidden, 6)
        with torch.no_grad():
            # initially, flows land near their cell with about their initial energy
            self.heads.weight[MOVE] *= 0.1
            self.heads.weight[ENERGY] *= 0.1
            self.heads.bias.zero_()

    def forward(
        self, inputs: Tensor, hidden: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One step of ``inputs [flows, 65]`` (signal, energy) and ``hidden``, one per layer.

        Returns outputs ``[flows, 6]`` in (-1, 1) and (0, 1), and the new hidden states.
        """
        memory = []
        for cell, old in zip(self.cells, hidden, strict=True):
            inputs = cell(inputs, old)
            memory.append(inputs)
        decided = self.heads(inputs)
        signed, unsigned = decided[:, :SIGNED].tanh(), decided[:, SIGNED:].sigmoid()
        return torch.cat([signed, unsigned], 1), tuple(memory)
