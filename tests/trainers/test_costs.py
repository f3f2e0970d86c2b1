"""What a batch costs is counted once in a run, however often that is resumed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from astkit.datasets import Batch
from astkit.trainers import Learner, TrainConfig
from astkit.trainers.costs import Costs


class Deepening(nn.Module):
    """Takes more passes through its layer the larger its weight is."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.passes = nn.Parameter(torch.tensor(float(passes)))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(self.passes)):
            x = self.layer(x)
        return x


def costs(passes: int) -> Costs:
    return Costs(Learner(Deepening(passes), TrainConfig(), device="cpu"))


def batch(label: int = 0) -> Batch:
    return Batch(index=torch.arange(3), x=torch.ones(3, 4), y=torch.full((3,), label))


def test_a_resumed_run_counts_as_it_did_before() -> None:
    first, later = costs(2), costs(5)
    counted = first.of(batch(), lambda _: None)
    assert later.of(batch(), lambda _: None).forward > counted.forward
    resumed = costs(5)
    resumed.load_state_dict(first.state_dict())
    assert resumed.of(batch(), lambda _: None) == counted


def test_a_resumed_run_still_refuses_what_cannot_work() -> None:
    first, resumed = costs(1), costs(1)
    first.of(batch(), lambda _: None)
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="label"):
        resumed.of(batch(label=9), lambda _: None)
