"""Small lattices in float64 whose flows spawn, die and stop early, and inputs for them."""

from typing import Any

import torch
from torch import Tensor

from astkit import rng
from astkit.systems.lattice.model import EnergyFlowLattice, LatticeConfig, LatticeOutput


def config(**changes: Any) -> LatticeConfig:
    """A lattice of 4 x 3 x 5 in which some flows spawn each step."""
    small = {"dim": 6, "width": 4, "height": 3, "depth": 5, "hidden": 5, "mapper_width": 8}
    return LatticeConfig(**{**small, "spawn_threshold": 0.5, **changes})


def model(settings: LatticeConfig, lively: float = 6) -> EnergyFlowLattice:
    """In float64; ``lively`` scales what the carrier decides, so that flows differ."""
    built = EnergyFlowLattice(settings).double()
    if settings.lattice:
        with torch.no_grad():
            built.carrier.heads.weight *= lively
    return built


def inputs(batch: int, dim: int = 6, seed: int = 0) -> Tensor:
    """``[batch, dim]`` of length 1, float64."""
    x = torch.randn(batch, dim, dtype=torch.float64, generator=rng.generator(seed, "inputs"))
    return torch.nn.functional.normalize(x, dim=1)


def loss(output: LatticeOutput) -> Tensor:
    """A number that depends on every element of the output and of the surface."""
    weight = torch.linspace(0.5, 1.5, output.surface.shape[1], dtype=output.surface.dtype)
    return output.y.sin().sum() + (weight * output.surface.square()).sum()


def gradients(built: EnergyFlowLattice, output: LatticeOutput) -> dict[str, Tensor]:
    """Of ``loss``, by the parameter's name; a parameter without one gets zeros."""
    built.zero_grad()
    loss(output).backward()
    return {
        name: torch.zeros_like(each) if each.grad is None else each.grad.clone()
        for name, each in built.named_parameters()
    }
