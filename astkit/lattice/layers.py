"""What every flow shares: the neuron that reads its place, and the GRU that carries its memory."""

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


class Neuron(nn.Sequential):
    """``[flows, 4]``, position in [-1, 1] and energy, to signals ``[flows, 64]``.

    The origin's layers (energy_flow, 7730fce) without its first one, of which it used 3 outputs.
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
