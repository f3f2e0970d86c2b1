"""Verdicts: outcomes, intervals and sentences, against scipy.stats and by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from astkit.runs.intervals import Interval, seeds_for, seeds_needed
from astkit.runs.verdict import amount, judge
from tests.runs.test_paired import entry

CLEAR = (0.02, 0.024, 0.018, 0.022, 0.021)
NOISY = (0.02, -0.01, 0.03, -0.005, 0.01)


def entries(
    gaps: Mapping[str, Sequence[float]], base: float = 0.85, **others: Any
) -> list[dict[str, Any]]:
    """Dense, and policies with these differences to it, by seed."""
    seeds = range(max(map(len, gaps.values())))
    rows = [entry("dense", seed, base) for seed in seeds]
    for name, values in gaps.items():
        rows += [entry(name, s, base + gap, **others) for s, gap in enumerate(values)]
    return rows


def said(
    gaps: Sequence[float], metric: str = "accuracy", higher: bool = True, **others: Any
) -> str:
    rows = entries({"x": gaps}, **others)
    for row in rows:  # a curve that reaches dense's value at a cost of its own for each seed
        scale = 1 + row["seed"] / 100
        row["curve"] = [[flops * scale, time * scale, value] for flops, time, value in row["curve"]]
    (found,) = judge(rows, metric, higher)
    return found.sentence


def test_each_outcome_has_its_sentence() -> None:
    lost = [-gap for gap in CLEAR]
    slow = {"seconds": 60.0, "curve": [[25.0, 15.0, 0.4], [50.0, 30.0, 0.8], [100.0, 60.0, 0.9]]}
    needed = seeds_needed(NOISY)
    assert needed is not None
    low, high = needed.low - 5, needed.high - 5
    sentences = [
        said(CLEAR),
        "x pays: dense's accuracy at 0.87 of its seconds [0.85, 0.89], n = 5;"
        " +2.1 points [+1.8, +2.4] at equal FLOPs",
        said(lost),
        "x costs 2.1 points [1.8, 2.4] at equal FLOPs, n = 5",
        said(lost, "loss", False, curve=[]),
        "x pays: -0.021 in loss [-0.024, -0.018] at equal FLOPs, n = 5,"
        " in 1.00 times dense's seconds",
        said(lost, flops=85.0),
        "x costs 2.1 points [1.8, 2.4] at 0.85 of dense's FLOPs, n = 5",
        said(CLEAR, "loss", False),
        "x costs 0.021 in loss [0.018, 0.024] at equal FLOPs, n = 5",
        said(CLEAR, **slow),
        "x pays in FLOPs, not in seconds: dense's accuracy at 0.76 of its FLOPs [0.75, 0.78],"
        " n = 5; +2.1 points [+1.8, +2.4] at equal FLOPs,"
        " in 3.00 times dense's seconds",
        said(CLEAR, seconds=None, flops=None),
        "x pays: +2.1 points [+1.8, +2.4] at the same budget, n = 5",
        said(NOISY),
        "x: undecided, +0.9 points [-1.2, +3.0] at equal FLOPs, n = 5;"
        f" {low} to {high} more seeds would decide a true difference of this size",
        said(NOISY[:2]),
        "x: undecided, +0.5 points [-18.6, +19.6] at equal FLOPs, n = 2;"
        " 2 seeds would decide a difference of 24.5 points or more",
        said(NOISY[:1]),
        "x: undecided, +2.0 points at equal FLOPs, n = 1; one seed has no interval, so add seeds",
        said([0.0] * 3),
        "x: undecided, +0.0 points at equal FLOPs, n = 3; all seeds give the same difference,"
        " so its spread is unknown",
        said(lost, "loss", False, flops=102.0, curve=[]),
        "x pays: -0.021 in loss [-0.024, -0.018] at equal FLOPs, n = 5,"
        " in 1.00 times dense's seconds",
        said(lost, "loss", False, flops=105.0, curve=[]),
        "x pays: -0.021 in loss [-0.024, -0.018] at 1.05 times dense's FLOPs, n = 5,"
        " in 1.00 times dense's seconds",
        said(CLEAR, flops=150.0),
        "x: undecided, +2.1 points [+1.8, +2.4] at 1.50 times dense's FLOPs, n = 5;"
        " a policy does not pay above 1.1 times dense's FLOPs",
        said(lost, flops=150.0),
        "x costs 2.1 points [1.8, 2.4] at 1.50 times dense's FLOPs, n = 5",
        said([math.nan]),
        "x: undecided, n = 0: no seed with a finite accuracy of it and of dense;"
        " 1 seed without a finite accuracy",
        said([*CLEAR, math.nan]),
        "x: undecided, +2.1 points [+1.8, +2.4] at equal FLOPs, n = 5;"
        " 1 seed without a finite accuracy",
    ]
    assert sentences[::2] == sentences[1::2]


def test_a_policy_that_does_not_beat_random_samples_says_so() -> None:
    rows = entries({"x": CLEAR, "random at 1.00": CLEAR[::-1]})
    (found,) = judge(rows)
    gaps = np.subtract(CLEAR, CLEAR[::-1])
    expected = stats.ttest_1samp(gaps, 0).confidence_interval()
    assert found.to_random is not None
    assert found.to_random[1:3] == pytest.approx(tuple(expected))
    assert found.sentence.endswith("not shown to be better than random samples at the same rate")
    lost = [-gap for gap in CLEAR]
    (lower,) = judge(entries({"x": lost, "random at 1.00": lost[::-1]}), "loss", False)
    assert "not shown to be better than random samples" in lower.sentence
    worse = entries({"x": CLEAR, "random at 1.00": lost})
    assert "random" not in judge(worse)[0].sentence
    assert judge(entries({"x": CLEAR}))[0].to_random is None


def test_seeds_without_a_random_control_are_told() -> None:
    rows = entries({"x": CLEAR, "random at 0.30": CLEAR})
    for row in rows:
        row["rate"] = 0.3 if row["seed"] < 2 or row["policy"] != "x" else 0.4
    assert judge(rows)[0].sentence.endswith("than random samples at the same rate, n = 2")
    for rate, name in {0.7: "x", 1.0: "x", 0.71: "random(0.71)"}.items():
        away = [{**row, "rate": rate} if row["policy"] == "x" else row for row in rows]
        named = [{**row, "policy": row["policy"].replace("x", name)} for row in away]
        (found,) = judge(named)
        assert found.sentence.endswith("; no random control at its rate") == (rate == 0.7)
        assert (found.to_random is not None and found.to_random.n == 0) == (rate == 0.7)


def test_fields_are_paired_by_seed_at_the_simultaneous_level() -> None:
    gaps = {"x": CLEAR, "y": NOISY, "z": NOISY[:3]}
    rows = entries(gaps, flops=108.0)
    for row in rows:
        row["seconds"] *= 1 + row["seed"] / 10 + 0.1 * (row["policy"] == "y")
    by_name = {each.policy: each for each in judge(rows)}
    assert list(by_name) == ["x", "y", "z"]
    y, z = by_name["y"], by_name["z"]
    seconds = [(1.1 + seed / 10) / (1 + seed / 10) for seed in range(5)]
    dunn = 1 - 0.05 / 3
    for found in (y.difference, y.worst_class):
        expected = stats.ttest_1samp(NOISY, 0).confidence_interval(dunn)
        assert found == pytest.approx((np.mean(NOISY), *expected, 5))
    expected = np.exp(stats.ttest_1samp(np.log(seconds), 0).confidence_interval(dunn))
    assert y.seconds == pytest.approx((stats.gmean(seconds), *expected, 5))
    assert y.flops is not None
    assert y.flops.text(".2f") == "1.08"  # all equal, so without an interval
    assert (z.n, z.reached, z.reach_flops) == (3, 2, None)  # one of three does not reach it
    assert (by_name["x"].reached, by_name["x"].outcome) == (5, "pays")
    assert y.needed is not None
    assert y.needed.expected == seeds_for(np.mean(NOISY) / np.std(NOISY, ddof=1), 0.05 / 3)


def test_arms_without_a_control_or_given_twice_are_refused() -> None:
    rows = entries({"x": CLEAR})
    refused = {
        "entries hold no 'dense' arm: train it for the same seeds": rows[5:],
        "entries hold 'x' twice for seed 4: keep one of them": [*rows, rows[-1]],
    }
    for message, given_ in refused.items():
        with pytest.raises(ValueError, match=message):
            judge(given_)
    assert judge([]) == []
    assert judge(rows[:5]) == []
    unpaired = judge([rows[0], entry("x", 7)])[0]
    assert (unpaired.n, unpaired.outcome, unpaired.failed) == (0, "undecided", 0)


def test_amounts_have_the_decimals_that_their_intervals_support() -> None:
    shown = {
        amount(Interval(0.0021, -0.0049, 0.0091, 5), "accuracy"): "+0.2 points [-0.5, +0.9]",
        amount(
            Interval(0.0021, 0.0019, 0.0023, 5), "balanced accuracy"
        ): "+0.21 points [+0.19, +0.23]",
        amount(Interval(-0.00001, -0.3, 0.3, 5), "accuracy"): "+0.0 points [-30.0, +30.0]",
        amount(Interval(123.456, 100.0, 146.9, 5), "MSE"): "+123.5 in MSE [+100.0, +146.9]",
        amount(Interval(0.00123, math.nan, math.nan, 1), "loss", ""): "0.0012 in loss",
        amount(Interval(0.0, math.nan, math.nan, 1), "loss"): "+0.0 in loss",
        amount(Interval(-3e-7, -5e-7, -1e-7, 5), "MSE"): "-3e-07 in MSE [-5e-07, -1e-07]",
        amount(Interval(4e-10, math.nan, math.nan, 1), "MSE"): "+4e-10 in MSE",
        amount(Interval(5e-6, 2e-308, 1.2e-5, 5), "accuracy"): "+0.0005 points [+0, +0.0012]",
    }
    assert list(shown) == list(shown.values())


ROWS = st.lists(
    st.lists(st.floats(-0.3, 0.3).map(lambda x: round(x, 3)), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


@given(ROWS, st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=40, deadline=None)
def test_outcomes_do_not_depend_on_order_and_mirror_with_the_metric(
    rows: list[list[float]], random: Any, higher: bool
) -> None:
    gaps = {f"policy {place}": row for place, row in enumerate(rows)}
    given_ = entries(gaps, base=0.0)
    found = {each.policy: each for each in judge(given_, higher=higher)}
    mirrored = entries({name: [-gap for gap in row] for name, row in gaps.items()}, base=0.0)
    random.shuffle(mirrored)
    for each in judge(mirrored, higher=not higher):
        twin = found[each.policy]
        assert (each.outcome, each.n, each.needed) == (twin.outcome, twin.n, twin.needed)
        assert each.difference.mean == pytest.approx(-twin.difference.mean, abs=1e-12)
        assert each.sentence.startswith(each.policy)
        assert "nan" not in each.sentence
        if each.n < 2 or not any(gaps[each.policy]):
            assert each.outcome == "undecided"
