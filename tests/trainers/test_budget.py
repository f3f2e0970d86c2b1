"""Budgets end where they say, in epochs, FLOPs and seconds, and schedules end with them."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.datasets import Loader
from astkit.gating import Gate
from astkit.profiling.ledger import Ledger
from astkit.trainers import Budget, DenseStep, GatedStep, TrainConfig, Trainer
from astkit.trainers.budget import SCHEDULES, constant, cosine

ROWS, SIZE, LR = 80, 8, 0.5
BATCHES = ROWS // SIZE


class Ticking(nn.Module):
    """A linear model whose training forward takes exactly ``seconds`` on a clock of its own."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.linear, self.seconds, self.now = nn.Linear(4, 3), seconds, 0.0

    def forward(self, x):
        if self.training and len(x) > 2:  # not the two rows of the FLOP count
            self.now += self.seconds
        return self.linear(x)


def trainer(budget, model=None, step=None, **config):
    with rng.isolated("cpu", 0):
        data = TensorDataset(torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,)))
        model = model or Ticking()
    return Trainer(
        model,
        Loader(data, SIZE),
        Loader(data, 40),
        budget=budget,
        step=step or DenseStep(),
        config=TrainConfig(lr=LR, **config),
    )


def finish(run):
    records = list(itertools.islice(run.steps(), 1000))
    assert run.done
    return [record.metrics for record in records if record.phase == "train"]


@pytest.mark.parametrize("epochs", [0.1, 0.25, 0.3, 0.7, 1, 1.1, 2, 2.3, 2.95])
def test_epochs_may_be_fractional(epochs):
    run = trainer(Budget(epochs=epochs))
    records = finish(run)
    assert len(records) == math.ceil(epochs * BATCHES - 1e-9)
    assert records[-1]["progress"] == 1.0
    # each pass, whole or not, ends with one validation
    assert len(run.history.epochs) == math.ceil(epochs)
    assert run.ledger.samples.evaluated == ROWS * math.ceil(epochs)


def expected_lr(progress):
    return LR * 0.5 * (1 + math.cos(math.pi * progress))


@pytest.mark.parametrize("epochs", [0.5, 1, 2.5])
def test_the_rate_is_the_cosine_of_the_epochs_spent(epochs):
    records = finish(trainer(Budget(epochs=epochs)))
    count = len(records)
    assert [record["lr"] for record in records] == pytest.approx(
        [expected_lr(number / count) for number in range(count)]
    )


def test_a_constant_schedule_stays():
    records = finish(trainer(Budget(epochs=1), schedule="constant"))
    assert {record["lr"] for record in records} == {LR}


@pytest.mark.parametrize("kind", ["dense", "gated"])
@settings(max_examples=15, deadline=None)
@given(batches=st.floats(0.1, 25))
def test_flops_end_within_one_batch_of_the_limit(kind, batches):
    step = GatedStep(Gate(0.3)) if kind == "gated" else DenseStep()
    dense_batch = 3 * 2 * 4 * 3 * SIZE  # at most: forward and backward, or scoring as well
    limit = batches * dense_batch
    run = trainer(Budget(flops=limit), step=step)
    records = finish(run)
    spent = [record["flops"] for record in records]
    assert spent[-1] == run.ledger.flops.total >= limit
    assert all(flops < limit for flops in spent[:-1])  # it stopped as soon as it could
    assert spent[-1] - limit < 1.01 * dense_batch
    before = [0.0, *spent[:-1]]
    assert [record["lr"] for record in records] == pytest.approx(
        [expected_lr(flops / limit) for flops in before]
    )
    assert [record["progress"] for record in records] == pytest.approx(
        [min(1.0, flops / limit) for flops in spent]
    )


def test_the_rate_is_nearly_nothing_at_the_end_of_the_flops():
    run = trainer(Budget(flops=10 * ROWS * 48.0))
    records = finish(run)
    assert len(records) >= 50
    assert records[-1]["lr"] < 0.005 * LR
    assert run.ledger.flops.evaluation > 0  # and evaluation was not charged


@pytest.mark.parametrize("limit", [0.5, 7.5, 23.0])
def test_seconds_are_those_of_training_alone(monkeypatch, limit):
    model = Ticking(seconds=1.0)
    clock = SimpleNamespace(perf_counter=lambda: model.now)
    monkeypatch.setattr("astkit.profiling.ledger.time", clock)
    run = trainer(Budget(seconds=limit), model)
    records = []
    for record in itertools.islice(run.steps(), 1000):
        model.now += 100.0  # the reader's time is not the run's
        if record.phase == "train":
            records.append(record.metrics)
    assert run.done
    assert run.ledger.seconds["training"] == len(records)  # one second a batch
    # a batch is booked while its own second still runs, so all may come a batch late
    assert limit <= len(records) <= limit + 2
    for number, record in enumerate(records):
        early, late = number / limit, max(0, number - 1) / limit
        assert expected_lr(min(1, early)) - 1e-12 <= record["lr"] <= expected_lr(late) + 1e-12


def test_the_rate_is_nearly_nothing_at_the_end_of_the_seconds(monkeypatch):
    model = Ticking(seconds=1.0)
    clock = SimpleNamespace(perf_counter=lambda: model.now)
    monkeypatch.setattr("astkit.profiling.ledger.time", clock)
    records = finish(trainer(Budget(seconds=100), model))
    assert records[0]["lr"] == LR
    assert records[-1]["lr"] < 0.005 * LR


@pytest.mark.parametrize(
    "limits", [{}, {"epochs": 1, "flops": 1}, {"epochs": 1, "flops": 1, "seconds": 1}]
)
def test_exactly_one_limit_is_wanted(limits):
    with pytest.raises(ValueError, match="give exactly one of epochs, flops and seconds"):
        Budget(**limits)


@pytest.mark.parametrize("name", ["epochs", "flops", "seconds"])
@pytest.mark.parametrize("limit", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf])
def test_a_limit_is_positive_and_finite(name, limit):
    with pytest.raises(ValueError, match=f"budget {name} is .*: give a positive, finite number"):
        Budget(**{name: limit})


@given(
    name=st.sampled_from(["epochs", "flops", "seconds"]),
    limit=st.floats(1e-3, 1e12),
    share=st.floats(0, 3),
)
def test_the_share_spent_is_in_its_range(name, limit, share):
    ledger = Ledger()
    ledger.flops.evaluation = ledger.seconds["evaluation"] = 1e15  # never charged
    ledger.flops.scoring, ledger.flops.forward = 0.25 * share * limit, 0.25 * share * limit
    ledger.flops.backward = 0.5 * share * limit
    ledger.seconds["training"] = share * limit
    spent = Budget(**{name: limit}).spent(share * limit, ledger)
    assert spent == pytest.approx(min(1.0, share))
    assert spent <= 1.0


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_cosine_falls_from_one_to_nothing(first, second):
    assert cosine(0) == constant(0) == constant(1) == 1
    assert cosine(0.5) == pytest.approx(0.5)
    assert cosine(1) == pytest.approx(0, abs=1e-15)
    if first <= second:
        assert 1 >= cosine(first) >= cosine(second) >= 0


def test_the_schedules_by_name():
    assert sorted(SCHEDULES) == ["constant", "cosine"]
    assert (SCHEDULES["constant"], SCHEDULES["cosine"]) == (constant, cosine)
