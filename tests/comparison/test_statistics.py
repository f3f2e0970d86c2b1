"""Differences, intervals over seeds and rows, tests and numbers of seeds, by slow references."""

import math
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import signal, stats

from astkit.comparison import statistics
from astkit.comparison.statistics import (
    Estimate,
    Interval,
    estimate,
    holm,
    mean_interval,
    paired_difference,
    ratio_interval,
    seeds_needed,
)

NUMBERS = st.integers(-3000, 3000).map(lambda value: value / 1000)


def entry(policy: str, seed: int = 0, value: float = 0.9, **others: Any) -> dict[str, Any]:
    """The entry of a run that ends with this value, on the test and the validation data."""
    curve = [[25.0, 5.0, 0.4], [50.0, 10.0, 0.8], [100.0, 20.0, value]]
    plain = {"seconds": 20.0, "flops": 100.0, "trained": 1000, "scored": 0, "rate": 1.0}
    return {"policy": policy, "seed": seed, "value": value, **plain, "curve": curve, **others}


def test_students_interval_is_that_of_scipy_at_any_confidence() -> None:
    values = np.random.default_rng(1).normal(size=25).tolist()
    for n, error in ((2, 0.05), (4, 0.5), (25, 0.05 / 6)):
        expected = stats.ttest_1samp(values[:n], 0).confidence_interval(1 - error)
        found = mean_interval([*values[:n], None, math.nan], error)
        assert found == pytest.approx((mean(values[:n]), *expected, n))
    ratios = ratio_interval([0.5, 2.0, 8.0])
    ends = np.exp(stats.ttest_1samp(np.log([0.5, 2.0, 8.0]), 0).confidence_interval())
    assert ratios == pytest.approx((2.0, *ends, 3))


def test_without_a_spread_there_is_no_interval() -> None:
    for values, n in (([], 0), ([0.5], 1), ([0.1 + 0.2, 0.3], 2)):  # equal but for rounding
        for interval in (mean_interval(values), ratio_interval(values)):
            assert interval.n == n
            assert math.isnan(interval.low)
            assert math.isnan(interval.mean) == (n == 0)
            assert interval.verdict() == "cannot tell yet"
    gap = paired_difference({0: 0.9, 1: 0.8, 2: 0.1}, {0: 0.89, 1: 0.79, 3: 0.0})
    assert str(gap) == "+1.00%, n = 2, all equal or too few, so without an interval"
    assert str(mean_interval([0.5])) == "+50.00%, n = 1, so without an interval"
    assert mean_interval([]).text(".1f") == "–"


def test_the_interval_of_an_accuracy_stays_within_its_limits() -> None:
    values = [0.9, 0.99, 1.0, 0.6]
    free = mean_interval(values)
    assert free.high > 1
    assert mean_interval(values, limits=(0, 1)) == free._replace(high=1)
    assert mean_interval([0.1, 0.0, 0.02], limits=(0, 1)).low == 0
    two = mean_interval([0.9, 0.8], limits=(0, 1))
    assert two.text(".2f") == "0.85"
    assert Interval(9.0, 8.99, 9.01, 5).text(".0f") == "9"  # no digits that all are equal


def test_intervals_as_words() -> None:
    words = {(1, 2, 3): "higher", (-3, -2, -1): "lower", (-1, 0, 1): "cannot tell yet"}
    for (low, middle, high), expected in words.items():
        assert Interval(middle, low, high, 5).verdict() == expected
    assert Interval(1, 0.5, 2, 5).verdict("slower", "faster") == "slower"
    assert f"{Interval(0.2, 0.1, 0.3, 5):.1f}" == "0.2 [0.1, 0.3], n = 5"


