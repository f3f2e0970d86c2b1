"""Evaluation: equal to plain loops over rows; a part of the rows comes with an honest interval."""

from __future__ import annotations

import math
from types import MappingProxyType

import pytest
import torch
from astkit.trainers.evaluator import Evaluator, sampled_rows, wilson_interval
from astkit.trainers.state import Position
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from astkit import distributed
from astkit.datasets import Batch, Loader, as_loader, stratified
from astkit.gating import cross_entropy_rows
from astkit.profiling import Ledger
from astkit.profiling.flops import FlopsPerSample
from astkit.trainers import Learner, TrainConfig, Trainer


class Given:
    """Batches that are given, as they are."""

    num_samples = None

    def __init__(self, *batches):
        self.given = batches

    def __len__(self):
        raise TypeError

    def batches(self, epoch, order=None, start=0):
        for x, y in self.given[start:]:
            yield Batch(torch.arange(len(y)), x, y)

    def check_labels(self, num_outputs):
        pass


class NoOptimizer:
    param_groups, state = ({"lr": 0.1},), MappingProxyType({})


def evaluator(model=None, metrics=None, **options):
    """Of a model that by default gives its inputs back: the outputs are what a test says."""
    optimizer = NoOptimizer() if model is None else None
    learner = Learner(model or nn.Identity(), TrainConfig(), optimizer=optimizer, **options)
    return Evaluator(learner, Ledger(), lambda batch: FlopsPerSample(1.0, 2.0), metrics)


def reference(model, source):
    """Row by row, in Python numbers."""
    hits, losses = [], []
    model.eval()
    for batch in source.batches(0):
        for x, y in zip(batch.x, batch.y, strict=True):
            with torch.no_grad():
                output = model(x[None])
            losses.append(float(cross_entropy_rows(output, y[None])))
            hits.append(int(output.argmax()) == int(y))
    return len(hits), math.fsum(losses) / len(hits), sum(hits) / len(hits)


@pytest.fixture
def model(cnn):
    return cnn(batch_norm=True).train()


@pytest.fixture
def source(double_loader):
    return double_loader(rows=200, batch_size=32)


def stepped(evaluator, source, left_after=None):
    """What a pass finds that goes batch by batch, perhaps resumed in the middle from a state."""
    position = Position()
    while evaluator.step(source, position):
        if position.validated == left_after:
            evaluator.save(position)
            evaluator.end_pass(Position())
            evaluator.load(position)
    return evaluator.found()


def test_it_gives_what_plain_loops_give_and_leaves_no_trace(model, source, unchanged):
    rows, loss, accuracy = reference(model, source)
    model.train()
    state, work = torch.get_rng_state(), evaluator(model)
    with unchanged(model):
        found = work.evaluate(source)
    assert (found["samples"], found["accuracy"]) == (rows, accuracy)
    assert found["loss"] == pytest.approx(loss, rel=1e-12)
    assert found["accuracy_interval"] == wilson_interval(round(accuracy * rows), rows)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    ledger = work.ledger
    assert (ledger.samples.evaluated, ledger.flops.evaluation) == (rows, rows * 1.0)
    assert ledger.seconds["evaluation"] > 0 == ledger.flops.total


def test_batch_by_batch_is_the_same_pass_resumed_or_not(model, source):
    whole = evaluator(model).evaluate(source)
    for left_after in (None, 3):
        found = stepped(evaluator(model), source, left_after)
        assert found == {"val_loss": whole["loss"], "val_accuracy": whole["accuracy"]}
    assert evaluator(model).found() == {}


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    classes=st.integers(2, 6),
    seed=st.integers(0, 10**6),
)
def test_any_outputs_are_measured_as_plain_loops_do(sizes, classes, seed):
    random = torch.Generator().manual_seed(seed)
    batches = [
        (
            torch.randn(size, classes, generator=random, dtype=torch.float64),
            torch.randint(classes, (size,), generator=random),
        )
        for size in sizes
    ]
    work, data = evaluator(), Given(*batches)
    rows, loss, accuracy = reference(work.learner.model, data)
    found = work.evaluate(data)
    assert (found["samples"], found["accuracy"]) == (rows, accuracy)
    assert found["loss"] == pytest.approx(loss, rel=1e-12)


