"""Dense and gated steps against hand-written loops in plain PyTorch, float64, to 1e-10."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from astkit.datasets import Loader
from astkit.datasets.batch import Batch
from astkit.gating import DeviceGate, Gate, LogIntegral, OriginPI, Policy, Selection
from astkit.trainers import DenseStep, GatedStep, StepResult, TrainConfig, Trainer

LR, STEPS = 2e-3, 5
CONFIG = TrainConfig(lr=LR, clip_norm=0.5)
TOLERANCE = 1e-10


@pytest.fixture
def spread(cnn):
    """A CNN whose losses differ from row to row from the start, as a trained one's do."""

    def make():
        model = cnn()
        with torch.no_grad():
            model[-1].weight *= 20
        return model

    return make


class PlainLoop:
    """AdamW, clipping and a cosine by hand; scores row by row; nothing of astkit's own.

    ``rule`` turns a batch's loss and contrast (two lists) into scores, ``controller`` is a
    generator: it yields thresholds, given the scores, and is sent the rate that they led to.
    """

    def __init__(self, model, rule=None, controller=None):
        self.model, self.rule, self.controller = model, rule, controller
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)

    def choose(self, x, y):
        self.model.eval()
        with torch.no_grad():
            pairs = [(self.model(x[i : i + 1]), y[i : i + 1]) for i in range(len(y))]
            losses = [F.cross_entropy(*pair).item() for pair in pairs]
        self.model.train()
        scores = self.rule(losses, [contrast(row) for row in x])
        threshold = self.controller.threshold(scores)
        active = [i for i, score in enumerate(scores) if score > threshold]
        self.controller.learn(len(active) / len(y))
        return active

    def step(self, x, y, progress, scale=None):
        """Train on a batch; ``scale`` multiplies the losses of a mean over its rows."""
        for group in self.optimizer.param_groups:
            group["lr"] = LR * (1 + math.cos(math.pi * progress)) / 2
        active = list(range(len(y))) if self.rule is None else self.choose(x, y)
        if not active:
            return active
        losses = F.cross_entropy(self.model(x[active]), y[active], reduction="none")
        scale = torch.ones_like(losses) if scale is None else scale[active]
        total = sum(s * loss for s, loss in zip(scale, losses, strict=True))
        self.optimizer.zero_grad()
        (total / len(active)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return active


def contrast(x):
    pixels = x.flatten().tolist()
    mean = sum(pixels) / len(pixels)
    return math.sqrt(sum((pixel - mean) ** 2 for pixel in pixels) / (len(pixels) - 1))


def loss_alone(losses, contrasts):
    return losses


def loss_and_contrast(losses, contrasts):
    def halves(values):
        mean = sum(values) / len(values)
        return [min(max(value / (mean + 1e-6), 0), 2) / 2 for value in values]

    return [0.7 * a + 0.3 * b for a, b in zip(halves(losses), halves(contrasts), strict=True)]


class PlainLogIntegral:
    """``log t += gain * (rate - target)`` from the first batch's quantile."""

    def __init__(self, target):
        self.target, self.logarithm = target, None

    def threshold(self, scores):
        if self.logarithm is None:
            ordered = sorted(scores)
            place = (1 - self.target) * (len(scores) - 1)
            low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
            self.logarithm = math.log(low + (place - math.floor(place)) * (high - low))
        return math.exp(self.logarithm)

    def learn(self, rate):
        self.logarithm += 0.5 * (rate - self.target)


class PlainOriginPI:
    """The origin's recursion, with gains 0.05 and 0.001 so that it moves within a few steps."""

    def __init__(self, target):
        self.target, self.value, self.ema, self.integral = target, 0.5, target, 0.0

    def threshold(self, scores):
        return self.value

    def learn(self, rate):
        self.ema += 0.3 * (rate - self.ema)
        error = self.ema - self.target
        moved = self.value + 0.05 * error + 0.001 * self.integral
        if 0.01 < moved < 0.99:
            self.integral += error
        else:
            self.integral *= 0.9
        self.value = min(1.0, max(0.0, moved))


class PlainTopK:
    """Just below the ``round(target * batch)``-th best score."""

    def __init__(self, target):
        self.target = target

    def threshold(self, scores):
        wanted = round(self.target * len(scores))
        return math.nextafter(sorted(scores)[-wanted], -math.inf)

    def learn(self, rate):
        pass


RULES = {"loss": loss_alone, "loss_and_contrast": loss_and_contrast}
CONTROLLERS = {
    "log_integral": (PlainLogIntegral, lambda: LogIntegral(0.3)),
    "origin_pi": (PlainOriginPI, lambda: OriginPI(0.3, kp=0.05, ki=0.001)),
    "top_k": (PlainTopK, lambda: "top_k"),
}


@pytest.mark.parametrize(
    ("score", "controller"),
    [
        ("loss", "log_integral"),
        ("loss_and_contrast", "origin_pi"),
        ("loss_and_contrast", "top_k"),
    ],
)
def test_gated_steps_are_the_plain_loop(
    spread, double_loader, recorded, difference, score, controller
):
    plain_controller, controller = CONTROLLERS[controller]
    loader = double_loader(rows=150, batch_size=30)
    model, plain = spread(), PlainLoop(spread(), RULES[score], plain_controller(0.3))
    step = recorded(GatedStep(Gate(0.3, score, controller(), fallback=0)))
    history = Trainer(model, loader, epochs=1, step=step, config=CONFIG).run()
    for number, batch in enumerate(loader.batches(0)):
        active = plain.step(batch.x, batch.y, number / STEPS)
        assert step.rows[number] == batch.index[active].tolist()
    assert difference(model, plain.model) <= TOLERANCE
    assert sum(0 < len(rows) < 30 for rows in step.rows) >= 3
    assert difference(model, spread()) > 1e-3
    assert [entry["rate"] for entry in history.steps] == [len(rows) / 30 for rows in step.rows]


def test_dense_steps_are_the_plain_loop(spread, double_loader, difference):
    loader = double_loader(rows=150, batch_size=30)
    model, plain = spread(), PlainLoop(spread())
    Trainer(model, loader, epochs=1, config=CONFIG).run()
    for number, batch in enumerate(loader.batches(0)):
        plain.step(batch.x, batch.y, number / STEPS)
    assert difference(model, plain.model) <= TOLERANCE


class Odd(Policy):
    """Every other row, backwards, every second of them at weight 3; keeps what it is told."""

    def __init__(self, normaliser=None):
        self.normaliser, self.told = normaliser, []

    def plan(self, run):
        index = torch.arange(run.samples - 1, 0, -2)
        return Selection(index, index % 4.0, self.normaliser)  # sums up to 80: exact scales

    def observe(self, visit):
        if visit.trained:
            self.told += zip(visit.index.tolist(), visit.losses.tolist(), strict=True)


@pytest.mark.parametrize(("gated", "normaliser"), [(False, None), (False, 20.0), (True, None)])
def test_weights_of_a_plan_count(spread, double_loader, recorded, difference, gated, normaliser):
    """Scales of a mean: weight x rows of the plan / normaliser, whatever batch a row is in."""
    loader = double_loader(rows=80, batch_size=16)
    order = torch.arange(79, 0, -2)
    weight = order % 4.0
    scale = weight * len(order) / (normaliser or weight.sum())
    rule = {"rule": loss_alone, "controller": PlainLogIntegral(0.3)} if gated else {}
    model, plain = spread(), PlainLoop(spread(), **rule)
    step, policy = recorded(GatedStep(Gate(0.3)) if gated else DenseStep()), Odd(normaliser)
    Trainer(model, loader, epochs=1, step=step, policy=policy, config=CONFIG).run()
    expected = []
    for number, batch in enumerate(loader.batches(0, order)):  # batches of 16, 16 and 8
        with torch.no_grad():
            losses = F.cross_entropy(plain.model(batch.x), batch.y, reduction="none")
        first = 16 * number
        active = plain.step(batch.x, batch.y, number / 3, scale[first : first + 16])
        assert step.rows[number] == batch.index[active].tolist()
        expected += zip(batch.index[active].tolist(), losses[active].tolist(), strict=True)
    assert difference(model, plain.model) <= TOLERANCE
    # the policy hears of rows of the data set, at the losses before the update
    assert [row for row, _ in policy.told] == [row for row, _ in expected]
    assert [loss for _, loss in policy.told] == pytest.approx([loss for _, loss in expected])


class Strict(LogIntegral):
    """A threshold that no loss exceeds and that never moves."""

    def threshold(self, scores, quota):
        return 1e9

    def update(self, rate, scores):
        pass


def test_a_batch_without_active_rows_changes_nothing(cnn, double_loader, unchanged):
    gate = Gate(controller=Strict(0.1), fallback=0)
    trainer = Trainer(cnn(), double_loader(), epochs=1, policy=gate)
    with unchanged(trainer.model):
        history = trainer.run()
    assert [entry["loss"] for entry in history.steps] == [None] * STEPS
    assert trainer.ledger.samples.trained == 0
    assert trainer.ledger.samples.skipped == trainer.ledger.samples.scored == 160
    assert trainer.ledger.flops.backward == 0


def test_the_fallback_trains_without_counting_as_active(cnn, double_loader, recorded, difference):
    step = recorded(GatedStep(Gate(controller=Strict(0.1), fallback=3)))
    trainer = Trainer(cnn(), double_loader(), epochs=1, step=step)
    trainer.run()
    assert [len(set(rows)) for rows in step.rows] == [3] * STEPS
    assert step.gate.rate == 0.0
    assert trainer.ledger.samples.trained == 3 * STEPS
    assert difference(trainer.model, cnn()) > 0


def test_padding_of_the_device_gate_does_not_count_as_trained(cnn, double_loader, recorded):
    def broken(outputs, targets, inputs):
        return torch.where(targets < 3, math.nan, outputs.amax(1))

    step = recorded(GatedStep(DeviceGate(0.9, broken)))
    config = TrainConfig(metrics_every=4)
    trainer = Trainer(cnn(), double_loader(), epochs=2, step=step, config=config)
    records = [record.metrics for record in trainer.steps()]
    weights = [result.selection.weight for result in step.results]
    trained, computed = sum(int((w > 0).sum()) for w in weights), sum(map(len, weights))
    samples, flops = trainer.ledger.samples, trainer.ledger.flops
    assert 0 < trained < computed
    assert (samples.trained, samples.padded) == (trained, computed - trained)
    assert samples.skipped == 2 * 160 - computed
    told = [(r["trained"], int((w > 0).sum())) for r, w in zip(records, weights, strict=True)]
    assert all(found == expected for found, expected in told[::4])
    assert trainer.history.epochs[-1]["trained"] == trained
    cost = trainer._cost(next(trainer.train.batches(0)))
    assert flops.backward == computed * cost.backward  # it was computed all the same


def test_rows_without_a_score_are_left_out(cnn, digits, recorded):
    x, y = digits.images[:60].double() / 255, digits.labels[:60]
    x[[3, 25], 0, 4, 4] = math.nan
    data = Loader(torch.utils.data.TensorDataset(x, y), 20)
    step = recorded(GatedStep(Gate(0.5, "loss_and_contrast")))
    trainer = Trainer(cnn(), data, epochs=3, step=step)
    trainer.run()
    trained = {row for rows in step.rows for row in rows}
    assert trained
    assert not trained & {3, 25}
    assert step.gate.nonfinite == 2 * 3
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


class Noisy(nn.Module):
    """Says whether it runs in training mode: its outputs are larger by a constant factor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10).double()
        self.calls = []

    def forward(self, x):
        self.calls.append((self.training, len(x), torch.is_grad_enabled()))
        return self.linear(x.flatten(1)) * (1 + 9 * self.training)


def test_scores_come_from_eval_mode_and_losses_from_train_mode(double_loader):
    model = Noisy()
    loader = double_loader(rows=30, batch_size=30)
    trainer = Trainer(model, loader, epochs=1, policy=Gate(0.2))
    trainer._cost(next(loader.batches(0)))
    model.calls.clear()
    trainer.run()
    assert model.calls == [(False, 30, False), (True, trainer.ledger.samples.trained, True)]


class Idle(Policy):
    """Chooses without looking at anything."""

    def choose(self, batch):
        return None if self.none else Selection(torch.tensor([2, 2, 5]), torch.tensor([1, 0, 3.0]))

    def __init__(self, none):
        self.none = none


def test_a_choice_without_scores_costs_no_scoring(cnn, double_loader):
    for none, trained in ((True, 160), (False, 15)):  # a row that is drawn twice counts twice
        trainer = Trainer(cnn(), double_loader(), epochs=1, policy=Idle(none))
        trainer.run()
        samples = trainer.ledger.samples
        assert (samples.scored, trainer.ledger.flops.scoring) == (0, 0)
        assert samples.trained == trained


class Tokens(Policy):
    """Weights each of two tokens in a row; if ``planned``, rows too, before loading."""

    def __init__(self, planned):
        self.planned = planned

    def plan(self, run):
        scale = torch.arange(1.0, 7.0) if self.planned else None
        return Selection(torch.arange(6), scale, 6.0)

    def choose(self, batch):
        rows = torch.tensor([0, 2, 3, 5])
        return batch.select(rows, torch.tensor([[1.0, 0], [0, 0], [2, 1], [0, 3]]), 7.0)


@pytest.mark.parametrize("planned", [False, True])
def test_weights_per_token_are_trained_with_and_reported(planned):
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3).double(), torch.randn(6, 2, 4).double()
    y = torch.randint(0, 3, (6, 2))
    before, policy = model.weight.detach().clone(), Tokens(planned)
    raw = F.cross_entropy(model(x).movedim(-1, 1), y, reduction="none")
    factors = torch.arange(1.0, 7.0) if planned else torch.ones(6)
    terms = (raw[0, 0], 2 * raw[3, 0], raw[3, 1], 3 * raw[5, 1])
    loss = sum(torch.stack(terms) * factors[[0, 3, 3, 5]]) / 7
    expected = torch.autograd.grad(loss, model.weight)[0]
    run = Trainer(
        model,
        Loader(TensorDataset(x, y), 6, shuffle=False),
        policy=policy,
        epochs=1,
        config=TrainConfig(clip_norm=None),
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        device="cpu",
    )
    step = run.run().steps[0]
    torch.testing.assert_close(before - model.weight, expected, rtol=0, atol=1e-12)
    rows = raw.mean(1)
    reported = (rows[0] + 3 * rows[3] + 3 * rows[5]) / 7  # a row counts with all of its tokens
    assert step["loss"] == pytest.approx(reported.item())
    assert step["trained"] == 4
    padding = StepResult(torch.arange(4), rows[:4], selection=policy.choose(run.learner.scored(
        Batch(None, x, y)
    )))  # fmt: skip
    assert padding.padded is None
    exact = replace(padding.selection, rate=torch.tensor(1.0))
    assert padding._replace(selection=exact).padded == 1
