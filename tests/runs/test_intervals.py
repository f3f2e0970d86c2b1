"""Intervals of means: by hand, by coverage, and where there is none."""

from __future__ import annotations

import math
from statistics import mean, stdev

import numpy as np
import pytest

from astkit.profiling import bootstrap_interval
from astkit.runs.intervals import MANY, mean_interval, paired_difference, split_error
from astkit.trainers.evaluator import wilson_interval

QUANTILES = {2: 12.706204736432095, 4: 3.182446305284263}  # Student's, 97.5 %, by number of values


@pytest.mark.parametrize(
    ("n", "count"), [(3, 500), *(pytest.param(n, 4000, marks=pytest.mark.full) for n in (3, 5, 10))]
)
def test_the_interval_covers_the_true_mean_as_often_as_it_says(n: int, count: int) -> None:
    draws = np.random.default_rng(n).normal(0.7, 0.02, (count, n))
    found = [mean_interval(row.tolist()) for row in draws]
    covered = mean(interval.low <= 0.7 <= interval.high for interval in found)
    assert covered == pytest.approx(0.95, abs=0.015 if count > 1000 else 0.03)


def test_few_values_have_students_interval_and_many_a_bootstrap() -> None:
    for n, quantile in QUANTILES.items():
        values = [0.5, 0.7, 0.4, 0.8][:n]
        half = quantile * stdev(values) / math.sqrt(n)
        expected = (mean(values), mean(values) - half, mean(values) + half, n)
        assert tuple(mean_interval(values)) == pytest.approx(expected)
    many = np.random.default_rng(0).normal(size=MANY).tolist()
    assert mean_interval(many)[1:3] == bootstrap_interval(many, "mean")
    assert mean_interval([0.5] * 3) == (0.5, 0.5, 0.5, 3)


def test_one_value_has_no_interval_and_absent_ones_do_not_count() -> None:
    alone = mean_interval([0.5, None, math.nan])
    assert (alone.mean, alone.n) == (0.5, 1)
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)
    assert str(alone) == "+50.00%, n = 1, so without an interval"
    assert mean_interval([]).n == 0
    assert math.isnan(mean_interval([]).mean)


def test_differences_are_paired_by_key() -> None:
    gap = paired_difference({0: 0.9, 1: 0.8, 2: 0.1}, {1: 0.6, 0: 0.5, 3: 0.0})
    assert gap == mean_interval([0.9 - 0.5, 0.8 - 0.6])
    assert format(gap, ".1f") == "0.3 [-1.0, 1.6], n = 2"


def test_the_error_of_the_test_split_is_half_of_wilsons_interval() -> None:
    low, high = wilson_interval(90, 100)
    assert split_error(0.9, 100) == pytest.approx((high - low) / 2)
    assert split_error(0.9, 10_000) == pytest.approx(1.96 * math.sqrt(0.09 / 10_000), rel=1e-3)
