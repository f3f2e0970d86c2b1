"""Row by row: the exact twin of the batched gate, and the origin's loop, against plain loops."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from astkit.datasets import Loader
from astkit.gating import ContextScore, Gate, LogIntegral, OriginPI, Policy, Selection, row_losses
from astkit.profiling.flops import FlopCounter
from astkit.trainers import Event, SampleBySampleTrainer, TrainConfig
from tests.build import refused
from tests.trainers.states import RecordedSampleTrainer, RecordedTrainer

STEPS, EPOCHS = 20, 4  # 160 rows in batches of 32
CONFIG = TrainConfig(lr=1e-2)
TOLERANCE = 1e-10
pytestmark = pytest.mark.filterwarnings("ignore:all scores of a batch are equal")


def gate(score: Any, controller: Any = "log_integral", kind: Any = Gate, **options: Any) -> Any:
    if controller == "origin_pi":  # its own start admits every row for as long as losses are high
        start = 1.0 if score == "loss" else 0.5
        controller = OriginPI(0.3, kp=0.05, ki=0.001, start=start)
    return kind(rate=0.3, score=score, controller=controller, **options)


@pytest.fixture
def train(cnn: Any, double_loader: Any) -> Any:
    """One run of 20 float64 steps, batched or row by row."""

    def run(policy: Any, update: str | None = None, batch_norm: bool = False, seed: int = 0) -> Any:
        data, options = double_loader(seed=seed), {"policy": policy, "config": CONFIG}
        made: Any = RecordedTrainer
        if update is not None:
            made, options = RecordedSampleTrainer, {**options, "update": update}
        trainer = made(cnn(seed, batch_norm=batch_norm), data, epochs=EPOCHS, **options)
        trainer.run()
        assert len(trainer.rows) == STEPS
        return trainer

    return run


class Weighted(Gate):
    """Loads every row in order, each with its own weight."""

    def plan(self, run: Any) -> Selection:
        rows = torch.arange(run.samples)
        return Selection(rows, 0.5 + rows % 5)


@pytest.mark.parametrize(
    ("score", "controller", "kind"),
    [
        ("loss", "log_integral", Gate),
        ("loss", "log_integral", Weighted),
        ("loss_and_contrast", "origin_pi", Gate),
        ("loss_and_contrast", "top_k", Gate),
    ],
)
def test_batched_gate_and_its_twin_agree(train, difference, score, controller, kind):
    batched = train(gate(score, controller, kind))
    rowwise = train(gate(score, controller, kind), "per_batch")
    pairs = zip(batched.rows, rowwise.rows, strict=True)
    for number, (ours, theirs) in enumerate(pairs):
        assert ours == theirs, f"step {number} trained on different rows"
    assert difference(batched.model, rowwise.model) <= TOLERANCE
    assert batched.ledger.flops == rowwise.ledger.flops
    # the gate must have had something to decide, or equal decisions would prove nothing
    assert sum(0 < len(rows) < 32 for rows in batched.rows) >= 5
    if kind is Weighted:
        assert difference(batched.model, train(gate(score, controller)).model) > 1e-6


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
def test_per_sample_is_the_plain_loop(cnn, double_loader, difference, controller):
    built = gate("loss_and_contrast", controller, fallback=0)
    loader = double_loader(rows=90, batch_size=30)
    model, plain = cnn(), PlainOrigin(cnn(), controller, 0.3, lr=1e-3)
    config = TrainConfig(lr=1e-3)
    trainer = RecordedSampleTrainer(model, loader, epochs=1, policy=built, config=config)
    trainer.run()
    for number, batch in enumerate(loader.batches(0)):
        active = plain.batch(batch.x, batch.y, number / 3)
        assert trainer.rows[number] == batch.index[active].tolist()
        assert trainer.results[number].selection.measured_rate == len(active) / 30
    assert difference(model, plain.model) <= TOLERANCE
    assert any(0 < len(rows) < 30 for rows in trainer.rows)
    assert difference(model, cnn()) > 1e-3
    assert built.controller.value == pytest.approx(plain.threshold, rel=1e-12)
    assert trainer.results[0].selection.threshold != built.controller.value  # it did adapt


class Held(LogIntegral):
    """A threshold that never moves."""

    def __init__(self, rate: float, value: float) -> None:
        super().__init__(rate)
        self.value = value

    def update(self, rate: float, scores: Tensor) -> None: ...


@pytest.mark.parametrize("fallback", [0, 3])
def test_per_sample_falls_back_when_nothing_is_active(cnn, double_loader, difference, fallback):
    policy = Gate(score="loss", controller=Held(0.1, 1e9), fallback=fallback)
    loader, config = double_loader(rows=60, batch_size=20), TrainConfig(1e-2, schedule="constant")
    trainer = RecordedSampleTrainer(cnn(), loader, epochs=1, policy=policy, config=config)
    trainer.run()
    assert [len(set(rows)) for rows in trainer.rows] == [fallback] * 3
    assert policy.measured_rate == 0.0
    assert policy.fallback_rows == trainer.ledger.samples.trained == 3 * fallback
    assert trainer.ledger.samples.skipped == 60 - 3 * fallback

    model = cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    for rows, batch in zip(trainer.rows, loader.batches(0), strict=True):
        assert set(rows) <= set(batch.index.tolist())
        for row in rows:
            place = batch.index.tolist().index(row)
            optimizer.zero_grad()
            x, y = batch.x[place : place + 1], batch.y[place : place + 1]
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert difference(trainer.model, model) <= TOLERANCE
    assert (difference(trainer.model, cnn()) > 0) == (fallback > 0)


def test_per_sample_leaves_out_rows_without_a_score(cnn: Any, digits: Any) -> None:
    x, y = digits.images[:60].double() / 255, digits.labels[:60]
    x[[3, 25], 0, 4, 4] = math.nan
    data = Loader(TensorDataset(x, y), 20, shuffle=False)
    policy = Gate(1.0, "loss_and_contrast", Held(1.0, 1e-6), fallback=20)
    trainer = RecordedSampleTrainer(cnn(), data, epochs=1, policy=policy)
    trainer.run()
    assert [sorted(rows) for rows in trainer.rows] == [
        [row for row in range(first, first + 20) if row not in (3, 25)] for first in (0, 20, 40)
    ]
    assert policy.nonfinite == 2
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


class Doubt(ContextScore):
    """The loss of a second model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def score(self, batch: Any) -> Tensor:
        return row_losses(batch.criterion, batch.forward(self.model), batch.targets)