@given(st.integers(2, 5), st.integers(2, 8), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_variance_is_that_of_a_two_way_analysis_of_variance(s: int, r: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(s, r)) + random.normal(size=r) + random.normal(size=(s, 1))
    grand, of_seeds, of_rows = rows.mean(), rows.mean(1), rows.mean(0)
    residuals = rows - of_seeds[:, None] - of_rows + grand
    ms_seeds = r * ((of_seeds - grand) ** 2).sum() / (s - 1)
    ms_rows = s * ((of_rows - grand) ** 2).sum() / (r - 1)
    ms_residual = (residuals**2).sum() / ((s - 1) * (r - 1))
    found = estimate(of_seeds.tolist(), rows)
    assume(not found.blocks)  # a few rows may look as if they followed each other
    assert found.mean == pytest.approx(grand)
    assert found.seeds == pytest.approx(ms_seeds / (s * r))
    assert found.common == pytest.approx(max(0.0, ms_rows - ms_residual) / (s * r))
    assert (found.n, found.units) == (s, r)


def test_rows_that_are_unknown_or_equal_for_all_seeds() -> None:
    rows = np.random.default_rng(1).normal(size=(3, 50))
    values = rows.mean(1).tolist()
    gaps = np.concatenate([rows, [[math.nan]] * 3], axis=1)  # a row without a label
    assert estimate(values, gaps) == estimate(values, rows)
    assert estimate(values).common == 0
    same = np.tile(rows[0], (3, 1))
    found = estimate(same.mean(1).tolist(), same)  # a model without randomness
    assert found.seeds == 0
    expected = stats.ttest_1samp(rows[0], 0).confidence_interval()
    assert found.interval()[1:3] == pytest.approx(tuple(expected))
    nothing = estimate([0.0] * 3, np.zeros((3, 50))).interval()
    assert nothing == (0.0, 0.0, 0.0, 3)
    assert estimate([0.0] * 3).p() == estimate([0.5]).p() == estimate([]).p() == 1


def differences(kind: str, random: np.random.Generator, rows: int = 600) -> np.ndarray:
    """Of two methods that are equally good, on rows that follow each other, ``[5, rows]``."""

    def errors() -> np.ndarray:
        if kind == "states":  # of a recording, in each of which it is right or wrong
            state = np.cumsum(random.random(rows) < 0.1)
            right: np.ndarray = (random.random(rows) < 0.6)[state].astype(float)
            return right
        noise = random.normal(size=rows + 400)
        if kind == "overlapping windows":
            return np.convolve(noise, np.ones(12), "same")[200:-200] ** 2
        return np.asarray(signal.lfilter([1], [1, -0.9], noise))[400:]

    gap = errors() - errors()
    return np.stack([gap + 0.1 * random.normal(size=rows) for _ in range(5)])


@pytest.mark.parametrize("kind", ["autoregression", "overlapping windows", "states"])
def test_intervals_cover_where_neighbouring_rows_depend_on_each_other(kind: str) -> None:
    """As independent rows they cover 40 to 60 %."""
    random, covered = np.random.default_rng(0), 0
    for _ in range(120):
        rows = differences(kind, random)
        found = estimate(rows.mean(1).tolist(), rows)
        assert found.blocks
        assert found.worth < 300
        low, high = found.interval()[1:3]
        covered += low <= 0 <= high
    assert covered >= 107  # expected: 114, and three standard deviations


@given(st.floats(-3, 3), st.integers(2, 9), st.floats(0, 2), st.floats(-1, 1))
@settings(max_examples=60, deadline=None)
def test_p_is_the_error_at_which_the_interval_ends_at_the_value(centre, n, common, value):
    found = Estimate(centre, n, 0.3, common, 300)
    p = found.p(value)
    assert 0 < p <= 1
    if 1e-9 < p < 1:
        _, low, high, _ = found.interval(p)
        assert min(abs(low - value), abs(high - value)) < 1e-6
    if not common:
        t = (centre - value) / math.sqrt(0.3)
        assert p == pytest.approx(2 * stats.t.sf(abs(t), n - 1), abs=1e-9)


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1).map(lambda p: p**3), max_size=6))
@settings(max_examples=50, deadline=None)
def test_holm_rejects_what_its_adjusted_p_values_say(p: dict[str, float]) -> None:
    adjusted, worst = {}, 0.0
    for place, name in enumerate(sorted(p, key=p.__getitem__)):
        worst = max(worst, (len(p) - place) * p[name])
        adjusted[name] = worst
    clear = {name for name, value in adjusted.items() if abs(value - 0.05) > 1e-12}
    assert holm(p) & clear == {name for name in clear if adjusted[name] < 0.05}


