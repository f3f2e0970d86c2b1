"""Rows that depend on each other stay together, and what cannot be compared is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import signal
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from astkit.aim.rows import Rows
from astkit.aim.sides import Sides
from astkit.datasets import Images
from astkit.datasets.dependence import FEWEST, autocorrelation_time, block_length, block_numbers
from astkit.datasets.table import Table
from tests import build
from tests.aim.pairs import labelled, sides, sides_of_data
from tests.build import refused


def test_groups_stay_together() -> None:
    both = labelled(torch.arange(120) % 2, torch.arange(90) % 2, 6)
    groups, of_target = both.old.groups, both.target.groups
    assert groups is not None
    assert of_target is not None
    half = both.folds(1, 2, "halves")
    for part in (half == 0, half == 1):
        assert of_target[part].bincount(minlength=6).unique().tolist() == [0, 15]
        assert int(part.sum()) == 45
    assert len(groups[both.sample].unique_consecutive()) == 6
    rows = torch.randperm(120, generator=torch.Generator().manual_seed(0))[:50]
    assert len(groups[both.by_unit(rows)].unique_consecutive()) == 6
    drawn = both.folds(0, 3, "folds")
    assert all(len(drawn[groups == group].unique()) == 1 for group in range(6))
    assert both.worth == 6


def recording(rows: int, seed: int, memory: float = 0.8) -> tuple[Tensor, Tensor]:
    """Windows ``[rows, 2, 1]`` of a first-order autoregression, and the sign of its last value."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=rows + 301)
    values = signal.lfilter([1], [1, -memory], noise)[300:]
    windows = torch.from_numpy(np.stack([values[:-1], values[1:]], 1)).float()
    return windows[:, :, None], (windows[:, 1] > 0).long()


