"""Tasks of a comparison that train in milliseconds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import Budget, TrainConfig, Trainer, compare
from astkit.comparison import training

ROWS, HELD = 64, 24
RANDOM = torch.Generator().manual_seed(0)
CENTRES = 2 * torch.randn(3, 4, generator=RANDOM)


def classes(rows: int) -> TensorDataset:
    """Three clusters in four dimensions."""
    labels = torch.arange(rows) % 3
    return TensorDataset(CENTRES[labels] + torch.randn(rows, 4, generator=RANDOM), labels)


TRAIN, VALIDATION, TEST = classes(ROWS), classes(HELD), classes(HELD)
CONFIG = TrainConfig(lr=0.02)


def make_model() -> nn.Module:
    """A perceptron with dropout."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


def run(**options: Any) -> Any:
    """A comparison of two policies for two seeds, unless ``options`` say otherwise."""
    usual = {
        "make_model": make_model,
        "train": TRAIN,
        "validation": VALIDATION,
        "test": TEST,
        "policies": ["cached_loss", {"name": "gate", "rate": 0.25}],
        "budget": Budget(epochs=2),
        "seeds": range(2),
        "config": CONFIG,
        "batch_size": 16,
        "check_baseline": False,
        "device": "cpu",
    }
    return compare(**{**usual, **options})


def interrupt(monkeypatch: pytest.MonkeyPatch, batch: int, **options: Any) -> None:
    """A call of `run` that ends with an interrupt before the ``batch``-th training batch."""
    original, calls = Trainer.train_batch, []

    def interrupted(self: Trainer, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == batch:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(training, "PAUSE", 0.0)
    with monkeypatch.context() as context:
        context.setattr(Trainer, "train_batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(**options)


def timeless(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries without seconds and joules."""
    untimed = dict.fromkeys(("seconds", "phases", "joules", "joules_reason"))
    return [
        {**e, **untimed, "curve": [[flops, value] for flops, _, value in e["curve"]]}
        for e in entries
    ]
