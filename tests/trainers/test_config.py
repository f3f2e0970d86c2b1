"""Settings: known, in range, and refused by name otherwise; budgets end where they say."""

import dataclasses
import json
import math
import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from astkit.gating import Gate
from astkit.trainers import Budget, TrainConfig, Trainer, fast_rules
from astkit.trainers.config import cosine
from tests import build
from tests.build import refused

NUMBERS = (0, -0.5, math.nan, math.inf, -math.inf, "3", True)
CONFIG: dict[str, tuple[tuple[Any, ...], str]] = {
    "lr": ((0, -1e-3, math.nan, math.inf, "0.1"), "give a number above 0"),
    "weight_decay": ((-0.1, math.nan, math.inf, None), "give a number of 0 or more"),
    "clip_norm": ((0, -1, math.nan, "1"), "give a number above 0"),
    "schedule": (("linear", 0.5, np.zeros(2)), "give cosine, constant, or a function"),
    "warmup": ((-0.1, 1, math.nan, None), "give a share of 0 or more and below 1"),
    "precision": (("fp8", None, ["bf16"]), "give one of fp32, bf16, fp16"),
    "compile": (("auto", None, torch.zeros(2)), "give one of True, False"),
    "batch_size": ((0, "auto", 32.0), "give a whole number of 1 or more"),
    "accumulation_steps": ((0, True, None, 1.5), "give a whole number of 1 or more"),
    "validation_fraction": ((0, 1.1, math.nan, "1"), "give a share above 0 and at most 1"),
}


def test_what_is_out_of_range_is_refused() -> None:
    for name, (values, remedy) in CONFIG.items():
        for value in values:
            words = f"{name} is {re.escape(repr(value))}: {remedy}"
            refused((partial(TrainConfig, **{name: value}), words))
    for factor in (math.nan, -1.0, None, math.inf):
        schedule = {0.0: 1.0, 0.5: 1.0, 1.0: factor}.__getitem__
        words = r"schedule gives \[1.0, .*\] at 0, 0.5 and 1: return 0 or"
        refused((partial(TrainConfig, schedule=schedule), words))
    for limits in ({}, {"epochs": 1, "flops": 1}, {"epochs": 1, "steps": 1, "seconds": 1}):
        refused((partial(Budget, **limits), "give exactly one of epochs, steps, flops, sec"))
    for name in ("epochs", "steps", "flops", "seconds"):
        words = f"budget {name} is .*: give a (number above 0|whole number)"
        refused(*((partial(Budget, **{name: limit}), words) for limit in NUMBERS))


def test_numbers_of_numpy_become_those_of_python() -> None:
    config = TrainConfig(lr=np.float32(0.5), batch_size=np.int64(32), seed=np.int64(3))
    assert config == TrainConfig(lr=0.5, batch_size=32, seed=3)
    budgets = Budget(epochs=np.int64(2)), Budget(flops=np.float32(0.5))
    assert json.dumps([config.to_dict(), *map(vars, budgets)])
    torchs = TrainConfig(schedule=lambda progress: torch.tensor(1 - progress))
    assert torchs.lr_factor(0.25) == 0.75


def test_it_goes_through_json_and_back() -> None:
    config = TrainConfig(lr=0.3, clip_norm=None, channels_last=True, batch_size=7, seed=4)
    plain = json.loads(json.dumps(config.to_dict()))
    assert TrainConfig(**plain) == config
    assert plain.keys() == {field.name for field in dataclasses.fields(TrainConfig)}
    assert TrainConfig(schedule=cosine).to_dict()["schedule"] == "cosine"
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1.0


def test_fast_changes_nothing_that_is_learned() -> None:
    rules = fast_rules("cpu")
    fast, plain = TrainConfig.fast(device="cpu", lr=0.3).to_dict(), TrainConfig(lr=0.3).to_dict()
    assert {name for name in plain if fast[name] != plain[name]} <= {rule.name for rule in rules}
    assert all(fast[rule.name] == rule.value and rule.reason for rule in rules)
    assert TrainConfig.fast(device="cpu", channels_last=False).channels_last is False
    refused((partial(TrainConfig.fast, momentum=0.9), "momentum"))


