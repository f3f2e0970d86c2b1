"""Intervals of means and numbers of seeds: by hand, by coverage, and against scipy.stats."""

from __future__ import annotations

import math
import sys
from statistics import mean, stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from astkit.profiling import bootstrap_interval
from astkit.runs.intervals import (
    MANY,
    Interval,
    mean_interval,
    paired_difference,
    ratio_interval,
    seeds_for,
    seeds_needed,
    simultaneous,
    smallest_effect,
    split_error,
    student_interval,
)
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


def test_equal_values_have_no_interval_and_decide_nothing() -> None:
    for n in (2, 5, MANY):
        values = [0.1 + 0.2, 0.3] * (n // 2) + [0.3] * (n % 2)  # equal but for rounding
        for found in (student_interval(values), mean_interval(values), ratio_interval(values)):
            assert (found.mean, found.n) == (pytest.approx(0.3), n)
            assert math.isnan(found.low)
            assert math.isnan(found.high)
    gap = paired_difference({0: 0.9, 1: 0.8}, {0: 0.89, 1: 0.79})
    assert gap.verdict() == "undecided"
    assert str(gap) == "+1.00%, n = 2, all equal, so without an interval"


def test_students_interval_is_that_of_scipy_at_any_confidence_and_size() -> None:
    values = np.random.default_rng(1).normal(size=MANY + 5).tolist()
    for confidence in (0.5, 0.95, 1 - 0.05 / 6):
        expected = stats.ttest_1samp(values, 0).confidence_interval(confidence)
        assert student_interval(values, confidence)[1:3] == pytest.approx(tuple(expected))
    assert student_interval([]).n == 0
    assert Interval(0.2, 0.1, 0.3, 5).text("+.1f", " points") == "+0.2 points [+0.1, +0.3]"
    assert student_interval([2.0]).text(".1f", " s") == "2.0 s"


def test_the_interval_of_ratios_is_that_of_their_logarithms() -> None:
    found = ratio_interval([0.5, 2.0, 8.0], 0.9)
    ends = np.exp(stats.ttest_1samp(np.log([0.5, 2.0, 8.0]), 0).confidence_interval(0.9))
    assert found == pytest.approx((2.0, *ends, 3))
    inverse = ratio_interval([2.0, 0.5, 0.125], 0.9)
    assert (inverse.low, inverse.high) == pytest.approx((1 / found.high, 1 / found.low))
    assert ratio_interval([1.5]).mean == pytest.approx(1.5)
    assert math.isnan(ratio_interval([]).mean)


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


def test_a_verdict_needs_the_whole_interval_on_one_side_of_zero() -> None:
    cases = {(1, 2, 3): "better", (-3, -2, -1): "worse", (-1, 0, 1): "undecided"}
    for (low, middle, high), words in cases.items():
        assert Interval(middle, low, high, 5).verdict() == words
    assert mean_interval([1.0]).verdict() == "undecided"
    assert Interval(1, 0.5, 2, 5).verdict("slower", "faster") == "slower"


def test_the_error_of_the_test_split_is_half_of_wilsons_interval() -> None:
    low, high = wilson_interval(90, 100)
    assert split_error(0.9, 100) == pytest.approx((high - low) / 2)
    assert split_error(0.9, 10_000) == pytest.approx(1.96 * math.sqrt(0.09 / 10_000), rel=1e-3)


@given(
    st.lists(
        st.lists(st.integers(-3000, 3000).map(lambda x: x / 1000), min_size=2, max_size=6),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=60, deadline=None)
def test_simultaneous_intervals_exclude_0_exactly_where_holm_rejects(
    rows: list[list[float]],
) -> None:
    differences = {f"policy {place}": row for place, row in enumerate(rows)}
    found = simultaneous(differences)
    usable = {k: row for k, row in differences.items() if stdev(row) > 1e-9 * max(map(abs, row))}
    p = {name: stats.ttest_1samp(row, 0).pvalue for name, row in usable.items()}
    rejected, rest = set(), len(rows)
    for name in sorted(p, key=p.__getitem__):
        if p[name] >= 0.05 / rest:
            break
        rejected.add(name)
        rest -= 1
    for name, row in differences.items():
        mean, low, high, n = found[name]
        assert (mean, n) == (pytest.approx(np.mean(row), abs=1e-12), len(row))
        assert (low > 0 or high < 0) is (name in rejected)
        if name not in usable:
            assert math.isnan(low)
            continue
        dunn = stats.ttest_1samp(row, 0).confidence_interval(1 - 0.05 / len(rows))
        ends = [max(dunn.low, 0), dunn.high] if mean > 0 else [dunn.low, min(dunn.high, 0)]
        expected = ends if name in rejected else list(dunn)
        assert [low, high] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_holm_rejects_what_bonferroni_does_not_and_cuts_its_interval_at_0() -> None:
    clear, weak = [1.0, 1.1, 0.9, 1.0, 1.05], [1.0, 0.2, 0.5, 1.0, 0.1]
    assert 0.025 < stats.ttest_1samp(weak, 0).pvalue < 0.05
    found = simultaneous({"weak": weak, "clear": clear})
    assert sys.float_info.min <= found["weak"].low < 1e-9  # not 0 without denormal numbers
    assert found["clear"].low > 0.8
    mirrored = simultaneous({"weak": [-x for x in weak], "clear": clear})["weak"]
    assert (mirrored.low, mirrored.high) == (-found["weak"].high, -found["weak"].low)
    assert simultaneous({"weak": weak, "none": [1.0, -1.0, 0.5]})["weak"].low < 0


def test_the_number_of_seeds_is_the_smallest_with_the_power() -> None:
    def power(effect: float, n: int, error: float) -> float:
        return float(stats.nct.sf(stats.t.isf(error / 2, n - 1), n - 1, effect * math.sqrt(n)))

    for effect, error in [(0.3, 0.05), (1, 0.01), (-2, 0.05 / 6), (9, 0.05)]:
        n = seeds_for(effect, error)
        assert power(abs(effect), n, error) >= 0.8
        assert n == 2 or power(abs(effect), n - 1, error) < 0.8
    assert seeds_for(1e-9) == 100_000
    values = [0.1, 0.5, -0.2, 0.9]
    least = smallest_effect(values, 0.01)
    assert power(least / stdev(values), 4, 0.01) == pytest.approx(0.8, abs=1e-5)


def test_the_range_of_seeds_follows_the_interval_of_the_spread() -> None:
    values = [0.1, 0.5, 0.2, 0.9]
    ends = [stdev(values) * math.sqrt(3 / stats.chi2.ppf(p, 3)) for p in (0.9, 0.5, 0.1)]
    found = seeds_needed(values, 0.02)
    assert found is not None
    assert (found.low, found.high) == tuple(seeds_for(mean(values) / s, 0.02) for s in ends[::2])
    assert found.expected == seeds_for(mean(values) / stdev(values), 0.02)
    assert found.low < found.expected < found.high
    nothing = ([], [1.0], [0.5] * 4, [1.0, -1.1, 0.4])  # the last is below its standard error
    assert [seeds_needed(each) for each in nothing] == [None] * 4


@pytest.mark.full
def test_adding_the_seeds_that_are_needed_is_not_a_test_at_5_percent() -> None:
    random, wrong, count = np.random.default_rng(7), {1: 0, 5: 0}, 2000
    for _ in range(count):
        values = random.normal(size=5).tolist()
        for followed in range(6):
            if student_interval(values).verdict() != "undecided":
                wrong = {times: n + (followed <= times) for times, n in wrong.items()}
                break
            needed = seeds_needed(values)
            if needed is None or len(values) > 400:
                break
            values += random.normal(size=max(1, needed.expected - len(values))).tolist()
    assert {times: n / count for times, n in wrong.items()} == pytest.approx(
        {1: 0.08, 5: 0.10}, abs=0.02
    )  # docs/compare.md