def test_without_class_labels_there_is_a_loss_and_what_metrics_say():
    work = evaluator(
        metrics={"first": lambda outputs, targets: outputs[:, 0]},
        criterion=lambda outputs, targets: (outputs - targets) ** 2,
    )
    data = Given((torch.arange(6.0).view(3, 2), torch.zeros(3, 2)))
    found = work.evaluate(data)
    assert found["loss"] == pytest.approx((0.5 + 6.5 + 20.5) / 3)
    assert (found["accuracy"], found["accuracy_interval"], found["first"]) == (None, None, 2.0)
    assert stepped(work, data) == {"val_loss": found["loss"], "val_first": 2.0}


def test_nan_outputs_are_not_hidden():
    x = torch.tensor([[math.nan, 0.0], [1.0, 0.0]], dtype=torch.float64)
    found = evaluator().evaluate(Given((x, torch.tensor([0, 0]))))
    assert math.isnan(found["loss"])
    assert found["samples"] == 2


def test_one_copy_to_the_host_a_pass(monkeypatch):
    count = 0
    for name in ("item", "tolist", "__float__", "__int__", "__bool__", "cpu", "numpy"):
        real = getattr(torch.Tensor, name)

        def counting(tensor, *arguments, real=real, **options):
            nonlocal count
            count += 1
            return real(tensor, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, name, counting)
    work, counts = evaluator(), []
    for batches in (1, 20):
        batch, count = (torch.randn(4, 3), torch.tensor([0, 1, 2, 0])), 0
        work.evaluate(Given(*[batch] * batches))
        counts.append(count)
    assert counts[0] == counts[1]  # independent of the number of batches


def test_a_pass_without_a_batch_or_a_metric_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="the validation data gave no batch: lower batch_size"):
        evaluator().evaluate(Given())
    with pytest.raises(ValueError, match="the validation data gave no batch: lower batch_size"):
        evaluator().step(Given(), Position())
    data = Given((torch.randn(4, 3), torch.tensor([0, 1, 2, 0])))
    for function, gave in {
        lambda outputs, targets: outputs.mean(): r"\[\] for 4 rows",
        lambda outputs, targets: 0.5: "float for 4 rows",
    }.items():
        with pytest.raises(ValueError, match=f"the metric 'mine' gave {gave}: return one value p"):
            evaluator(metrics={"mine": function}).evaluate(data)


def test_a_metric_may_replace_the_accuracy_which_then_has_no_interval(digits):
    run = Trainer(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        digits.subset(range(32)),
        digits.subset(range(32, 64)),
        epochs=1,
        criterion=lambda outputs, targets: outputs.square().mean(1),
        metrics={"accuracy": lambda outputs, targets: targets.float()},
        config=TrainConfig(validation_fraction=0.5),
        device="cpu",
    )
    (epoch,) = run.run().epochs
    assert set(epoch) >= {"val_accuracy"}
    assert not set(epoch) & {"val_accuracy_low", "val_accuracy_high"}


@pytest.mark.parametrize("inside", [False, True])
def test_a_distributed_sampler_is_refused_in_several_processes(monkeypatch, inside):
    data = TensorDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.int64))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    options = {"batch_sampler": BatchSampler(sampler, 4, False)} if inside else {"sampler": sampler}
    work, source = evaluator(), as_loader(DataLoader(data, **options))
    assert work.evaluate(source)["samples"] == 4
    monkeypatch.setattr(distributed, "world", lambda: 2)
    with pytest.raises(ValueError, match="the validation data have a DistributedSampler"):
        work.evaluate(source)


# --- a part of the rows


@pytest.fixture
def loader(digits):
    return Loader(digits.subset(range(500)), 32)


def test_each_class_gives_its_share(loader):
    labels = loader.data.labels
    for fraction in (0.1, 0.25, 0.9):
        index = sampled_rows(loader, fraction)
        assert torch.equal(index, sampled_rows(loader, fraction))
        for label in range(10):
            among = int((labels == label).sum())
            assert int((labels[index] == label).sum()) == round(fraction * among)
    assert sampled_rows(loader, 1.0) is None