def test_fast_records_steps_with_cuda_and_compiles_nowhere(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    fast = TrainConfig.fast(device="cuda")
    assert (fast.precision, fast.channels_last, fast.graphs) == ("bf16", True, True)
    assert TrainConfig.fast(device="cpu").graphs is False
    assert [TrainConfig.fast(device=kind).compile for kind in ("cuda", "cpu")] == [False] * 2


@given(st.floats(0, 1), st.floats(0, 0.99))
def test_the_factor_is_the_schedule_after_a_ramp(progress: float, warmup: float) -> None:
    config = TrainConfig(warmup=warmup, schedule=lambda progress: 2 - progress)
    ramp = 1.0 if progress >= warmup else progress / warmup
    assert config.lr_factor(progress) == pytest.approx(ramp * (2 - progress))
    assert TrainConfig().lr_factor(progress) == pytest.approx(
        (1 + math.cos(math.pi * progress)) / 2
    )


ROWS, SIZE, LR = 80, 8, 0.5
BATCHES = ROWS // SIZE


class Ticking(nn.Module):
    """A linear model whose training forward takes exactly ``seconds`` on a clock of its own."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.linear, self.seconds, self.now = nn.Linear(4, 3), seconds, 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) > 3:  # not the rows whose FLOPs are counted
            self.now += self.seconds
        return self.linear(x)


def trainer(budget: Budget, model: nn.Module | None = None, policy: Any = None) -> Trainer:
    data, config = build.rows(ROWS), TrainConfig(lr=LR, report_every=1)
    model = model or build.seeded(Ticking)
    options: dict[str, Any] = {"budget": budget, "policy": policy, "config": config}
    return build.trainer(model, data, data, batch_size=SIZE, **options)


def finish(run: Trainer) -> list[dict[str, Any]]:
    records = [record.metrics for record in run.steps() if record.phase == "train"]
    assert run.done
    return records


def expected_lr(progress: float) -> float:
    return LR * 0.5 * (1 + math.cos(math.pi * progress))


@pytest.mark.parametrize("epochs", [0.3, 1, 2.95])
def test_epochs_may_be_fractional(epochs: float) -> None:
    run = trainer(Budget(epochs=epochs))
    records = finish(run)
    count = math.ceil(epochs * BATCHES - 1e-9)
    assert len(records) == count
    assert records[-1]["progress"] == 1.0
    # each epoch, whole or not, ends with one validation
    assert [e["epoch"] for e in run.history.epochs] == [*range(1, math.ceil(epochs) + 1)]
    assert run.ledger.samples.evaluated == ROWS * math.ceil(epochs)
    spent = [number / (epochs * BATCHES) for number in range(count)]
    assert [record["lr"] for record in records] == pytest.approx(list(map(expected_lr, spent)))


def test_a_budget_of_steps_ends_after_so_many_batches() -> None:
    records = finish(trainer(Budget(steps=13)))
    lrs = [expected_lr(number / 13) for number in range(13)]
    assert [record["lr"] for record in records] == pytest.approx(lrs)


@pytest.mark.parametrize("gated", [False, True])
@settings(max_examples=5, deadline=None)
@given(batches=st.floats(0.1, 25))
def test_flops_end_within_one_batch_of_the_limit(gated: bool, batches: float) -> None:
    dense_batch = 3 * 2 * 4 * 3 * SIZE  # at most: forward and backward, or scoring as well
    limit = batches * dense_batch
    run = trainer(Budget(flops=limit), policy=Gate(0.3) if gated else None)
    records = finish(run)
    spent = [record["flops"] for record in records]
    assert spent[-1] == run.ledger.flops.total >= limit
    assert all(flops < limit for flops in spent[:-1])  # it stopped as soon as it could
    assert spent[-1] - limit < 1.01 * dense_batch
    before = [0.0, *spent[:-1]]
    assert [record["lr"] for record in records] == pytest.approx(
        [expected_lr(flops / limit) for flops in before]
    )
    assert run.ledger.flops.evaluation > 0  # and evaluation was not charged


@pytest.mark.parametrize("limit", [7.5, 100.0])
def test_seconds_are_those_of_training_alone(monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
    model = Ticking(seconds=1.0)
    clock = SimpleNamespace(perf_counter=lambda: model.now)
    monkeypatch.setattr("astkit.profiling.ledger.time", clock)
    run, records = trainer(Budget(seconds=limit), model), []
    for record in run.steps():
        model.now += 100.0  # the reader's time is not the run's
        if record.phase == "train":
            records.append(record.metrics)
    assert run.ledger.seconds["training"] == len(records) == math.ceil(limit)
    lrs = [expected_lr(number / limit) for number in range(len(records))]
    assert [record["lr"] for record in records] == pytest.approx(lrs)
