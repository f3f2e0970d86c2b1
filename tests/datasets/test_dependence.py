"""Rows that depend on their neighbours: known times, blocks, rows sorted by class."""

import math

import numpy as np
import pytest
from scipy import signal

from astkit.datasets import dependence
from astkit.datasets.dependence import (
    Array,
    autocorrelation_time,
    block_length,
    block_means,
    block_numbers,
    centred,
    sorted_by,
)


def series(rows: int, memory: float, random: np.random.Generator) -> Array:
    """A first-order autoregression of variance 1: its autocorrelation at lag k is memory**k."""
    noise = random.normal(size=rows + 400) * math.sqrt(1 - memory**2)
    values: Array = signal.lfilter([1], [1, -memory], noise)[400:]
    return values


def test_independent_rows_are_rarely_taken_for_a_series() -> None:
    random = np.random.default_rng(0)
    drawn = (
        lambda: random.normal(size=300),
        lambda: (random.random(300) < 0.03).astype(float),  # few errors
        lambda: random.standard_t(2, size=(300, 5)),  # far outliers
    )
    for draw in drawn:
        found = [autocorrelation_time(draw()) > 1 for _ in range(60)]
        assert sum(found) <= 13  # expected: 6, and three standard deviations
    for values in (np.zeros(50), np.ones((50, 3)), random.normal(size=5), np.empty((40, 0))):
        assert autocorrelation_time(values) == 1


@pytest.mark.parametrize(("rows", "memory"), [(400, 0.5), (2000, 0.9), (8000, 0.97)])
def test_the_time_of_an_autoregression_is_known(rows: int, memory: float) -> None:
    random = np.random.default_rng(1)
    found = [autocorrelation_time(series(rows, memory, random)) for _ in range(20)]
    assert np.median(found) == pytest.approx((1 + memory) / (1 - memory), rel=0.2)


def test_the_time_of_overlapping_windows_is_their_overlap() -> None:
    random = np.random.default_rng(2)
    found = [
        autocorrelation_time(np.convolve(random.normal(size=1011), np.ones(12), "valid"))
        for _ in range(20)
    ]
    assert np.median(found) == pytest.approx(12, rel=0.2)


def test_of_several_columns_the_most_dependent_one_counts() -> None:
    random = np.random.default_rng(3)
    columns = random.normal(size=(1000, 6))
    assert autocorrelation_time(columns) == 1
    columns[:, 4] = 1e-3 * series(1000, 0.9, random)
    assert autocorrelation_time(columns) == pytest.approx(19, rel=0.6)


def test_values_that_rows_share_in_other_columns_are_found() -> None:
    """Each column alone is independent from row to row."""
    random = np.random.default_rng(6)
    values = random.normal(size=3000)
    windows = np.lib.stride_tricks.sliding_window_view(values, 12)[::4]
    assert autocorrelation_time(windows[:, 0]) == 1
    assert autocorrelation_time(windows) == pytest.approx(2, rel=0.2)  # of two columns at most
    assert autocorrelation_time(random.permutation(windows)) == 1


def test_blocks_are_long_few_and_have_the_same_mean() -> None:
    assert block_length(1.0, 500) == 1
    assert block_length(9.0, 500) == 54
    assert block_length(2.0, 5000) == 250  # at most 20 of them
    assert block_length(200.0, 500) == 500 // 6  # at least 6
    values = np.random.default_rng(4).normal(size=(3, 503))
    means = block_means(values, 40)
    assert means.shape == (3, 12)
    assert means.mean(1) == pytest.approx(values.mean(1))
    number = block_numbers(503, 40)
    assert set(np.bincount(number)) == {41, 42}
    assert means[1, 2] == pytest.approx(values[1, number == 2].sum() * 12 / 503)
    assert block_means(values, 1) == pytest.approx(values)


def test_the_rest_of_dependence_between_blocks_is_that_of_an_autoregression() -> None:
    """Variances of means from all covariances, literally."""
    memory, rows, blocks = 0.8, 120, 6
    lags = np.abs(np.subtract.outer(np.arange(rows), np.arange(rows)))
    covariance = memory**lags
    of_mean = covariance.mean()
    number = block_numbers(rows, rows // blocks)
    of_blocks = np.mean([covariance[number == b][:, number == b].mean() for b in range(blocks)])
    seen = (of_blocks - of_mean) / (blocks - 1)  # expected variance of the block means / blocks
    time = (1 + memory) / (1 - memory)
    assert dependence.rest(time, rows, blocks) == pytest.approx(of_mean / seen, rel=0.05)
    assert dependence.rest(1.0, rows, blocks) == 1


def test_rows_sorted_by_class_are_told_from_states_of_a_recording() -> None:
    folder = np.repeat([0, 1, 2], 40)
    assert sorted_by(folder)
    assert sorted_by(np.repeat([2.0, 0.0], [90, 10]))
    assert not sorted_by(np.repeat([0, 1, 0, 2], 30))  # a state comes again
    assert not sorted_by(np.arange(60) // 2)  # hardly sorted: a class has two rows
    assert not sorted_by(np.zeros(60))
    assert not sorted_by(np.empty(0))
    values = np.random.default_rng(5).normal(size=(120, 2)) + folder[:, None]
    assert autocorrelation_time(values) > 10
    plain = centred(values, folder)
    assert plain.mean(0) == pytest.approx(values.mean(0))
    assert [plain[folder == each].mean() for each in range(3)] == pytest.approx([values.mean()] * 3)
    assert autocorrelation_time(plain) == 1
