"""Row by row: the exact twin of the batched gate, and the origin's loop, against plain loops."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from astkit.datasets import Loader
from astkit.gating import Gate, LogIntegral, OriginPI, Policy, Selection
from astkit.trainers import DenseStep, GatedStep, SampleStep, TrainConfig, Trainer
from tests.trainers.states import hand_over, leave_after

STEPS, EPOCHS = 20, 4  # 160 rows in batches of 32
CONFIG = TrainConfig(lr=1e-2)
TOLERANCE = 1e-10


def build_gate(score, controller, kind=Gate, **options):
    if controller == "origin_pi":  # its own start admits every row for as long as losses are high
        start = 1.0 if score == "loss" else 0.5
        controller = OriginPI(0.3, kp=0.05, ki=0.001, start=start)
    return kind(target_rate=0.3, score=score, controller=controller, **options)


@pytest.fixture
def train(cnn, double_loader, recorded):
    """One run of 20 float64 steps; ``trainer.step.rows`` holds the rows it trained on."""

    def run(make_step, batch_norm=False, seed=0):
        step = recorded(make_step())
        trainer = Trainer(
            cnn(seed, batch_norm=batch_norm),
            double_loader(seed=seed),
            epochs=EPOCHS,
            step=step,
            config=CONFIG,
        )
        trainer.run()
        assert len(step.rows) == STEPS
        return trainer

    return run


def assert_twins(batched, rowwise, difference):
    """The same rows in every step and, to 1e-10, the same parameters at the end."""
    pairs = zip(batched.step.rows, rowwise.step.rows, strict=True)
    for number, (ours, theirs) in enumerate(pairs):
        assert ours == theirs, f"step {number} trained on different rows"
    distance = difference(batched.model, rowwise.model)
    assert distance <= TOLERANCE, f"parameters differ by {distance}"


class Flipped(Gate):
    """A gate whose eighth batch has one decision turned round."""

    def select(self, scores):
        number = self.batches
        chosen = super().select(scores)
        return self._flipped(chosen) if number == 7 else chosen

    def _flipped(self, chosen: Selection) -> Selection:
        return dataclasses.replace(chosen, index=chosen.index[1:], weight=chosen.weight[1:])


EVERYTHING = "loss + 0.5*el2n + 0.3*contrast"


@pytest.mark.filterwarnings("ignore:all scores of a batch are equal")
@pytest.mark.parametrize(
    ("score", "controller"),
    [
        ("loss", "log_integral"),
        ("loss_and_contrast", "origin_pi"),
        (EVERYTHING, "top_k"),
    ],
)
def test_batched_gate_and_its_twin_agree(train, difference, score, controller):
    batched = train(lambda: GatedStep(build_gate(score, controller)))
    rowwise = train(lambda: SampleStep(build_gate(score, controller), "per_batch"))
    assert_twins(batched, rowwise, difference)
    assert batched.ledger.flops == rowwise.ledger.flops
    # the gate must have had something to decide, or equal decisions would prove nothing
    sizes = [len(rows) for rows in batched.step.rows]
    assert sum(0 < size < 32 for size in sizes) >= 5


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("controller", ["log_integral", "origin_pi", "top_k"])
@pytest.mark.parametrize("score", ["loss", "loss_and_contrast"])
def test_they_agree_for_other_weights_and_orders(train, difference, score, controller, seed):
    batched = train(lambda: GatedStep(build_gate(score, controller)), seed=seed)
    rowwise = train(lambda: SampleStep(build_gate(score, controller), "per_batch"), seed=seed)
    assert_twins(batched, rowwise, difference)


def test_one_flipped_decision_or_a_millionth_in_one_parameter_is_noticed(train, difference):
    rowwise = train(lambda: SampleStep(build_gate("loss", "log_integral"), "per_batch"))
    flipped = train(lambda: GatedStep(build_gate("loss", "log_integral", Flipped)))
    with pytest.raises(AssertionError, match="step 7 trained on different rows"):
        assert_twins(flipped, rowwise, difference)
    assert difference(flipped.model, rowwise.model) > 1e-6  # and the weights alone would tell
    batched = train(lambda: GatedStep(build_gate("loss", "log_integral")))
    assert difference(batched.model, train(DenseStep).model) > 1e-3
    with torch.no_grad():
        next(rowwise.model.parameters()).view(-1)[3] += 1e-6
    with pytest.raises(AssertionError, match="parameters differ"):
        assert_twins(batched, rowwise, difference)


def test_batch_norm_makes_them_two_algorithms(train, difference):
    steps = [GatedStep, lambda gate: SampleStep(gate, "per_batch")]
    batched, rowwise = (
        train(lambda step=step: step(build_gate("loss", "log_integral")), batch_norm=True)
        for step in steps
    )
    assert batched.step.rows[0] == rowwise.step.rows[0]  # scored in eval mode from equal weights
    assert difference(batched.model, rowwise.model) > 1e-3


class Weighted(Policy):
    """Every row in order, each with its own weight."""

    def plan(self, run):
        rows = torch.arange(run.samples)
        return Selection(rows, 0.5 + rows % 5)


def test_twins_agree_on_weighted_rows(cnn, double_loader, recorded, difference):
    gated, rowwise, plain = (
        Trainer(cnn(), double_loader(), epochs=1, step=recorded(step), policy=policy)
        for step, policy in (
            (GatedStep(build_gate("loss", "log_integral")), Weighted()),
            (SampleStep(build_gate("loss", "log_integral"), "per_batch"), Weighted()),
            (GatedStep(build_gate("loss", "log_integral")), None),
        )
    )
    for trainer in (gated, rowwise, plain):
        trainer.run()
    assert_twins(gated, rowwise, difference)
    assert difference(gated.model, plain.model) > 1e-6


def running(features, reference, count):
    return [r + (f - r) / (count + 1) for f, r in zip(features, reference, strict=True)]


class PlainOrigin:
    """The origin's loop for loss and contrast, in Python numbers; nothing of astkit.gating.

    Each row is held against the running means of all rows that were scored before it (itself, if
    it is the first), the first batch being scored once beforehand to set the threshold.
    """

    def __init__(self, model, controller, target, lr):
        self.model, self.controller, self.target, self.lr = model, controller, target, lr
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
        self.reference, self.count = None, 0
        self.threshold, self.ema, self.integral = None, target, 0.0

    def score(self, x, y):
        self.model.eval()
        with torch.no_grad():
            loss = F.cross_entropy(self.model(x[None]), y[None]).item()
        self.model.train()
        pixels = x.flatten().tolist()
        mean = sum(pixels) / len(pixels)
        contrast = math.sqrt(sum((p - mean) ** 2 for p in pixels) / (len(pixels) - 1))
        features = [loss, contrast]
        reference = features if self.reference is None else self.reference
        halves = [min(f / (r + 1e-6), 2) / 2 for f, r in zip(features, reference, strict=True)]
        self.reference = running(features, reference, self.count)
        self.count += 1
        return 0.7 * halves[0] + 0.3 * halves[1]

    def train_row(self, x, y):
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x[None]), y[None]).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def batch(self, x, y, progress):
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * 0.5 * (1 + math.cos(math.pi * progress))
        if self.threshold is None:
            scores = sorted(self.score(*row) for row in zip(x, y, strict=True))
            place = (1 - self.target) * (len(scores) - 1)
            low = scores[int(place)]
            quantile = low + (scores[int(place) + 1] - low) * (place - int(place))
            self.threshold = quantile if self.controller == "log_integral" else 0.5
        active = []
        for i, row in enumerate(zip(x, y, strict=True)):
            if self.score(*row) > self.threshold:
                active.append(i)
                self.train_row(*row)
        self.adapt(len(active) / len(y))
        return active

    def adapt(self, rate):
        if self.controller == "log_integral":
            self.threshold *= math.exp(0.5 * (rate - self.target))
            return
        self.ema = 0.3 * rate + 0.7 * self.ema
        error = self.ema - self.target
        moved = self.threshold + 0.05 * error + 0.001 * self.integral
        self.integral = self.integral + error if 0.01 < moved < 0.99 else 0.9 * self.integral
        self.threshold = min(max(moved, 0.0), 1.0)


@pytest.mark.parametrize("controller", ["log_integral", "origin_pi"])
def test_per_sample_is_the_plain_loop(cnn, double_loader, recorded, difference, controller):
    built = build_gate("loss_and_contrast", controller, fallback=0)
    loader = double_loader(rows=90, batch_size=30)
    model, plain = cnn(), PlainOrigin(cnn(), controller, 0.3, lr=1e-3)
    step = recorded(SampleStep(built))
    config = TrainConfig(lr=1e-3)
    Trainer(model, loader, epochs=1, step=step, config=config).run()
    for number, batch in enumerate(loader.batches(0)):
        active = plain.batch(batch.x, batch.y, number / 3)
        assert step.rows[number] == batch.index[active].tolist()
        assert step.results[number].selection.rate == len(active) / 30
    assert difference(model, plain.model) <= TOLERANCE
    assert any(0 < len(rows) < 30 for rows in step.rows)
    assert difference(model, cnn()) > 1e-3
    assert built.controller.value == pytest.approx(plain.threshold, rel=1e-12)
    assert step.results[0].selection.threshold != built.controller.value  # it did adapt


def test_per_sample_trains_each_row_with_the_weights_of_the_rows_before(cnn, double_loader):
    """One step for each active row, not one a batch: counted by the optimizer itself."""
    for update, expected in (("per_sample", 20), ("per_batch", 1)):
        trainer = Trainer(
            cnn(),
            double_loader(rows=20, batch_size=20),
            epochs=1,
            step=SampleStep(Gate(1.0, controller=Held(1.0, -1.0)), update),
        )
        trainer.run()
        taken = next(iter(trainer.learner.optimizer.state.values()))["step"]
        assert int(taken) == expected


class Held(LogIntegral):
    """A threshold that never moves."""

    def __init__(self, target_rate, value):
        super().__init__(target_rate)
        self.value = value

    def update(self, rate, scores):
        pass


@pytest.mark.parametrize("fallback", [0, 3])
def test_per_sample_falls_back_when_nothing_is_active(
    cnn, double_loader, recorded, difference, unchanged, fallback
):
    gate = Gate(score="loss", controller=Held(0.1, 1e9), fallback=fallback)
    loader = double_loader(rows=60, batch_size=20)
    step = recorded(SampleStep(gate))
    trainer = Trainer(
        cnn(),
        loader,
        epochs=1,
        step=step,
        config=TrainConfig(lr=1e-2, schedule="constant"),
    )
    if fallback == 0:
        with unchanged(trainer.model):
            trainer.run()
    trainer.run()
    assert [len(set(rows)) for rows in step.rows] == [fallback] * 3
    assert gate.rate == 0.0
    assert gate.fallback_rows == 3 * fallback
    assert trainer.ledger.samples.trained == 3 * fallback
    assert trainer.ledger.samples.skipped == 60 - 3 * fallback

    model = cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    for rows, batch in zip(step.rows, loader.batches(0), strict=True):
        assert set(rows) <= set(batch.index.tolist())
        for row in rows:
            place = batch.index.tolist().index(row)
            optimizer.zero_grad()
            x, y = batch.x[place : place + 1], batch.y[place : place + 1]
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert difference(trainer.model, model) <= TOLERANCE


def test_per_sample_leaves_out_rows_without_a_score(cnn, digits, recorded):
    x, y = digits.images[:60].double() / 255, digits.labels[:60]
    x[[3, 25], 0, 4, 4] = math.nan
    data = Loader(torch.utils.data.TensorDataset(x, y), 20, shuffle=False)
    gate = Gate(1.0, "loss_and_contrast", Held(1.0, 1e-6), fallback=20)
    step = recorded(SampleStep(gate))
    trainer = Trainer(cnn(), data, epochs=1, step=step)
    trainer.run()
    assert [sorted(rows) for rows in step.rows] == [
        [row for row in range(first, first + 20) if row not in (3, 25)] for first in (0, 20, 40)
    ]
    assert gate.nonfinite == 2
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_per_sample_state_survives_json_in_full_precision(cnn, double_loader, difference):
    """Left between two batches and taken up by a new trainer, with a float64 running reference."""

    def make():
        step = SampleStep(build_gate("loss_and_contrast", "log_integral"))
        loader = double_loader(rows=60, batch_size=20)
        return Trainer(cnn(), loader, epochs=1, step=step, config=CONFIG)

    whole, first = make(), leave_after(make(), 1)
    whole.run()
    second = hand_over(first, make())
    second.step.load_state_dict(json.loads(json.dumps(first.step.state_dict())))
    assert second.step.state_dict() == first.step.state_dict()
    second.run()
    assert difference(whole.model, second.model) == 0.0
    assert second.step.score.state_dict() == whole.step.score.state_dict()


def test_impossible_steps_are_refused():
    with pytest.raises(ValueError, match=r"TopK needs a whole batch of scores.*'log_integral'"):
        SampleStep(Gate(controller="top_k"))
    SampleStep(Gate(controller="top_k"), "per_batch")
    with pytest.raises(ValueError, match="update is 'per_row': choose 'per_sample' or 'per_batch'"):
        SampleStep(Gate(), "per_row")
    step = SampleStep(Gate(0.5))
    step.steer("controller", "top_k")
    data = [(torch.randn(8, 4), torch.randint(3, (8,)))]
    with pytest.raises(ValueError, match="TopK needs a whole batch of scores"):
        Trainer(nn.Linear(4, 3), data, epochs=1, step=step, device="cpu").run()


@pytest.mark.parametrize("update", ["per_batch", "per_sample"])
def test_batch_norm_on_vectors_is_refused_with_the_remedy(update):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3))
    data = [(torch.randn(8, 4), torch.randint(3, (8,)))]
    step = SampleStep(Gate(0.5), update)
    with pytest.raises(ValueError, match=r"BatchNorm cannot .* use LayerNorm, or"):
        Trainer(model, data, epochs=1, step=step, device="cpu").run()