@pytest.mark.parametrize("update", [None, "per_batch", "per_sample"])
def test_the_ledger_counts_what_was_run(cnn: Any, double_loader: Any, update: Any) -> None:
    other, options = cnn(), {} if update is None else {"update": update}
    made: Any = RecordedTrainer if update is None else RecordedSampleTrainer
    data, policy = double_loader(rows=48, batch_size=16), Gate(0.3, Doubt(other))
    trainer = made(cnn(), data, epochs=1, policy=policy, **options)
    trainer.find_targets()
    batch = next(trainer.train_data.batches(0))  # what is counted here is not part of the run
    cost, second = trainer.cost(batch), trainer.cost(batch, other)
    with FlopCounter() as counted:
        trainer.run()
    booked, scored = trainer.ledger.flops, trainer.ledger.samples.scored
    assert counted.get_total_flops() == pytest.approx(booked.total, rel=0.01)
    assert booked.helper == second.scoring(64 if update == "per_sample" else 48)
    assert booked.scoring == cost.scoring(scored)
    assert scored == {None: 0, "per_batch": 48, "per_sample": 64}[update]


DATA = [(torch.randn(8, 4), torch.randint(3, (8,)))]


def small(
    policy: Any, model: nn.Module | None = None, data: Any = DATA, **options: Any
) -> SampleBySampleTrainer:
    model = model or nn.Linear(4, 3)
    return SampleBySampleTrainer(model, data, epochs=1, policy=policy, device="cpu", **options)


def test_what_cannot_be_decided_row_by_row_is_refused() -> None:
    top_k, steered = Gate(controller="top_k"), small(Gate(0.5))
    small(top_k, update="per_batch").run()
    whole, replay = r"TopK needs a whole batch of scores", [Event(3, "controller", "top_k")]
    refused(
        (lambda: small(top_k), f"{whole}.*'log_integral'"),
        (lambda: small(Gate(0.5), replay=replay), whole),
        (lambda: steered.steer("controller", "top_k"), whole),
        (lambda: small(Gate(), update="per_row"), "update is 'per_row': choose 'per_sample' or 'p"),
        (lambda: small(None), r"policy is a .*: pass policy=Gate"),
        (lambda: small(Policy()), r"policy is a .*: pass policy=Gate"),
    )
    steered.run()
