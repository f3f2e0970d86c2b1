"""Rows that depend on each other stay together, and what cannot be compared is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import signal
from torch.utils.data import DataLoader, TensorDataset

from astkit.aim import pair as pairing
from astkit.aim.features import Rows
from astkit.aim.pair import Pair
from astkit.datasets import dependence
from tests.aim.pairs import labelled, pair


def test_groups_stay_together() -> None:
    made = labelled(torch.arange(120) % 2, torch.arange(90) % 2, 6)
    groups, of_target = made.train.groups, made.target.groups
    assert groups is not None
    assert of_target is not None
    for part in made.halves():
        assert of_target[part].bincount(minlength=6).unique().tolist() == [0, 15]
        assert len(part) == 45
    assert len(groups[made.sample].unique_consecutive()) == 6
    rows = torch.randperm(120, generator=torch.Generator().manual_seed(0))[:50]
    assert len(groups[made.by_unit(rows)].unique_consecutive()) == 6
    drawn = pairing.folds(made.train, 3, 0)
    assert all(len(drawn[groups == group].unique()) == 1 for group in range(6))


def recording(rows: int, seed: int, memory: float = 0.8) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows ``[rows, 2, 1]`` of a first-order autoregression, and the sign of its last value."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=rows + 301)
    values = signal.lfilter([1], [1, -memory], noise)[300:]
    windows = torch.from_numpy(np.stack([values[:-1], values[1:]], 1)).float()
    return windows[:, :, None], (windows[:, 1] > 0).long()


def test_consecutive_rows_of_a_series_stay_together() -> None:
    x, y = recording(1700, 0)
    series = Pair(
        *(Rows(TensorDataset(x[part], y[part])) for part in (slice(1200), slice(1200, None)))
    )
    assert series.worth == pytest.approx(500 / 9, rel=0.5)  # (1 + 0.8) / (1 - 0.8) rows for one
    block = series.train.block
    assert block == series.target.block
    assert block == min(math.ceil(dependence.TIMES * 500 / series.worth), 500 // 6)
    drawn = pairing.folds(series.train, 3, 0)
    own = pairing.units(series.train)
    assert bool((own.diff() >= 0).all())
    assert all(len(drawn[own == each].unique()) == 1 for each in range(int(own.max())))
    counts = torch.stack([drawn[own == each][0] for each in range(1 + int(own.max()))]).bincount()
    assert counts.max() - counts.min() <= 1
    assert series.sample.sort().values.equal(torch.arange(1200))
    assert bool((series.sample[: block // 2].diff() == 1).all())


def test_rows_in_random_order_or_sorted_by_class_are_single_rows() -> None:
    x, y = recording(1700, 0)
    order = torch.from_numpy(np.random.default_rng(0).permutation(1700))
    by_class = (y[order]).argsort(stable=True)
    random = TensorDataset(x[order], y[order])
    folder = TensorDataset(x[order][by_class], y[order][by_class])
    for train, target in ((random, random), (folder, folder), (TensorDataset(x, y), random)):
        both = Pair(Rows(train), Rows(target))
        assert both.worth == 1700
        assert pairing.units(both.train).equal(torch.arange(1700))


def test_a_change_within_the_training_data_does_not_lengthen_blocks() -> None:
    x, y = recording(2000, 1)
    train, target = x[:1500].clone(), TensorDataset(x[1500:], y[1500:])
    train[1000:] += 5
    blocks = [Pair(Rows(TensorDataset(each, y[:1500])), Rows(target)) for each in (x[:1500], train)]
    assert blocks[0].worth < 500
    assert blocks[1].worth == pytest.approx(blocks[0].worth, rel=0.3)


@pytest.mark.parametrize("seed", range(12))
def test_short_series_are_divided_into_shorter_blocks(seed: int) -> None:
    x, y = recording(200, seed, 0.97)
    target = Rows(TensorDataset(x, y))
    both = Pair(target, target, seed)
    assert both.worth < dependence.FEWEST
    assert len(pairing.units(target).unique()) >= 6
    parts = pairing.folds(target, 3, seed)
    for half in both.halves():
        assert len(parts[half].unique()) > 1


def test_columns_without_a_common_value_are_left_out() -> None:
    nan = float("nan")
    x = np.array([[0, 1, 2, nan, nan, 1], [2, 1, nan, nan, nan, 1]])
    of_target = np.array([[3, 1, 2, 1, nan, 0], [4, 1, 5, 2, nan, 3]])
    assert pairing.overlap(x, of_target).tolist() == [False, True, True, False, False, True]
    assert pairing.overlap(of_target, x).tolist() == [False, True, True, False, False, True]
    made = pair(torch.tensor(x).float(), torch.tensor(of_target).float())
    assert len(made.sample) == 2
    assert made.train.features(torch.arange(2)).shape == (2, 3)
    assert made.target.features(torch.arange(2))[:, 2].tolist() == [0, 3]
    apart = pair(torch.zeros(2, 1), torch.ones(2, 1))
    assert len(apart.sample) == 2
    assert apart.train.features(torch.arange(2)).shape == (2, 1)  # else nothing would be left


def test_all_work_is_booked() -> None:
    both = pair(torch.randn(60, 2), torch.randn(40, 2))
    both.flops, both.train.flops, both.target.flops = 1.0, 20.0, 300.0
    assert both.total_flops() == 321.0


def test_integers_of_a_small_target_are_the_classes_of_the_training_rows() -> None:
    labels = torch.arange(4000) % 200
    train = Rows(TensorDataset(torch.randn(4000, 4), labels))
    few = torch.arange(150) % 20 + 180
    pair = Pair(train, Rows(TensorDataset(torch.randn(150, 4), few)))
    assert pair.labels is not None
    assert pair.labels[1].equal(few)
    assert Pair(train, Rows(TensorDataset(torch.randn(150, 4), few + 20))).labels is None
    assert Pair(train, Rows(TensorDataset(torch.randn(150, 4), few / 2))).labels is None


def test_kinds_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="the training data hold table and the target tokens"):
        pair(torch.zeros(9, 2), torch.zeros(9, 2, dtype=torch.int64))


def test_rows_of_another_width_and_unknown_rows_are_refused() -> None:
    wide, narrow = (TensorDataset(torch.randn(120, width)) for width in (5, 3))
    with pytest.raises(
        ValueError, match=r"training data has the shape \[5\] .* \[3\], or other targets: pass"
    ):
        Pair(Rows(wide), Rows(narrow))
    targets = TensorDataset(wide.tensors[0], torch.zeros(120, 2))
    with pytest.raises(
        ValueError, match=r"training data has the shape \[5\] .* or other targets: pass"
    ):
        Pair(Rows(TensorDataset(wide.tensors[0], torch.zeros(120))), Rows(targets))
    column = Rows(TensorDataset(wide.tensors[0], torch.zeros(120, 1)))
    Pair(Rows(TensorDataset(wide.tensors[0], torch.zeros(120))), column)  # as many values
    colour, grey = (Rows(TensorDataset(torch.zeros(9, channels, 8, 8))) for channels in (3, 1))
    with pytest.raises(
        ValueError, match=r"shape \[3, 8, 8\] .* \[1, 8, 8\], or other targets: pass"
    ):
        Pair(colour, grey)
    with pytest.raises(ValueError, match="a sampler of its own"):
        Rows(DataLoader(wide, sampler=[3, 1, 1]))  # type: ignore[arg-type]
