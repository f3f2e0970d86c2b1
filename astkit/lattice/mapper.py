"""Between embeddings and the lattice's surface: the mapper on the way in, the collector out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from astkit.lattice.config import LatticeConfig


class Mapper(nn.Module):
    """Embeddings ``[batch, dim]`` to a surface ``[batch, height * width]`` of energies, row-major.

    ``tanh(MLP(scale * x)) * gain + bias + position``: the origin's layers (energy_flow, 7730fce)
    without its dropout, so that a forward pass draws no random numbers.
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
