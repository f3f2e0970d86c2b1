"""Budgets end where they say and schedules with them; steering is kept; histories are bounded."""

from __future__ import annotations

import copy
import json
import math
import threading
from types import SimpleNamespace

import pytest
import torch
from astkit.trainers.resume import _check_optimizer
from astkit.trainers.state import History, Steering
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.datasets import Loader
from astkit.gating import Gate, OriginPI, TopK
from astkit.profiling.ledger import Ledger
from astkit.trainers import Budget, Event, TimeIsUp, TrainConfig, Trainer
from tests.trainers.states import hand_over, leave_after

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


def trainer(budget, model=None, policy=None, **config):
    with rng.isolated("cpu", 0):
        data = TensorDataset(torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,)))
        model = model or Ticking()
    return Trainer(
        model,
        Loader(data, SIZE),
        Loader(data, 40),
        budget=budget,
        policy=policy,
        config=TrainConfig(lr=LR, **config),
        device="cpu",
    )


def finish(run):
    records = [record.metrics for record in run.steps() if record.phase == "train"]
    assert run.done
    return records


def expected_lr(progress):
    return LR * 0.5 * (1 + math.cos(math.pi * progress))


# --- budgets and schedules


@pytest.mark.parametrize("epochs", [0.3, 1, 2.95])
def test_epochs_may_be_fractional(epochs):
    run = trainer(Budget(epochs=epochs))
    records = finish(run)
    count = math.ceil(epochs * BATCHES - 1e-9)
    assert len(records) == count
    assert records[-1]["progress"] == 1.0
    # each epoch, whole or not, ends with one validation
    assert len(run.history.epochs) == math.ceil(epochs)
    assert run.ledger.samples.evaluated == ROWS * math.ceil(epochs)
    spent = [number / (epochs * BATCHES) for number in range(count)]
    assert [record["lr"] for record in records] == pytest.approx(list(map(expected_lr, spent)))


def test_a_budget_of_steps_ends_after_so_many_batches():
    records = finish(trainer(Budget(steps=13)))
    assert len(records) == 13
    lrs = [expected_lr(number / 13) for number in range(13)]
    assert [record["lr"] for record in records] == pytest.approx(lrs)


def test_a_constant_schedule_stays():
    records = finish(trainer(Budget(epochs=1), schedule="constant"))
    assert {record["lr"] for record in records} == {LR}


@pytest.mark.parametrize("gated", [False, True])
@settings(max_examples=5, deadline=None)
@given(batches=st.floats(0.1, 25))
def test_flops_end_within_one_batch_of_the_limit(gated, batches):
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
    assert [record["progress"] for record in records] == pytest.approx(
        [min(1.0, flops / limit) for flops in spent]
    )
    assert run.ledger.flops.evaluation > 0  # and evaluation was not charged


@pytest.mark.parametrize("limit", [7.5, 100.0])
def test_seconds_are_those_of_training_alone(monkeypatch, limit):
    model = Ticking(seconds=1.0)
    clock = SimpleNamespace(perf_counter=lambda: model.now)
    monkeypatch.setattr("astkit.profiling.ledger.time", clock)
    run = trainer(Budget(seconds=limit), model)
    records = []
    for record in run.steps():
        model.now += 100.0  # the reader's time is not the run's
        if record.phase == "train":
            records.append(record.metrics)
    assert run.ledger.seconds["training"] == len(records)  # one second a batch
    # a batch is booked while its own second still runs, so all may come a batch late
    assert limit <= len(records) <= limit + 2
    for number, record in enumerate(records):
        early, late = number / limit, max(0, number - 1) / limit
        assert expected_lr(min(1, early)) - 1e-12 <= record["lr"] <= expected_lr(late) + 1e-12
    if limit == 100.0:
        assert records[-1]["lr"] < 0.005 * LR