def test_consecutive_rows_of_a_series_stay_together() -> None:
    """Blocks are as long as the target says, or the median of as long parts of the old rows."""
    x, y = recording(1700, 0)
    series = sides(x[:1200], x[1200:], y[:1200], y[1200:], in_order=None)
    parts = [slice(1200, 1700), slice(0, 500), slice(350, 850), slice(700, 1200)]
    signs = [np.eye(2)[y[part]] for part in parts]
    both = [np.hstack([x[part].flatten(1), sign]) for part, sign in zip(parts, signs, strict=True)]
    whole, of_signs = (list(map(autocorrelation_time, each)) for each in (both, signs))
    time = max(whole[0], float(np.median(whole[1:])))
    assert 9 / 1.5 < time < 9 * 2  # (1 + 0.8) / (1 - 0.8) rows are worth one
    of_targets = max(of_signs[0], float(np.median(of_signs[1:])))
    assert series.worth == pytest.approx(500 / of_targets)
    lengths = [block_length(each, 500) for each in (time, of_targets)]
    own = series.units[0]
    assert own.tolist() == block_numbers(1200, lengths[0]).tolist()
    assert series.units[1].tolist() == block_numbers(500, lengths[0]).tolist()
    assert series.judged.tolist() == block_numbers(500, lengths[1]).tolist()
    drawn = series.folds(0, 3, "folds")
    assert all(len(drawn[own == each].unique()) == 1 for each in range(1 + int(own.max())))
    counts = torch.stack([drawn[own == each][0] for each in range(1 + int(own.max()))]).bincount()
    assert counts.max() - counts.min() <= 1
    assert series.sample.sort().values.equal(torch.arange(1200))
    assert bool((series.sample[: lengths[0] // 2].diff() == 1).all())
    assert series.forward
    assert "rows seem to be in an order (in_order=False if not)" in series.notes


def test_rows_in_random_order_or_sorted_by_class_are_single_rows() -> None:
    x, y = recording(1700, 0)
    order = torch.from_numpy(np.random.default_rng(0).permutation(1700))
    by_class = (y[order]).argsort(stable=True)
    random = TensorDataset(x[order], y[order])
    folder = TensorDataset(x[order][by_class], y[order][by_class])
    for old, target in ((random, random), (folder, folder), (TensorDataset(x, y), random)):
        both = sides_of_data(old, target, in_order=None)
        assert both.worth == 1700
        assert both.units[0].equal(torch.arange(1700))
        assert not both.forward
        assert not both.apart
        assert both.notes == []


def test_shuffled_rows_are_in_no_order() -> None:
    """Of 60 samples about one is said to be; before they were shuffled all are."""

    def forward(seed: int, shuffled: bool = True) -> bool:
        x, y = recording(700, seed, 0.9)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(200)) + 500
        order = order if shuffled else torch.arange(500, 700)
        old = torch.randn(500, 2, 1, generator=torch.Generator().manual_seed(seed))
        return sides(old, x[order], torch.arange(500) % 2, y[order], in_order=None).forward

    assert sum(map(forward, range(60))) <= 3
    assert all(forward(seed, shuffled=False) for seed in range(3))


@pytest.mark.parametrize("seed", range(12))
def test_short_series_are_divided_into_shorter_blocks(seed: int) -> None:
    x, y = recording(200, seed, 0.97)
    both = sides(x, x, y, y, seed=seed, in_order=None)
    assert both.worth < FEWEST
    assert len(both.units[1].unique()) >= 6
    half, parts = both.folds(1, 2, "halves"), both.folds(0, 3, "folds")
    for part in (0, 1):
        assert len(parts[half == part].unique()) > 1


def test_rows_of_a_date_stay_together_in_its_order() -> None:
    old, target = build.table(300, 0), build.table(120, 1)
    old["day"] = days(300, 0)
    target["day"] = days(120, 40)[::-1]
    table = Table(old, "y")
    both = Sides(Rows(table), Rows(Table(target, like=table)))
    both.find_units(date="day")
    assert both.judged.tolist() == [11 - row // 10 for row in range(120)]
    assert both.units[0].tolist() == [row // 10 for row in range(300)]
    assert both.forward
    with pytest.raises(ValueError, match="date is 'place', a column of words: give one of dates"):
        both.find_units(date="place")


def days(rows: int, first: int) -> Any:
    """Ten rows a day, at different hours."""
    hours = 24 * (first + np.arange(rows) // 10) + np.arange(rows) % 10
    return np.datetime64("2020-01-01T00") + hours.astype("timedelta64[h]")


# --- rows of equal inputs ---------------------------------------------------------------------


def rows_of(kind: str, count: int, random: torch.Generator) -> Any:
    """A data set or list of ``count`` random rows of one kind."""
    if kind == "table":
        x = torch.randn(count, 6, generator=random)
        return TensorDataset(x, x[:, :1] + torch.randn(count, 1, generator=random))
    if kind == "images":
        pixels = torch.randint(0, 256, (count, 1, 8, 8), generator=random).to(torch.uint8)
        return Images(pixels, torch.arange(count) % 2, ("a", "b"), "noise")
    if kind == "items":
        return list(torch.randn(count, 6, generator=random))
    words = torch.randint(0, 500, (count, 12), generator=random)
    if kind == "tokens":
        return TensorDataset(words, words)
    return [" ".join(f"w{word}" for word in row) for row in words.tolist()]


def again(data: Any, rows: Tensor) -> Any:
    """The ``rows`` of ``data``, which may repeat."""
    if isinstance(data, TensorDataset):
        return TensorDataset(*data[rows])
    return [data[row] for row in rows.tolist()] if isinstance(data, list) else data.subset(rows)


@pytest.mark.parametrize("kind", ["table", "items", "images", "tokens", "texts"])
def test_rows_of_equal_inputs_are_one_unit(kind: str) -> None:
    """On either side, wherever they stand; what the other side has too is no copy."""
    random = torch.Generator().manual_seed(1)
    data, target = rows_of(kind, 90, random), rows_of(kind, 60, random)
    four = torch.arange(90).repeat(4)[torch.randperm(360, generator=random)]
    both = sides_of_data(again(data, four), target)
    assert both.units[0].bincount().tolist() == [4] * 90
    assert both.worth == 60
    assert both.notes == []
    assert len(both.firsts(0, torch.arange(360))) == 90
    drawn = both.folds(0, 3, "folds")
    assert all(len(drawn[four == row].unique()) == 1 for row in range(90))
    other = sides_of_data(target, again(data, four))
    assert other.judged.bincount().tolist() == [4] * 90
    assert other.worth == pytest.approx(90)
    assert other.notes == ["360 rows have 90 different inputs"]
    common = sides_of_data(data, again(data, four))
    assert common.judged.equal(torch.arange(360))
    assert common.worth == 360


# --- what can be compared ---------------------------------------------------------------------


def test_integers_of_a_small_target_are_the_classes_of_the_old_rows() -> None:
    labels = torch.arange(4000) % 200
    old = Rows(TensorDataset(torch.randn(4000, 4), labels))
    few = torch.arange(150) % 20 + 180
    both = Sides(old, Rows(TensorDataset(torch.randn(150, 4), few)))
    assert both.labels is not None
    assert both.labels[1].equal(few)
    for others in (few + 20, few / 2):
        assert Sides(old, Rows(TensorDataset(torch.randn(150, 4), others))).labels is None


def test_sides_that_cannot_be_compared_are_refused() -> None:
    wide, narrow = torch.randn(120, 5), torch.randn(120, 3)
    one, two, classes = torch.zeros(120), torch.zeros(120, 2), torch.arange(120) % 2
    said = r"training data has the shape \[5\] .* or other targets: pass"
    colour, grey = (torch.zeros(9, channels, 8, 8) for channels in (3, 1))
    loader = DataLoader(TensorDataset(wide), sampler=[3, 1, 1])  # type: ignore[arg-type]
    refused(
        (lambda: sides(wide, narrow), said),
        (lambda: sides(wide, wide, one, two), said),
        (lambda: sides(colour, grey), r"shape \[3, 8, 8\] .* \[1, 8, 8\], or other targets"),
        (lambda: sides(wide, wide.long()), "the training data hold table and the target tokens"),
        (
            lambda: sides(wide, wide, classes, classes + 2, classes=True),
            "no training row has a class of the target",
        ),
        (lambda: Rows(loader), "a sampler of its own"),
    )
    sides(wide, wide, one, one[:, None])  # as many values
