"""Dense and gated steps against hand-written loops in plain PyTorch, float64, to 1e-10."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from astkit.gating import Gate, LogIntegral, OriginPI, Selection
from astkit.trainers import Budget, DenseStep, GatedStep, TrainConfig, Trainer

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

    def step(self, x, y, progress, weight=None):
        for group in self.optimizer.param_groups:
            group["lr"] = LR * (1 + math.cos(math.pi * progress)) / 2
        active = list(range(len(y))) if self.rule is None else self.choose(x, y)
        if not active:
            return active
        losses = F.cross_entropy(self.model(x[active]), y[active], reduction="none")
        weight = torch.ones_like(losses) if weight is None else weight[active]
        total = sum(w * loss for w, loss in zip(weight, losses, strict=True))
        self.optimizer.zero_grad()
        (total / sum(weight.tolist())).backward()
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
        ("loss", "top_k"),
        ("loss_and_contrast", "log_integral"),
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
    trainer = Trainer(model, loader, budget=Budget(epochs=1), step=step, config=CONFIG)
    history = trainer.run()
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
    Trainer(model, loader, budget=Budget(epochs=1), config=CONFIG).run()
    for number, batch in enumerate(loader.batches(0)):
        plain.step(batch.x, batch.y, number / STEPS)
    assert difference(model, plain.model) <= TOLERANCE


class Odd:
    """Every other row, backwards, row ``r`` at weight ``1 + r % 7``; keeps what it is told."""

    def __init__(self):
        self.told = []

    def select(self, epoch, num_samples):
        index = torch.arange(num_samples - 1, 0, -2)
        return Selection(index, 1.0 + index % 7, num_samples, len(index) / num_samples)

    def observe(self, index, losses):
        self.told += zip(index.tolist(), losses.tolist(), strict=True)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("kind", ["dense", "gated"])
def test_weights_of_a_sampler_count(spread, double_loader, recorded, difference, kind):
    loader = double_loader(rows=80, batch_size=16)
    order = torch.arange(79, 0, -2)
    gated = {"rule": loss_alone, "controller": PlainLogIntegral(0.3)} if kind == "gated" else {}
    model, plain = spread(), PlainLoop(spread(), **gated)
    step = recorded(GatedStep(Gate(0.3)) if kind == "gated" else DenseStep())
    sampler = Odd()
    budget = Budget(epochs=1)
    Trainer(model, loader, budget=budget, step=step, sampler=sampler, config=CONFIG).run()
    expected = []
    for number, batch in enumerate(loader.batches(0, order)):  # batches of 16, 16 and 8
        weight = 1.0 + batch.index % 7
        with torch.no_grad():
            losses = F.cross_entropy(plain.model(batch.x), batch.y, reduction="none")
        active = plain.step(batch.x, batch.y, number / 3, weight)
        assert step.rows[number] == batch.index[active].tolist()
        expected += zip(batch.index[active].tolist(), losses[active].tolist(), strict=True)
    assert difference(model, plain.model) <= TOLERANCE
    # the sampler hears of rows of the data set, at the losses before the update
    assert [row for row, _ in sampler.told] == [row for row, _ in expected]
    assert [loss for _, loss in sampler.told] == pytest.approx([loss for _, loss in expected])
    flat = spread()
    Trainer(flat, loader, budget=budget, sampler=Unweighted(), config=CONFIG).run()
    assert difference(model, flat) > 1e-4


class Unweighted(Odd):
    def select(self, epoch, num_samples):
        index = torch.arange(num_samples - 1, 0, -2)
        return Selection(index, torch.ones(len(index)), num_samples, 0.5)


class Strict(LogIntegral):
    """A threshold that no loss exceeds and that never moves."""

    def threshold(self, scores, quota):
        return 1e9

    def update(self, rate, scores):
        pass


def test_a_batch_without_active_rows_changes_nothing(cnn, double_loader, unchanged):
    step = GatedStep(Gate(controller=Strict(0.1), fallback=0))
    trainer = Trainer(cnn(), double_loader(), budget=Budget(epochs=1), step=step)
    with unchanged(trainer.model):
        history = trainer.run()
    assert [entry["loss"] for entry in history.steps] == [None] * STEPS
    assert trainer.ledger.samples.trained == 0
    assert trainer.ledger.samples.skipped == trainer.ledger.samples.scored == 160
    assert trainer.ledger.flops.backward == 0


def test_the_fallback_trains_without_counting_as_active(cnn, double_loader, recorded, difference):
    step = recorded(GatedStep(Gate(controller=Strict(0.1), fallback=3)))
    trainer = Trainer(cnn(), double_loader(), budget=Budget(epochs=1), step=step)
    trainer.run()
    assert [len(set(rows)) for rows in step.rows] == [3] * STEPS
    assert step.step.gate.rate == 0.0
    assert trainer.ledger.samples.trained == 3 * STEPS
    assert difference(trainer.model, cnn()) > 0


@pytest.mark.parametrize("score", ["loss", "loss_and_contrast"])
def test_rows_without_a_score_are_left_out(cnn, digits, recorded, score):
    x, y = digits.images[:60].double() / 255, digits.labels[:60]
    x[[3, 25], 0, 4, 4] = math.nan
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20)
    step = recorded(GatedStep(Gate(0.5, score)))
    trainer = Trainer(cnn(), data, budget=Budget(epochs=3), step=step)
    trainer.run()
    trained = {row for rows in step.rows for row in rows}
    assert trained
    assert not trained & {3, 25}
    assert step.step.gate.nonfinite == 2 * 3
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_a_rate_of_one_is_dense_training(cnn, double_loader, difference):
    runs = []
    for step in (DenseStep(), GatedStep(Gate(1.0)), GatedStep(Gate(1.0, "loss_and_contrast"))):
        trainer = Trainer(cnn(), double_loader(), budget=Budget(epochs=1), step=step)
        trainer.run()
        runs.append(trainer)
    dense, *gated = runs
    assert [difference(dense.model, trainer.model) <= TOLERANCE for trainer in gated] == [True] * 2
    assert [trainer.ledger.samples.trained for trainer in runs] == [160] * 3


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
    trainer = Trainer(model, loader, budget=Budget(epochs=1), step=GatedStep(Gate(0.2)))
    trainer._cost(next(loader.batches(0)))
    model.calls.clear()
    trainer.run()
    assert model.calls == [(False, 30, False), (True, trainer.ledger.samples.trained, True)]
