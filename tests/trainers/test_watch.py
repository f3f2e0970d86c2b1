"""A watch records what a plain loop over the batch finds, and the training does not notice."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from astkit.gating import Gate
from astkit.profiling.ledger import Ledger
from astkit.trainers import (
    Budget,
    DenseStep,
    GatedStep,
    SampleStep,
    StepResult,
    TrainConfig,
    Trainer,
    Watch,
)

STEPS = {
    "dense": DenseStep,
    "gated": lambda: GatedStep(Gate(0.2)),
    "top_k": lambda: GatedStep(Gate(0.2, controller="top_k")),
    "per_batch": lambda: SampleStep(Gate(0.2), "per_batch"),
    "per_sample": lambda: SampleStep(Gate(0.2), "per_sample"),
}


class Kept:
    """A step that keeps each batch's targets and result, for a test to count over."""

    def __init__(self, step):
        self.step, self.batches = step, []

    @property
    def gate(self):
        return self.step.gate

    def __call__(self, learner, batch, weight, ledger):
        result = self.step(learner, batch, weight, ledger)
        self.batches.append((batch.y, result))
        return result

    def state_dict(self):
        return self.step.state_dict()

    def load_state_dict(self, state):
        self.step.load_state_dict(state)


@pytest.fixture
def train(cnn, double_loader):
    def make(step, epochs=2):
        data = double_loader(160, 32, shuffle=True)
        config = TrainConfig(lr=3e-3)
        return Trainer(cnn(), data, budget=Budget(epochs=epochs), step=step, config=config)

    return make


@pytest.mark.parametrize("name", STEPS)
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


@pytest.mark.parametrize("name", ["gated", "top_k", "per_batch", "per_sample"])
def test_scores_are_the_quantiles_of_each_batch(name, train):
    kept = Kept(STEPS[name]())
    trainer = train(Watch(kept, levels=(0, 0.25, 0.5, 1)))
    history = trainer.run()
    rows = iter(trainer.step.scores)
    for entry, (_, result) in zip(history.steps, kept.batches, strict=True):
        for level in (0, 0.25, 0.5, 1):
            row = next(rows)
            expected = np.quantile(result.scores.numpy(), level)
            assert row.pop("score") == pytest.approx(expected, rel=1e-12)
            same = {key: entry[key] for key in ("step", "threshold", "rate")}
            assert row == {"level": level, **same}
    assert next(rows, None) is None


@pytest.mark.parametrize("name", ["gated", "top_k", "per_batch", "per_sample"])
def test_classes_count_the_rows_above_the_threshold(name, train):
    kept = Kept(STEPS[name]())
    trainer = train(Watch(kept))
    trainer.run()
    found = {(row["step"], row["class"]): row for row in trainer.step.classes}
    for number, (targets, result) in enumerate(kept.batches, start=1):
        bar, scores = result.selection.threshold, result.scores
        above = scores >= bar if name == "top_k" else scores > bar
        for label in range(10):
            row = found.pop((number, label), {"seen": 0, "active": 0})
            assert row["seen"] == sum(int(y) == label for y in targets)
            assert row["active"] == int((above & (targets == label)).sum())
    assert not found
    active = sum(row["active"] for row in trainer.step.classes)
    assert active == trainer.step.gate.active > 0


def test_without_a_gate_all_rows_are_active_and_there_are_no_scores(train):
    trainer = train(Watch(DenseStep()))
    trainer.run()
    assert trainer.step.scores == []
    assert all(row["seen"] == row["active"] > 0 for row in trainer.step.classes)
    assert sum(row["seen"] for row in trainer.step.classes) == 2 * 160
    assert not hasattr(trainer.step, "gate")


class Fixed:
    """A step that does nothing but return a result made beforehand."""

    def __init__(self, scores, selection):
        self.scores, self.selection = scores, selection

    def __call__(self, learner, batch, weight, ledger):
        rows = self.selection.index
        return StepResult(
            rows, torch.zeros(len(rows)), len(self.scores), self.selection, self.scores
        )

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def observed(gate, scores, targets):
    from astkit.datasets import Batch

    scores = torch.tensor(scores)
    targets = torch.tensor(targets)
    watch = Watch(Fixed(scores, gate.select(scores)), levels=(0, 1))
    watch(None, Batch(torch.arange(len(targets)), targets, targets), None, Ledger())
    return watch


def test_rows_of_the_fallback_are_not_active():
    gate = Gate(0.25, fallback=3, min_active=2)
    gate.select(torch.tensor([1.0, 1.0, 1.0, 4.0]))
    watch = observed(gate, [0.5, 0.4, 0.3, 9.0], [0, 0, 0, 7])
    assert len(watch.step.selection) == 3
    assert [(row["class"], row["active"]) for row in watch.classes] == [(0, 0), (7, 1)]


def test_scores_that_are_not_finite_are_left_out():
    watch = observed(Gate(0.5), [math.nan, 1.0, math.inf, 3.0, 2.0, 4.0], [5, 1, 5, 2, 1, 2])
    assert [row["score"] for row in watch.scores] == [1.0, 4.0]
    assert {row["class"]: (row["seen"], row["active"]) for row in watch.classes} == {
        1: (2, 0),
        2: (2, 2),
        5: (2, 0),
    }


def test_equal_scores_count_as_many_as_were_drawn():
    with pytest.warns(UserWarning, match="equal"):
        watch = observed(Gate(0.5), [1.0] * 8, [3] * 8)
    assert watch.classes == [{"step": 1, "class": 3, "seen": 8, "active": 4}]


def test_targets_that_are_no_class_indices_have_no_classes():
    watch = observed(Gate(0.5), [1.0, 2.0], [0.1, 0.7])
    assert watch.classes == []
    assert len(watch.scores) == 2


def test_one_batch_in_every_is_recorded(train):
    all_of_them, some = train(Watch(STEPS["gated"]())), train(Watch(STEPS["gated"](), every=4))
    all_of_them.run()
    some.run()
    kept = [1, 5, 9]  # of ten
    for part in ("scores", "classes"):
        rows = getattr(all_of_them.step, part)
        assert getattr(some.step, part) == [row for row in rows if row["step"] in kept]


def test_states_of_bare_and_watched_steps_serve_each_other(train):
    trainer = train(Watch(STEPS["per_sample"]()))
    steps = trainer.steps()
    for _ in range(3):
        next(steps)
    state = copy.deepcopy(trainer.step.state_dict())
    bare, other = STEPS["per_sample"](), Watch(STEPS["per_sample"]())
    bare.load_state_dict(state)
    other.load_state_dict(bare.state_dict())
    assert other.state_dict() == state
    assert other.update == "per_sample"


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


def test_a_watch_can_be_copied():
    watch = Watch(GatedStep(Gate(0.3)), every=2)
    twin = copy.deepcopy(watch)
    twin.gate.target_rate = 0.1
    assert (twin.every, watch.gate.target_rate) == (2, 0.3)


def test_its_work_is_booked_as_logging(train):
    trainer = train(Watch(DenseStep()))
    ledger = Ledger()
    next(trainer.steps())
    batch = next(iter(trainer.train.batches(0)))
    trainer.step(trainer.learner, batch, None, ledger)
    assert set(ledger.phases) == {"forward", "backward", "optimizer", "log"}


@pytest.mark.parametrize(
    ("options", "named"),
    [({"every": 0}, "every is 0"), ({"levels": (0, 1.5)}, r"\[1.5\]"), ({"levels": ()}, "nothing")],
)
def test_impossible_settings_are_refused(options, named):
    with pytest.raises(ValueError, match=named):
        Watch(DenseStep(), **options)
