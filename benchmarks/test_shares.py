"""Shares of the possible gain: Fieller's interval and its ends, and the committed results."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from astkit.comparison.statistics import Gaps
from benchmarks.gain import RESULTS, ROWS, SEEDS, Run, short
from benchmarks.shares import WHOLE, complete, multipliers, share_of_gain
from tests.comparison.test_statistics import NUMBERS


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_share_of_the_gain_has_fiellers_interval(pairs: list[tuple[float, float]]) -> None:
    policy, oracle = np.array(pairs).T
    n, whole = len(pairs), stats.ttest_1samp(oracle, 0).pvalue if np.ptp(oracle) > 0 else 1.0
    found = share_of_gain(Gaps(policy, None), Gaps(oracle, None))
    if not whole < 0.05 * (1 - 1e-6) or np.ptp(policy) < 1e-3:
        return
    t, cov = stats.t.isf(0.025, n - 1), np.cov(policy, oracle) / n
    a, b = policy.mean(), oracle.mean()
    # roots of (a - f b)^2 = t^2 (v_aa - 2 f v_ab + f^2 v_bb)
    square, linear, rest = (
        b * b - t * t * cov[1, 1],
        -2 * (a * b - t * t * cov[0, 1]),
        a * a - t * t * cov[0, 0],
    )
    half = math.sqrt(max(0.0, linear**2 - 4 * square * rest))
    ends = [(-linear - half) / (2 * square), (-linear + half) / (2 * square)]
    scale = max(map(abs, ends))
    assert found == pytest.approx((a / b, *ends, n), rel=1e-4, abs=1e-4 * scale)


def test_shares_of_the_gain_at_the_ends() -> None:
    random = np.random.default_rng(0)
    rows = 0.5 + random.normal(size=(4, 200))
    oracle = Gaps(rows.mean(1), rows)
    assert share_of_gain(oracle, oracle) == pytest.approx((1, 1, 1, 4))
    nothing = Gaps(np.zeros(4), np.zeros((4, 200)))
    assert share_of_gain(nothing, oracle) == pytest.approx((0, 0, 0, 4))
    assert share_of_gain(oracle, nothing).n == 0
    # a policy that ties over seeds: how it differs from the oracle is not known
    ties = Gaps(np.full(4, 0.1), None)
    assert share_of_gain(ties, oracle).n == 0
    third = Gaps(oracle.values / 3, None)
    assert share_of_gain(third, Gaps(oracle.values, None)) == pytest.approx((1 / 3,) * 3 + (4,))


def test_a_multiplier_is_found_between_two_budgets() -> None:
    """Bits fall by 0.1 each time that the budget doubles."""
    entries = {}
    for spec in short():
        whole = replace(spec, epochs=WHOLE)
        for each in (spec, whole, replace(whole, policy="dense")):
            bits = 3.0 - 0.1 * math.log2(each.epochs / WHOLE)
            bits += (0.05 + 0.01 * each.seed) * (each.policy == "dense")
            entries[each.name] = {"value": bits, "budget": 7e9 * each.epochs}
    found = multipliers(entries)
    shares = [0.5 ** (0.5 + 0.1 * seed) for seed in SEEDS]
    half = stats.t.isf(0.025, 4) * stats.sem(shares)
    assert [each["n"] for each in found] == [5] * 4
    assert [each["share"] for each in found] == pytest.approx([np.mean(shares)] * 4)
    assert found[0]["high"] == pytest.approx(np.mean(shares) + half)
    reached = {name: {**entry, "value": 0.0} for name, entry in entries.items() if "dense" in name}
    assert multipliers({**entries, **reached}) == []  # which no method reaches


def test_a_method_is_shown_once_all_of_its_seeds_are_trained() -> None:
    dense = [Run("cifar10", "clean", 24, "dense", seed) for seed in SEEDS]
    aim = [replace(each, policy="aim") for each in dense]
    assert complete({each.name: {} for each in [*dense, *aim[:-1]]}) == dense
    assert set(complete({each.name: {} for each in [*dense, *aim]})) == {*dense, *aim}


def test_committed_results_by_row_are_those_of_the_committed_runs() -> None:
    runs, rows = json.loads(RESULTS.read_text()), np.load(ROWS)
    assert runs.keys() == set(rows.files)
    for name, run in runs.items():
        assert rows[name].mean(dtype=float) == pytest.approx(run["value"], rel=1e-3), name