def test_exactly_one_positive_finite_limit_is_wanted():
    for limits in ({}, {"epochs": 1, "flops": 1}, {"epochs": 1, "steps": 1, "seconds": 1}):
        with pytest.raises(ValueError, match="give exactly one of epochs, steps, flops and sec"):
            Budget(**limits)
    for name in ("epochs", "steps", "flops", "seconds"):
        for limit in (0, -0.5, math.nan, math.inf, -math.inf, "3"):
            with pytest.raises(ValueError, match=f"budget {name} is .*: give a positive, finite"):
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


def test_the_process_time_budget_ends_a_run_driven_through_steps(monkeypatch, tmp_path):
    def make(folder, **options):
        data = TensorDataset(torch.ones(80, 4), torch.arange(80) % 3)
        options |= {"epochs": 1, "batch_size": 8, "checkpoints": folder, "device": "cpu"}
        return Trainer(Ticking(), data, **options)

    monkeypatch.setenv("ASTKIT_TIME_BUDGET_H", "1e-9")
    steps = make(tmp_path / "saved").steps()
    assert next(steps).step == 1
    with pytest.raises(TimeIsUp, match=r"after step 1; saved in .*resume=True"):
        next(steps)
    with pytest.raises(TimeIsUp, match="after step 1; nothing was saved"):
        make(None).run()
    monkeypatch.setenv("ASTKIT_TIME_BUDGET_H", "soon")
    with pytest.raises(ValueError, match="ASTKIT_TIME_BUDGET_H is 'soon': give hours"):
        make(None).run()
    monkeypatch.delenv("ASTKIT_TIME_BUDGET_H")
    resumed = make(tmp_path / "saved", resume=True)
    assert resumed.position.step == 1
    resumed.run()
    assert resumed.done


# --- steering


CHANGES = [(3, "target_rate", 0.5), (7, "gain", 2.0), (11, "controller", "top_k")]


def steered(run, changes=CHANGES):
    """Run to the end, making each (step, name, value) of ``changes`` after that many batches."""
    wanted = list(changes)
    for record in run.steps():
        while wanted and wanted[0][0] == record.step:
            run.steer(*wanted.pop(0)[1:])
    return run


@pytest.fixture
def build(cnn, double_loader):
    def make(gate=None, **options):
        gate = gate or Gate(0.2)
        return Trainer(cnn(), double_loader(), budget=Budget(epochs=4), policy=gate, **options)

    return make


def test_a_change_takes_effect_before_the_next_batch_and_can_be_replayed(build, difference):
    run = steered(build())
    rates = [step["target_rate"] for step in run.history.steps]
    assert rates == [0.2] * 3 + [0.5] * 17
    assert isinstance(run.step.gate.controller, TopK)
    assert [step["rate"] for step in run.history.steps][11:] == [0.5] * 9
    assert [tuple(vars(event).values()) for event in run.steering.events] == CHANGES
    assert [(e["step"], e["name"], e["value"]) for e in run.history.events] == CHANGES

    events = json.loads(json.dumps(run.state_dict()["events"]))
    again, plain = steered(build(replay=events), []), steered(build(), [])
    assert difference(run.model, again.model) == 0
    assert again.steering.events == run.steering.events
    assert plain.history.events == []
    assert difference(run.model, plain.model) > 1e-4
    for cut in (3, 12):  # a resumed run makes the changes that are left
        first = leave_after(build(replay=events), cut)
        second = steered(hand_over(first, build(replay=events)), [])
        assert difference(second.model, run.model) == 0
        assert second.steering.events == run.steering.events


@pytest.mark.parametrize("value", [2.0, "high", None])
def test_an_invalid_value_stops_no_run(build, value):
    run = build()
    run.steer("target_rate", value)
    with pytest.warns(UserWarning, match="the setting was not changed"):
        next(run.steps())
    assert run.steering.events == []


