"""A run of 24 batches of random rows, for tests of what a run reports."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.gating import Gate
from astkit.trainers import Trainer

DATA = TensorDataset(torch.randn(96, 4), torch.arange(96) % 3)


def small_trainer(observers: Any = (), epochs: float = 2, **options: Any) -> Trainer:
    with rng.isolated("cpu", 0):
        model = nn.Linear(4, 3)
    options = {"epochs": epochs, "batch_size": 8, "observers": observers, **options}
    return Trainer(model, DATA, DATA, device="cpu", **options)


def gated(gate: Gate | None = None, **options: Any) -> Trainer:
    return small_trainer(epochs=1.5, policy=gate or Gate(0.2), **options)
