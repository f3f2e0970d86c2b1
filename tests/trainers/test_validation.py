"""Validation: equal to plain loops over rows, whichever way it is computed."""

from __future__ import annotations

import json
import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from astkit.datasets import Batch, as_loader
from astkit.gating import cross_entropy_rows
from astkit.trainers import Learner, TrainConfig
from astkit.trainers import validation as module
from astkit.trainers.validation import ValidationMetrics, batch_sums, validate

THREADS = [1, 2, 3]


class Given:
    """Batches that are given, as they are."""

    keyed = True
    num_samples = None

    def __init__(self, *batches):
        self.given = batches

    def __len__(self):
        return len(self.given)

    def batches(self, epoch, order=None, start=0):
        for x, y in self.given[start:]:
            yield Batch(torch.arange(len(y)), x, y)

    def check_labels(self, num_outputs):
        pass


class NoOptimizer:
    param_groups = ({"lr": 0.1},)


def fake(**options):
    """A learner whose model gives its inputs back: the outputs are what a test says."""
    return Learner(nn.Identity(), TrainConfig(), optimizer=NoOptimizer(), **options)


def reference(learner, source):
    """Row by row and bin by bin, in Python numbers."""
    hits, losses, confidences, labels, classes = [], [], [], [], 0
    learner.model.eval()
    for batch in source.batches(0):
        for x, y in zip(batch.x, batch.y, strict=True):
            with torch.no_grad():
                output = learner.model(x[None])
            losses.append(float(cross_entropy_rows(output, y[None])))
            shares = [math.exp(value - max(output[0].tolist())) for value in output[0].tolist()]
            confidences.append(max(shares) / sum(shares))
            hits.append(int(output.argmax()) == int(y))
            labels.append(int(y))
            classes = output.shape[1]
    rows = range(len(hits))
    ece = 0.0
    for number in range(15):
        low, high = number / 15, (number + 1) / 15
        inside = [row for row in rows if low < confidences[row] <= high]
        if inside:
            accuracy = sum(hits[row] for row in inside) / len(inside)
            confidence = sum(confidences[row] for row in inside) / len(inside)
            ece += len(inside) / len(hits) * abs(accuracy - confidence)
    of_class = [[hits[row] for row in rows if labels[row] == label] for label in range(classes)]
    return {
        "samples": len(hits),
        "loss": math.fsum(losses) / len(hits),
        "accuracy": sum(hits) / len(hits),
        "class_accuracy": [sum(each) / len(each) if each else None for each in of_class],
        "ece": ece,
    }


def assert_is(found, expected):
    assert found.samples == expected["samples"]
    assert found.accuracy == expected["accuracy"]
    assert list(found.class_accuracy) == expected["class_accuracy"]
    assert found.loss == pytest.approx(expected["loss"], rel=1e-12)
    assert found.ece == pytest.approx(expected["ece"], rel=1e-12, abs=1e-14)


@pytest.fixture
def learner(cnn):
    learner = Learner(cnn(batch_norm=True), TrainConfig())
    learner.model.train()
    return learner


@pytest.fixture
def source(double_loader):
    source = double_loader(rows=200, batch_size=32)
    return source


@pytest.mark.parametrize("threads", THREADS)
def test_every_way_gives_what_plain_loops_give(learner, source, unchanged, threads):
    expected = reference(learner, source)
    learner.model.train()
    before = torch.get_num_threads(), torch.get_rng_state()
    with unchanged(learner.model):
        found = validate(learner, source, threads)
    assert_is(found, expected)
    assert all(module.training for module in learner.model.modules())
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.is_grad_enabled()


def test_all_ways_add_up_in_the_same_order(learner, source):
    results = [validate(learner, source, threads) for threads in THREADS]
    assert all(result == results[0] for result in results)  # bit for bit, in float64


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    classes=st.integers(2, 6),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_any_outputs_are_measured_as_plain_loops_do(sizes, classes, seed, scale):
    random = torch.Generator().manual_seed(seed)
    batches = [
        (
            scale * torch.randn(size, classes, generator=random, dtype=torch.float64),
            torch.randint(classes, (size,), generator=random),
        )
        for size in sizes
    ]
    learner, source = fake(), Given(*batches)
    expected = reference(learner, source)
    assert_is(validate(learner, source), expected)
    assert_is(validate(learner, source, 2), expected)


def test_known_calibration():
    # eight rows at confidence 0.9 with half right, two at 0.6 with all right
    shares = [[0.9, 0.1]] * 8 + [[0.6, 0.4]] * 2
    x = torch.tensor(shares, dtype=torch.float64).log()
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 0, 0])
    found = validate(fake(), Given((x, y)))
    assert found.ece == pytest.approx(0.8 * 0.4 + 0.2 * 0.4, rel=1e-12)
    assert found.accuracy == 0.6
    assert found.class_accuracy == (1.0, 0.0)
    assert found.accuracy_interval == pytest.approx((0.3127, 0.8318), abs=1e-4)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    sums = batch_sums(fake(), Batch(torch.arange(1), torch.zeros(1, 3), torch.tensor([0])))
    bins = sums[-45:].view(15, 3)
    assert bins[:, 0].nonzero().tolist() == [[4]]  # 1/3 is 5/15: the end of the fifth


