"""Numbers that were computed outside: how their cost is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import Budget, Policy, Trainer, Weighted, compare
from tests.trainers.states import leave_after

DATA = TensorDataset(torch.randn(24, 4), torch.arange(24) % 3)
SCORES = torch.arange(24.0)


def trainer(policy: Policy, **options: Any) -> Trainer:
    return Trainer(
        nn.Linear(4, 3), DATA, policy=policy, epochs=2, batch_size=6, device="cpu", **options
    )


@pytest.mark.parametrize("stop", [1, 3])
def test_the_cost_is_counted_once_with_the_first_step(stop: int, tmp_path: Path) -> None:
    whole = trainer(Weighted(SCORES, cost=5e9))
    steps = whole.steps()
    assert next(steps).metrics["flops"] > 5e9
    for _ in steps:
        pass
    assert whole.ledger.flops.helper == 5e9
    leave_after(trainer(Weighted(SCORES, cost=5e9), checkpoints=tmp_path), stop)
    resumed = trainer(Weighted(SCORES, cost=5e9), checkpoints=tmp_path, resume=True)
    resumed.run()
    assert resumed.ledger.flops == whole.ledger.flops
    free = trainer(Weighted(SCORES))
    free.run()
    assert free.ledger.flops.helper == 0


def test_a_comparison_says_where_the_cost_of_scores_is_not_known() -> None:
    def make_model() -> nn.Module:
        return nn.Linear(4, 3)

    for cost, counted in ((None, False), (0.0, True)):
        policy = Weighted(SCORES, cost=cost)
        report = compare(
            make_model, DATA, DATA, DATA, policies=[policy], seeds=[0], check_baseline=False,
            budget=Budget(epochs=2), batch_size=6, device="cpu",
        )  # fmt: skip
        assert ("scores not counted" in report.verdict) != counted
        (entry,) = (each for each in report.entries if each["policy"].startswith("weighted"))
        assert entry["scores_counted"] == counted


def test_several_processes_pay_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astkit.distributed.rank", lambda: 1)
    run = trainer(Weighted(SCORES, cost=5e9))
    next(run.steps())
    assert run.ledger.flops.helper == 0