def test_a_trainer_evaluates_those_rows_after_each_epoch(cnn, digits):
    data = digits.subset(range(500))
    trainer = Trainer(
        cnn(dtype=torch.float32),
        Loader(data, 64),
        Loader(data, 32, shuffle=False),
        epochs=2,
        config=TrainConfig(validation_fraction=0.25),
    )
    epochs = trainer.run().epochs
    rows = sampled_rows(Loader(data, 32), 0.25)
    assert trainer.ledger.samples.evaluated == 2 * len(rows)
    part = trainer.evaluate(Loader(data.subset(rows), 32, shuffle=False))
    assert epochs[-1]["val_accuracy"] == part["accuracy"]
    interval = epochs[-1]["val_accuracy_low"], epochs[-1]["val_accuracy_high"]
    assert interval == part["accuracy_interval"]


def test_without_known_classes_rows_are_drawn_from_all_alike(digits):
    data = TensorDataset(digits.images[:300].float(), digits.labels[:300].float())
    index = sampled_rows(Loader(data, 32), 0.3)
    assert torch.equal(index, stratified(torch.zeros(300).long(), 0.3, 0, "fast validation")[0])
    assert len(index) == 90


def test_rare_whole_numbers_are_drawn_too():
    counts = torch.cat([torch.zeros(60), torch.arange(40)]).long()
    rows = sampled_rows(Loader(TensorDataset(torch.zeros(100, 2), counts), 32), 0.3)
    assert len(rows) == 30
    assert len(counts[rows].unique()) > 5


def test_a_part_that_cannot_be_drawn_is_refused(loader, digits):
    data = TensorDataset(digits.images[:10].float(), digits.labels[:10])
    refusals = {
        "fraction is 1.5; pass a fraction between": (loader, 1.5),
        "fraction is 0.0; pass a fraction between": (loader, 0.0),
        "fraction 0.001 of 500 validation rows leaves none": (loader, 0.001),
        "an ordinary loader loads every row": (as_loader(DataLoader(data, 2)), 0.5),
        "fraction 0.5 of 0 validation rows leaves none": (Given(), 0.5),
    }
    for sentence, (source, fraction) in refusals.items():
        with pytest.raises(ValueError, match=sentence):
            sampled_rows(source, fraction)


def test_known_intervals():
    # Brown, Cai and DasGupta 2001 and textbooks: the usual worked examples
    for right, total, low, high in [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 10, 0.0179, 0.4042),
        (50, 100, 0.4038, 0.5962),
    ]:
        assert wilson_interval(right, total) == pytest.approx((low, high), abs=6e-5)
    for right, total, level in [(-1, 5, 0.95), (6, 5, 0.95), (0, 0, 0.95), (1, 5, 1.0)]:
        sentence = f"{right} right of {total} rows at level {level}: give"
        with pytest.raises(ValueError, match=sentence):
            wilson_interval(right, total, level)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5000), st.data(), st.sampled_from([0.5, 0.95, 0.99]))
def test_it_is_scipys_interval(total, data, level):
    stats = pytest.importorskip("scipy.stats")
    right = data.draw(st.integers(0, total))
    expected = stats.binomtest(right, total).proportion_ci(level, method="wilson")
    assert wilson_interval(right, total, level) == pytest.approx(expected, abs=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("fraction", [0.05, 0.2])
def test_the_interval_of_a_part_holds_the_accuracy_of_the_whole(fraction):
    labels = torch.arange(4000) % 10
    # rows are right with a rate of their class: strata that differ, as they do in practice
    right = torch.rand(4000, generator=torch.Generator().manual_seed(0)) < 0.5 + 0.04 * labels
    truth, held = float(right.float().mean()), 0
    for seed in range(400):
        index, _ = stratified(labels, fraction, seed, "fast validation")
        low, high = wilson_interval(int(right[index].sum()), len(index))
        held += low <= truth <= high
    # 95 % of 400 is 380, with a deviation of 4.4
    assert held >= 367
