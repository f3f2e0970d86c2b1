"""Fast validation: the same stratified rows each time, and an interval that holds what it says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from astkit.datasets import Loader, as_loader, stratified
from astkit.trainers import TrainConfig, Trainer
from astkit.trainers.validation_sample import sampled_rows, wilson_interval


@pytest.fixture
def loader(digits):
    return Loader(digits.subset(range(500)), 32)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.9])
def test_each_class_gives_its_share(loader, fraction):
    index, labels = sampled_rows(loader, fraction, seed=3), loader.data.labels
    assert torch.equal(index, sampled_rows(loader, fraction, seed=3))
    for label in range(10):
        among = int((labels == label).sum())
        assert int((labels[index] == label).sum()) == round(fraction * among)
    assert set(index.tolist()) != set(sampled_rows(loader, fraction, seed=1).tolist())


def test_all_of_it_needs_no_rows(loader):
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
    part = Loader(data.subset(rows), 32, shuffle=False)
    assert epochs[-1]["val_accuracy"] == trainer.evaluate(part)["accuracy"]
    assert epochs[-1]["val_accuracy_low"] < epochs[-1]["val_accuracy_high"]


def test_labels_that_the_data_set_does_not_hold_are_read(digits):
    images, labels = digits.images[:300].float(), digits.labels[:300]
    computed = sampled_rows(Loader(TensorDataset(images, labels), 32), 0.3, seed=5)
    assert torch.equal(computed, stratified(labels, 0.3, 5, "fast validation")[0])


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5])
def test_an_impossible_fraction_is_refused(loader, fraction):
    with pytest.raises(ValueError, match=f"fraction is {fraction}; pass a fraction between"):
        sampled_rows(loader, fraction)


def test_a_fraction_that_leaves_nothing_is_refused(loader):
    with pytest.raises(ValueError, match=r"fraction 0.001 of 500 validation rows leaves none"):
        sampled_rows(loader, 0.001)


def test_an_ordinary_loader_is_told_what_it_lacks(digits):
    data = TensorDataset(digits.images[:10].float(), digits.labels[:10])
    with pytest.raises(ValueError, match="an ordinary loader loads every row itself"):
        sampled_rows(as_loader(DataLoader(data, 2)), 0.5)


class Nameless:
    """A source without a number of rows or a batch size."""

    num_samples = None

    def __len__(self):
        raise TypeError

    def batches(self, epoch, order=None, start=0):
        return iter(())

    def check_labels(self, num_outputs):
        pass


def test_a_source_that_cannot_count_is_told_so():
    with pytest.raises(ValueError, match="cannot tell how many rows"):
        sampled_rows(Nameless(), 0.5)


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        # Brown, Cai and DasGupta 2001 and textbooks: the usual worked examples
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 10, 0.0179, 0.4042),
        (50, 100, 0.4038, 0.5962),
        (8, 10, 0.4902, 0.9433),
    ],
)
def test_known_intervals(right, total, low, high):
    assert wilson_interval(right, total) == pytest.approx((low, high), abs=6e-5)


@settings(deadline=None)
@given(st.integers(1, 5000), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_it_is_scipys_interval(total, data, level):
    stats = pytest.importorskip("scipy.stats")
    right = data.draw(st.integers(0, total))
    expected = stats.binomtest(right, total).proportion_ci(level, method="wilson")
    assert wilson_interval(right, total, level) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("right", "total", "level"), [(-1, 5, 0.95), (6, 5, 0.95), (0, 0, 0.95), (1, 5, 1.0)]
)
def test_impossible_counts_are_refused(right, total, level):
    with pytest.raises(ValueError, match=f"{right} right of {total} rows at level {level}: give"):
        wilson_interval(right, total, level)


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