def test_certain_answers_fall_into_the_last_bin():
    x = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]], dtype=torch.float64)
    assert validate(fake(), Given((x, torch.tensor([0, 1])))).ece == 0.0
    assert validate(fake(), Given((x, torch.tensor([1, 0])))).ece == 1.0


def test_without_class_labels_there_is_a_loss_alone():
    learner = fake(criterion=lambda outputs, targets: (outputs - targets) ** 2)
    x, y = torch.arange(6.0).view(3, 2), torch.zeros(3, 2)
    found = validate(learner, Given((x, y)), 2)
    assert found == ValidationMetrics(samples=3, loss=(0.5 + 6.5 + 20.5) / 3)
    assert json.loads(json.dumps(found.to_dict()))["accuracy"] is None


def test_nan_outputs_are_not_hidden():
    x = torch.tensor([[math.nan, 0.0], [1.0, 0.0]], dtype=torch.float64)
    found = validate(fake(), Given((x, torch.tensor([0, 0]))))
    assert math.isnan(found.loss)
    assert math.isnan(found.ece)
    assert found.samples == 2


def test_sums_of_batches_add_up_to_the_pass(learner, source):
    learner.model.eval()
    with torch.no_grad():
        total = sum(batch_sums(learner, batch) for batch in source.batches(0))
    again = torch.tensor(total.tolist(), dtype=torch.float64)  # as plain numbers, from a checkpoint
    learner.model.train()
    assert ValidationMetrics.from_sums(again) == validate(learner, source)


class Waits:
    """Counts what copies a number to the host."""

    def __init__(self, monkeypatch):
        self.count = 0
        for name in ("item", "tolist", "__float__", "__int__", "__bool__", "cpu", "numpy"):
            real = getattr(torch.Tensor, name)

            def counting(tensor, *arguments, real=real, **options):
                self.count += 1
                return real(tensor, *arguments, **options)

            monkeypatch.setattr(torch.Tensor, name, counting)


def test_one_copy_to_the_host_a_pass(monkeypatch):
    source = Given(*[(torch.randn(4, 3), torch.tensor([0, 1, 2, 0])) for _ in range(20)])
    learner = fake()
    waits = Waits(monkeypatch)
    sums = [batch_sums(learner, batch) for batch in source.batches(0)]
    assert waits.count == 0
    ValidationMetrics.from_sums(sums[0])
    few = waits.count
    validate(learner, source)
    assert waits.count == 2 * few  # independent of the number of batches


@pytest.mark.parametrize("threads", THREADS)
def test_batches_are_prepared_one_at_a_time_in_order(learner, source, threads):
    seen, busy = [], threading.Lock()

    def prepare(batch):
        assert busy.acquire(blocking=False)
        seen.append(len(batch.y))
        busy.release()
        return batch

    validate(learner, source, threads, prepare=prepare)
    assert seen == [32] * 6 + [8]


@pytest.mark.parametrize("threads", THREADS)
def test_an_error_ends_the_pass_and_restores_everything(learner, source, threads):
    def prepare(batch):
        if len(batch.y) < 32:
            raise RuntimeError("a bad batch")
        return batch

    before = torch.get_num_threads(), threading.active_count()
    with pytest.raises(RuntimeError, match="a bad batch"):
        validate(learner, source, threads, prepare=prepare)
    assert (torch.get_num_threads(), threading.active_count()) == before
    assert learner.model.training


def test_threads_share_the_processor(learner, source, monkeypatch):
    seen = set()
    real = module.batch_sums

    def looking(learner, batch, metrics):
        seen.add((threading.current_thread().name[:17], torch.get_num_threads()))
        assert not torch.is_grad_enabled()
        return real(learner, batch, metrics)

    monkeypatch.setattr(module, "batch_sums", looking)
    whole = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        validate(learner, source, 2)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(whole)
    assert seen == {("astkit-validation", 2)}


def test_ordinary_loaders_are_validated_in_threads_as_well(cnn, digits):
    learner = Learner(cnn(dtype=torch.float32), TrainConfig())
    data = TensorDataset(digits.images[:100].float() / 255, digits.labels[:100])
    source = as_loader(DataLoader(data, 16, num_workers=1))
    found = validate(learner, source, 2)
    assert found.samples == 100
    assert found.class_accuracy == validate(learner, source).class_accuracy


def test_what_cannot_be_is_refused(learner, source):
    with pytest.raises(ValueError, match="threads is 0: give 1 or more"):
        validate(learner, source, 0)
    with pytest.raises(ValueError, match="the validation data gave no batch: lower batch_size"):
        validate(learner, Given())