def test_seeds_alone_do_not_make_up_for_few_test_rows() -> None:
    n = seeds_needed(Estimate(1.0, 5, 1 / 5, 0.1, 300))
    assert n is not None
    random = np.random.default_rng(0)
    shown = 0
    for _ in range(1500):
        seeds = random.chisquare(n - 1) / (n - 1) / n
        centre = 1 + random.normal() * math.sqrt(1 / n + 0.1)
        shown += Estimate(centre, int(n), seeds, 0.1, 1000).interval().low > 0
    assert shown / 1500 == pytest.approx(0.8, abs=0.05)
    assert seeds_needed(Estimate(1.0, 5, 1 / 5, 0.15, 300)) == math.inf
    assert seeds_needed(Estimate(1.0, 5, 0.0, 0.15, 300)) == math.inf
    assert seeds_needed(Estimate(1.0, 5, 0.0, 0.01, 300)) is None  # seeds make no difference
    nothing = ([], [1.0], [0.5] * 4, [1.0, -1.1, 0.4])  # the last is below its standard error
    assert [seeds_needed(estimate(each)) for each in nothing] == [None] * 4


def test_the_random_control_of_a_seed_is_the_one_with_its_rate() -> None:
    rates = (0.30, 0.344, 0.5, 0.005, 0.0211)
    controls = {"0.30": 0.3, "0.35": 0.35, "0.02": 0.02}
    arms = statistics.by_arm(
        [entry("a", seed, rate=rate) for seed, rate in enumerate(rates)]
        + [entry(f"random at {n}", s, rate=r) for n, r in controls.items() for s in range(5)]
        + [entry("random(0.5)", s, rate=0.5) for s in range(5)]  # one of the policies
    )
    found = statistics.random_control(arms["a"], arms)
    assert {s: run["rate"] for s, run in found.items()} == {0: 0.3, 1: 0.35, 2: 0.5, 4: 0.02}
    assert not statistics.random_control(arms["random(0.5)"], arms)


@pytest.mark.parametrize("lost", [None, math.nan, math.inf])
def test_differences_and_costs_leave_out_what_is_not_known(lost: float | None) -> None:
    arm = {seed: entry("a", seed, value) for seed, value in enumerate((0.9, 0.5, 0.7, 0.8))}
    dense = {seed: entry("dense", seed, 0.5, flops=50.0) for seed in (0, 1, 2)}
    arm[1]["value"] = lost
    assert statistics.gaps(arm, dense).values == pytest.approx([0.4, 0.2])
    assert statistics.cost_ratio(arm, dense, "flops")[::3] == (2.0, 2)
    dense[2]["flops"] = lost
    assert statistics.cost_ratio(arm, dense, "flops")[::3] == (2.0, 1)
    dense[0]["flops"] = 0
    assert statistics.cost_ratio(arm, dense, "flops").n == 0


def test_rows_are_paired_and_all_or_none() -> None:
    arm = {seed: entry("a", seed) for seed in range(2)}
    dense = {seed: entry("dense", seed) for seed in range(2)}
    results = {("a", 0): [1, 0], ("a", 1): [1, 1], ("dense", 0): [0, 0], ("dense", 1): [0, 1]}

    def rows(run: Any) -> torch.Tensor | None:
        found = results.get((run["policy"], run["seed"]))
        return None if found is None else torch.tensor(found)

    found = statistics.gaps(arm, dense, rows)
    assert found.rows is not None
    assert found.rows.tolist() == [[1, 0], [1, 0]]
    del results["dense", 1]
    assert statistics.gaps(arm, dense, rows).rows is None
