"""A watch records what a plain loop over the batch finds, and the training does not notice."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from astkit.trainers.watch import LEVELS

from astkit.datasets import Batch
from astkit.gating import DeviceGate, Gate
from astkit.profiling.ledger import Ledger
from astkit.trainers import (
    DenseStep,
    GatedStep,
    SampleStep,
    StepResult,
    TrainConfig,
    Trainer,
    Watch,
)
from tests.trainers.states import leave_after

STEPS = {
    "dense": DenseStep,
    "gated": lambda: GatedStep(Gate(0.2)),
    "top_k": lambda: GatedStep(Gate(0.2, controller="top_k")),
    "fallback": lambda: GatedStep(Gate(0.02, controller="top_k", fallback=12, min_active=8)),
    "per_sample": lambda: SampleStep(Gate(0.2), "per_sample"),
}


@pytest.fixture
def train(cnn, double_loader):
    def make(step, epochs=2, **options):
        config = TrainConfig(lr=3e-3)
        return Trainer(cnn(), double_loader(), epochs=epochs, step=step, config=config, **options)

    return make


@pytest.mark.parametrize("name", ["dense", "gated", "per_sample"])
def test_training_is_the_same_to_the_bit(name, train):
    plain, watched = train(STEPS[name]()), train(Watch(STEPS[name]()))
    plain.run()
    watched.run()
    ours, theirs = watched.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert watched.history.steps == plain.history.steps
    assert watched.step.state_dict() == plain.step.state_dict()
    assert watched.ledger.samples == plain.ledger.samples
    assert watched.step.classes  # it did look


@pytest.mark.parametrize("name", STEPS)
def test_scores_and_classes_are_those_of_a_plain_loop(name, train, recorded):
    kept = recorded(STEPS[name]())
    trainer = train(Watch(kept))
    history = trainer.run()
    rows = iter(trainer.step.scores)
    found = {(row["step"], row["class"]): row for row in trainer.step.classes}
    for entry, targets, result in zip(history.steps, kept.targets, kept.results, strict=True):
        chosen, scores = result.selection, result.scores
        if name == "dense":
            above = torch.ones(len(targets), dtype=torch.bool)
        else:
            for level in LEVELS:
                row = next(rows)
                assert row.pop("score") == pytest.approx(np.quantile(scores.numpy(), level))
                same = {key: entry[key] for key in ("step", "threshold", "rate")}
                assert row == {"level": level, **same}
            ties = kept.gate.controller.held is False  # top-k takes the threshold's row, too
            above = scores >= chosen.threshold if ties else scores > chosen.threshold
            assert chosen.fallback or name != "fallback"
        for label in range(10):
            row = found.pop((entry["step"], label), {"seen": 0, "active": 0})
            assert row["seen"] == sum(int(y) == label for y in targets)
            assert row["active"] == int((above & (targets == label)).sum())
    assert not found
    assert next(rows, None) is None
    if name != "dense":
        active = sum(row["active"] for row in trainer.step.classes)
        assert active == trainer.step.gate.active > 0
    else:
        assert not hasattr(trainer.step, "gate")


class Fixed:
    """A step that does nothing but return a result made beforehand."""

    def __init__(self, scores, selection):
        self.scores, self.selection = scores, selection

    def __call__(self, learner, batch, weight, ledger):
        chosen, rows = self.selection, self.selection.index
        return StepResult(rows, torch.zeros(len(rows)), len(self.scores), chosen, self.scores)


def observed(gate, scores, targets):
    scores, targets = torch.tensor(scores), torch.tensor(targets)
    watch = Watch(
        Fixed(scores, gate.select(scores)),
    )
    watch(None, Batch(torch.arange(len(targets)), targets, targets), None, Ledger())
    return watch


def test_rows_of_the_fallback_and_padding_are_not_active():
    gate = Gate(0.25, fallback=3, min_active=2)
    gate.select(torch.tensor([1.0, 1.0, 1.0, 4.0]))
    watch = observed(gate, [0.5, 0.4, 0.3, 9.0], [0, 0, 0, 7])
    assert len(watch.step.selection) == 3
    assert [(row["class"], row["active"]) for row in watch.classes] == [(0, 0), (7, 1)]
    watch = observed(DeviceGate(1.0), [math.nan, 0.4, math.inf, 9.0], [0, 7, 0, 7])
    assert len(watch.step.selection) == 4
    assert [(row["class"], row["active"]) for row in watch.classes] == [(0, 0), (7, 2)]


def test_a_batch_that_could_not_be_trained_on_is_recorded():
    chosen = Gate(0.25, fallback=1).select(torch.tensor([2.0, 1.0]))
    watch = Watch(lambda *_: StepResult(chosen.index[:0], torch.empty(0), 2, chosen, None))
    watch(None, Batch(torch.arange(2), torch.arange(2), torch.arange(2)), None, Ledger())
    assert [row["active"] for row in watch.classes] == [0, 0]


def test_odd_batches_are_recorded_as_they_are():
    watch = observed(Gate(0.5), [math.nan, 1.0, math.inf, 3.0, 2.0, 4.0], [5, 1, 5, 2, 1, 2])
    assert [watch.scores[i]["score"] for i in (0, -1)] == [1.0, 4.0]  # the finite ones
    found = {row["class"]: (row["seen"], row["active"]) for row in watch.classes}
    assert found == {1: (2, 0), 2: (2, 2), 5: (2, 0)}
    with pytest.warns(UserWarning, match="equal"):
        watch = observed(Gate(0.5), [1.0] * 8, [3] * 8)
    assert watch.classes == [{"step": 1, "class": 3, "seen": 8, "active": 4}]
    watch = observed(Gate(0.5), [1.0, 2.0], [0.1, 0.7])  # no class indices
    assert (watch.classes, len(watch.scores)) == ([], len(LEVELS))


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("fallback", Watch, lambda step: step), ("per_sample", lambda step: step, Watch)],
)
def test_runs_with_and_without_a_watch_exchange_checkpoints(
    train, difference, tmp_path, name, first, second
):
    whole = train(STEPS[name]())
    whole.run()
    leave_after(train(first(STEPS[name]()), checkpoints=tmp_path), 3)
    resumed = train(second(STEPS[name]()), checkpoints=tmp_path, resume=True)
    assert resumed.position.step == 3
    resumed.run()
    assert difference(resumed.model, whole.model) == 0
    assert resumed.step.state_dict() == whole.step.state_dict()


def test_a_watch_goes_on_counting_where_the_gate_stands(train):
    trainer = train(STEPS["gated"]())
    steps = trainer.steps()
    for _ in range(3):
        next(steps)
    trainer.step = watch = Watch(trainer.step)
    state = None
    for record in steps:
        if record.step == 5:
            state = copy.deepcopy(watch.state_dict())
    assert sorted({row["step"] for row in watch.scores}) == [4, 5, 6, 7, 8, 9, 10]
    watch.load_state_dict(state)
    assert sorted({row["step"] for row in watch.scores}) == [4, 5]
    twin = copy.deepcopy(watch)
    twin.gate.target_rate = 0.1
    assert watch.gate.target_rate == 0.2


def test_its_work_is_booked_as_logging(train):
    trainer, ledger = train(Watch(DenseStep())), Ledger()
    next(trainer.steps())
    trainer.step(trainer.learner, next(iter(trainer.train.batches(0))), None, ledger)
    assert set(ledger.phases) == {"forward", "backward", "optimizer", "log"}
