"""Numbers that were computed outside: their checks, and how their cost is counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import Budget, Policy, Rho, Subset, Trainer, compare
from tests.trainers.states import leave_after

DATA = TensorDataset(torch.randn(24, 4), torch.arange(24) % 3)
SCORES = torch.arange(24.0)


def trainer(policy: Policy, **options: Any) -> Trainer:
    return Trainer(
        nn.Linear(4, 3), DATA, policy=policy, epochs=2, batch_size=6, device="cpu", **options
    )


WRONG: dict[str, tuple[Any, str]] = {
    "text": (["a"], r"scores is a list: give one number a row"),
    "a table": (torch.ones(3, 2), r"scores has shape \[3, 2\] and type torch.float32: give one"),
    "nothing": ([], r"scores has shape \[0\]"),
    "NaN": ([1, math.nan], "scores of row 1 is nan: give a finite number for each row"),
    "infinity": ([math.inf], "scores of row 0 is inf"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_number_a_row_is_refused(case: str) -> None:
    scores, sentence = WRONG[case]
    with pytest.raises(ValueError, match=f"^{sentence}"):
        Subset(scores, 0.5)


def test_a_cost_below_zero_is_refused() -> None:
    for cost in (-1.0, math.nan, "1e9"):
        with pytest.raises(ValueError, match=f"^cost is {cost!r}: give a number of 0 or more$"):
            Rho(SCORES, cost=cost)  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", [1, 3])
def test_the_cost_is_counted_once_with_the_first_step(stop: int, tmp_path: Path) -> None:
    whole = trainer(Subset(SCORES, 0.5, cost=5e9))
    steps = whole.steps()
    assert next(steps).metrics["flops"] > 5e9
    for _ in steps:
        pass
    assert whole.ledger.flops.helper == 5e9
    leave_after(trainer(Subset(SCORES, 0.5, cost=5e9), checkpoints=tmp_path), stop)
    resumed = trainer(Subset(SCORES, 0.5, cost=5e9), checkpoints=tmp_path, resume=True)
    resumed.run()
    assert resumed.ledger.flops == whole.ledger.flops
    free = trainer(Subset(SCORES, 0.5))
    free.run()
    assert free.ledger.flops.helper == 0


def test_a_comparison_says_where_the_cost_of_scores_is_not_known() -> None:
    def make_model() -> nn.Module:
        return nn.Linear(4, 3)

    for cost, counted in ((None, False), (0.0, True)):
        policy = Subset(SCORES, 0.5, cost=cost)
        report = compare(
            make_model, DATA, DATA, DATA, policies=[policy], seeds=[0], check_baseline=False,
            budget=Budget(epochs=2), batch_size=6, device="cpu",
        )  # fmt: skip
        assert ("scores not counted" in report.verdict) != counted
        label = "subset(Tensor, rate=0.5)" if cost is None else "subset(Tensor, rate=0.5, cost=0.0)"
        (entry,) = (each for each in report.entries if each["policy"] == label)
        assert entry["scores_counted"] == counted


def test_several_processes_pay_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astkit.distributed.rank", lambda: 1)
    run = trainer(Subset(SCORES, 0.5, cost=5e9))
    next(run.steps())
    assert run.ledger.flops.helper == 0
