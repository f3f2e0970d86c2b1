"""Scores that need the index, the model or a memory, in every kind of step; and what they cost."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from astkit.gating import ContextScore, Gate, Loss, WeightedSum
from astkit.profiling.flops import counter
from astkit.trainers import GatedStep, SampleStep, TrainConfig, Trainer
from tests.trainers.states import hand_over, leave_after

STEPS = {
    "batched": GatedStep,
    "per batch": lambda gate: SampleStep(gate, "per_batch"),
    "per sample": SampleStep,
}
MIXED = "0.7*loss + 0.3*contrast"
EVERYTHING = "loss + 0.5*el2n + 0.3*contrast"
pytestmark = pytest.mark.filterwarnings("ignore:all scores of a batch are equal")


class Witness(ContextScore):
    """The loss; writes down what it is given."""

    def __init__(self):
        self.seen = []

    def score(self, batch):
        self.seen.append((batch, batch.model.training, torch.is_grad_enabled()))
        return Loss()(batch.outputs, batch.targets, batch.inputs)


@pytest.mark.parametrize(
    ("kind", "nested"), [("batched", True), ("per batch", False), ("per sample", True)]
)
def test_a_score_is_given_index_and_model(cnn, double_loader, kind, nested):
    witness, loader, model = Witness(), double_loader(rows=60, batch_size=20), cnn()
    score = WeightedSum([(1, witness)]) if nested else witness
    step = STEPS[kind](Gate(0.3, score))
    Trainer(model, loader, epochs=1, step=step).run()
    expected = []
    for number, batch in enumerate(loader.batches(0)):
        rows = [batch.index[i : i + 1] for i in range(20)]
        scored = [batch.index] if kind != "per sample" else rows * (2 if number == 0 else 1)
        expected += [index.tolist() for index in scored]
    assert [seen.index.tolist() for seen, _, _ in witness.seen] == expected
    data = {int(i): (x, y) for b in loader.batches(0) for i, x, y in zip(*b, strict=True)}
    for seen, training, gradients in witness.seen:
        assert seen.model is model
        assert not training
        assert not gradients
        for i, x, y in zip(seen.index.tolist(), seen.inputs, seen.targets, strict=True):
            assert x.equal(data[i][0])
            assert y == data[i][1]


class PlainRunning:
    """Per-sample scores of ``0.7*loss + 0.3*contrast`` in Python numbers, by running means."""

    def __init__(self):
        self.means, self.count = None, 0

    def __call__(self, loss, image):
        pixels = image.flatten().tolist()
        mean = sum(pixels) / len(pixels)
        contrast = math.sqrt(sum((p - mean) ** 2 for p in pixels) / (len(pixels) - 1))
        values = (loss, contrast)
        means = values if self.means is None else self.means
        self.count += 1
        self.means = [m + (v - m) / self.count for v, m in zip(values, means, strict=True)]
        return 0.7 * values[0] / means[0] + 0.3 * values[1] / means[1]


def test_row_by_row_a_sum_is_held_against_the_rows_before(cnn, double_loader, recorded):
    model, loader = cnn(), double_loader(rows=40, batch_size=20)
    config = TrainConfig(lr=1e-30, weight_decay=0.0)  # so that losses stay what they are
    step = recorded(SampleStep(Gate(0.3, MIXED)))
    Trainer(model, loader, epochs=1, step=step, config=config).run()
    plain, frozen = PlainRunning(), cnn().eval()
    for number, (batch, result) in enumerate(zip(loader.batches(0), step.results, strict=True)):
        with torch.no_grad():
            losses = F.cross_entropy(frozen(batch.x), batch.y, reduction="none").tolist()
        for _ in range(2 if number == 0 else 1):  # the first batch sets the threshold beforehand
            expected = [plain(*pair) for pair in zip(losses, batch.x, strict=True)]
        assert result.scores.tolist() == pytest.approx(expected, abs=1e-9)


class Doubt(ContextScore):
    """The loss of a second model."""

    def __init__(self, model):
        self.model = model

    def score(self, batch):
        return batch.losses_of(self.model)


@pytest.mark.parametrize("kind", STEPS)
def test_the_ledger_charges_the_passes_of_a_second_model(cnn, double_loader, kind):
    other = cnn()
    step = STEPS[kind](Gate(0.3, Doubt(other)))
    trainer = Trainer(cnn(), double_loader(rows=48, batch_size=16), epochs=1, step=step)
    batch = next(trainer.train.batches(0))  # the probes are not part of the run
    cost, second = trainer._cost(batch), trainer.costs.of_helper(other, batch)
    with counter() as counted:
        trainer.run()
    booked = trainer.ledger.flops
    assert counted.uncounted() == ()
    assert counted.get_total_flops() == pytest.approx(booked.total, rel=0.01)
    scored = 64 if kind == "per sample" else 48
    assert booked.helper == scored * second.scoring
    assert booked.scoring == trainer.ledger.samples.scored * cost.scoring
    assert trainer.ledger.samples.scored == (0 if kind == "batched" else scored)


@pytest.mark.parametrize(
    ("kind", "score"),
    [("batched", EVERYTHING), ("per sample", EVERYTHING)],
)
def test_a_run_left_between_two_batches_goes_on_as_if_it_had_not_been(
    cnn, double_loader, difference, score, kind
):
    def make():
        step, config = STEPS[kind](Gate(0.3, score)), TrainConfig(lr=1e-2)
        return Trainer(cnn(), double_loader(60, 20), epochs=2, step=step, config=config)

    whole, first = make(), leave_after(make(), 4)
    whole.run()
    second = hand_over(first, make())
    second.run()
    assert difference(whole.model, second.model) == 0.0
