"""Sizes of a lattice by name, and whether one fits in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from astkit.datasets.settings import free_memory
from astkit.lattice.config import LatticeConfig
from astkit.lattice.memory import estimate_memory
from astkit.trainers import choose_device


@dataclass(frozen=True)
class Preset:
    """A size: the lattice, pairs a batch, batches to train on.

    The names are the origin's (LL1yt/EnergyFlowSwift, 7730fce). Its own sizes gave most samples of
    a batch no flow at all; these give each sample one a cell, on smaller surfaces.
    """

    config: LatticeConfig
    batch_size: int
    steps: int


PRESETS: dict[str, Preset] = {
    "debug": Preset(LatticeConfig(width=8, height=8, depth=4, hidden=16), 32, 50),
    "experiment": Preset(LatticeConfig(width=12, height=12, depth=6, hidden=32), 64, 300),
    "large": Preset(
        LatticeConfig(width=32, height=32, depth=12, hidden=128, layers=2, recompute_every=2),
        128,
        3000,
    ),
}


def preset(name: str) -> Preset:
    """The preset called ``name``; raises ``ValueError`` for a name that there is not."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def describe_memory(config: LatticeConfig, batch_size: int) -> str:
    """What training takes at its peak, by `estimate_memory`, in one line."""
    size = estimate_memory(config, batch_size) / 2**20
    lattice = f"{config.width}x{config.height}x{config.depth}, hidden {config.hidden}"
    return f"{lattice} x{config.layers}, batch {batch_size}: about {size:,.0f} MiB to train"


def check_memory(
    config: LatticeConfig, batch_size: int, device: str | torch.device = "auto"
) -> None:
    """Print `describe_memory`, and refuse what does not fit in the free memory of ``device``.

    A device that does not say what is free is believed to have enough. Raises ``ValueError``.
    """
    line = describe_memory(config, batch_size)
    free = _free(choose_device(device))
    print(line + ("" if free is None else f", {free / 2**20:,.0f} MiB are free"))
    if free is not None and estimate_memory(config, batch_size) > free:
        raise ValueError(
            f"{line}, but {free / 2**20:,.0f} MiB are free: take a smaller batch or surface, or set"
            " recompute_every to keep fewer steps"
        )


def _free(device: torch.device) -> int | None:
    if device.type == "cpu":
        return free_memory()
    module = torch.get_device_module(device)
    return int(module.mem_get_info(device)[0]) if hasattr(module, "mem_get_info") else None