def test_the_last_of_several_values_counts_and_gains_can_be_turned(build):
    run = build(Gate(controller=OriginPI(0.2)))
    for rate in (0.3, 0.4, 0.6):
        run.steer("target_rate", rate)
    run.steer("kp", 0.25)
    run.run()
    assert run.steering.events == [Event(0, "target_rate", 0.6), Event(0, "kp", 0.25)]
    assert run.step.gate.controller.kp == 0.25


def test_a_slip_of_the_hand_does_not_end_the_run(build):
    slips = [
        ("target_rate", 1.5, "target_rate is 1.5"),
        ("momentum", 1.0, "no setting 'momentum' to steer: choose one of target_rate, controller"),
        ("controller", "pid", "unknown controller 'pid'"),
    ]
    run = build()
    steps = run.steps()
    for name, value, sentence in slips:
        run.steer(name, value)
        with pytest.warns(UserWarning, match=sentence):
            next(steps)
    assert run.steering.events == []
    with pytest.raises(ValueError, match="DenseStep has no setting 'target_rate' to steer"):
        trainer(Budget(epochs=1)).steer("target_rate", 0.3)


def test_changes_come_from_any_thread():
    steering = Steering()
    threads = [threading.Thread(target=steering.put, args=(f"gain{i}", i)) for i in range(50)]
    for thread in threads:
        thread.start()
    taken = {}
    while len(taken) < 50:
        taken |= dict(steering.due(0))
    for thread in threads:
        thread.join()
    assert taken == {f"gain{i}": i for i in range(50)}
    assert steering.due(1) == []


# --- history


def test_batches_and_epochs_are_kept_apart_and_validation_batches_not_at_all():
    history = History()
    history.log(1, phase="train", loss=2.0, epoch=0)
    history.close()  # it continues after that
    history.log(2, phase="train", loss=None, epoch=0)
    history.log(2, phase="validate", epoch=0)
    history.log(2, phase="epoch", val_accuracy=0.5, epoch=1)
    assert history.steps == [
        {"step": 1, "loss": 2.0, "epoch": 0},
        {"step": 2, "loss": None, "epoch": 0},
    ]
    assert history.epochs == [{"step": 2, "val_accuracy": 0.5, "epoch": 1}]


@pytest.mark.parametrize("every", [1, 7])
def test_the_history_stays_bounded_over_50_000_steps(every):
    history = History(every, limit=1000)
    for step in range(1, 50_001):
        history.log(step, phase="train", loss=0.0)
        assert len(history.steps) <= 1000
    kept = [entry["step"] for entry in history.steps]
    assert len(kept) > 400
    assert kept == list(range(1, 50_001, history.every))  # evenly, from the first on
    assert math.log2(history.every / every).is_integer()
    assert trainer(Budget(epochs=1)).history.limit <= 100_000  # the default is bounded too


def test_a_run_keeps_the_batches_that_metrics_every_reports():
    run = trainer(Budget(epochs=2), metrics_every=4)
    steps = run.run().steps
    assert [entry["step"] for entry in steps] == [1, 5, 9, 13, 17]
    assert all(entry["loss"] is not None for entry in steps)


def test_settings_of_an_optimizer_that_would_fail_at_the_next_step_are_refused():
    optimizer = torch.optim.AdamW([torch.ones(2, requires_grad=True) for _ in range(2)])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.param_groups[0]["params"][1].grad = torch.ones(2)
    optimizer.step()
    now = optimizer.state_dict()
    _check_optimizer(now, copy.deepcopy(now))
    for change in (
        lambda state: state["param_groups"][0].pop("weight_decay"),
        lambda state: state["param_groups"][0].update(maximize={}),
        lambda state: state["param_groups"][0].update(betas=(0.9, {})),
        lambda state: state["param_groups"].pop(),
    ):
        then = copy.deepcopy(now)
        change(then)
        with pytest.raises(ValueError, match="other settings"):
            _check_optimizer(now, then)
