"""A resumed run in channels_last order ends as one that was not interrupted."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import TrainConfig, Trainer


def trained(folder: Path, last: int = 0) -> Trainer:
    """A convolution trained for 12 steps; stopped after step ``last``."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 2, 4, 4), torch.arange(24) % 3)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    config = TrainConfig(channels_last=True)
    options = {"config": config, "batch_size": 8, "checkpoints": folder, "resume": True}
    trainer = Trainer(model, data, epochs=4, device="cpu", **options)
    for record in trainer.steps():
        if record.step == last:
            break
    return trainer


def test_a_resumed_run_pairs_weights_and_moments_as_before(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    trained(tmp_path / "stopped", last=5)
    resumed = trained(tmp_path / "stopped")
    for name, value in whole.model.state_dict().items():
        assert resumed.model.state_dict()[name].equal(value), name
