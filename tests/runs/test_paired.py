"""Arms paired with a control: by hand, and against slow references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.runs import paired


def entry(policy: str, seed: int = 0, value: float = 0.9, **others: Any) -> dict[str, Any]:
    """The entry of an arm that ends with this value, on the test and the validation data."""
    curve = [[25.0, 5.0, 0.4], [50.0, 10.0, 0.8], [100.0, 20.0, value]]
    plain = {"seconds": 20.0, "flops": 100.0, "trained": 1000, "scored": 0, "rate": 1.0}
    shown = {"worst_class": value - 0.1, "curve": curve}
    return {"policy": policy, "seed": seed, "value": value, **plain, **shown, **others}


def test_entries_are_grouped_by_arm_and_seed() -> None:
    entries = [entry("dense", 1), entry("a"), entry("dense")]
    assert {name: list(arm) for name, arm in paired.by_arm(entries).items()} == {
        "dense": [1, 0],
        "a": [0],
    }
    with pytest.raises(ValueError, match="entries hold 'a' twice for seed 0: keep one of them"):
        paired.by_arm([entry("a"), entry("a")])
    names = {"dense": True, "random at 0.30": True, "random(0.3)": False, "dense_gate": False}
    assert {name: paired.is_control(name) for name in names} == names


def test_the_random_control_of_a_seed_is_the_one_with_its_rate() -> None:
    arms = paired.by_arm(
        [
            *(entry("a", seed, rate=rate) for seed, rate in enumerate((0.30, 0.344, 0.5))),
            *(entry("random at 0.30", seed, rate=0.3) for seed in range(3)),
            *(entry("random at 0.35", seed, rate=0.35) for seed in range(3)),
        ]
    )
    found = paired.random_control(arms["a"], arms)
    assert {seed: run["rate"] for seed, run in found.items()} == {0: 0.3, 1: 0.35}


def test_a_control_belongs_to_arms_that_select_where_there_are_controls() -> None:
    rows = [entry("a", rate=0.3), entry("all"), entry("random(0.5)", rate=0.5)]
    arms = paired.by_arm([*rows, entry("random at 0.70", rate=0.7)])
    names = ("a", "all", "random(0.5)")
    assert [paired.wants_control(name, arms) for name in names] == [True, False, False]
    assert not paired.wants_control("a", paired.by_arm(rows))


def test_differences_and_ratios_leave_out_what_is_not_known() -> None:
    values = [0.9, math.nan, 0.7, 0.8]
    arm = {seed: entry("a", seed, value) for seed, value in enumerate(values)}
    dense = {seed: entry("dense", seed, 0.5, flops=50.0) for seed in (0, 1, 2)}
    assert paired.differences(arm, dense, "value") == pytest.approx([0.4, 0.2])
    dense[2] |= {"flops": None}
    assert paired.ratios(arm, dense, "flops") == [2.0, None]  # without the seed that failed
    assert paired.known([2.0, None, math.nan, 3.0]) == [2.0, 3.0]
    unknown = [(1, 0), (0, 1), (None, 1), (1, None), (math.inf, 1), (1, math.nan), (-1, 1)]
    assert [paired.share(*pair) for pair in unknown] == [None] * len(unknown)


def test_the_cost_of_reaching_dense_is_a_share_of_denses_whole_run() -> None:
    dense = {seed: entry("dense", seed, 0.85) for seed in range(4)}
    runs = [entry("a", 0, 0.9), entry("a", 1, 0.84), entry("a", 2, curve=[]), entry("a", 3, 0.9)]
    runs[3]["curve"] = [[None, *rest] for _, *rest in runs[3]["curve"]]
    runs[3]["flops"] = None
    arm = dict(enumerate(runs))
    assert paired.reach(arm, dense, "flops", True) == [pytest.approx(0.75), None, None, None]
    found = paired.reach(arm, dense, "seconds", True)
    assert found == [pytest.approx(0.75), None, None, pytest.approx(0.75)]
    assert paired.reach({0: entry("a", 0, 0.3)}, dense, "flops", False) == [pytest.approx(0.25)]


def test_the_value_after_denses_seconds_is_read_from_the_curve() -> None:
    dense = {seed: entry("dense", seed, 0.85, seconds=15.0) for seed in range(3)}
    arm = {0: entry("a", 0, 0.9), 1: entry("a", 1, 0.9, seconds=None), 2: entry("a", 2, 0.7)}
    arm[2]["curve"] = [[50.0, 5.0, 0.5], [100.0, 10.0, 0.7]]
    found = paired.at_equal_seconds(arm, dense)
    assert found == [pytest.approx(0.0), None, pytest.approx(-0.15)]  # a shorter run: its end


def test_a_seed_that_failed_counts_nowhere() -> None:
    dense = {seed: entry("dense", seed, 0.85) for seed in range(4)}
    arm = {seed: entry("a", seed, 0.9) for seed in range(4)}
    arm[1] |= {"value": None, "flops": 900.0, "seconds": 900.0}
    dense[2] |= {"value": math.nan}
    for key in ("flops", "seconds"):
        assert paired.ratios(arm, dense, key) == [1.0, 1.0]
        assert paired.reach(arm, dense, key, True) == [pytest.approx(0.75)] * 2
    assert paired.at_equal_seconds(arm, dense) == [pytest.approx(0.05)] * 2
    assert paired.differences(arm, dense, "seconds") == [0.0, 0.0]


@pytest.mark.parametrize("lost", [None, math.nan, math.inf])
def test_a_validation_value_that_is_not_finite_is_a_gap(lost: float | None) -> None:
    dense = {seed: entry("dense", seed, 0.85) for seed in range(3)}
    arm = {seed: entry("a", seed, 0.9) for seed in range(3)}
    arm[0]["curve"][1][2] = arm[1]["curve"][2][2] = dense[2]["curve"][2][2] = lost
    assert paired.reach(arm, dense, "flops", True) == [1.0, None, None]
    assert paired.at_equal_seconds(arm, dense) == [pytest.approx(0.05), None, None]


@given(
    values=st.lists(st.integers(0, 8).map(lambda v: v / 4), min_size=1, max_size=8),
    target=st.floats(0.1, 1.9),
    higher=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_a_value_is_reached_where_the_curve_stays_good(
    values: list[float], target: float, higher: bool
) -> None:
    points = [(10.0 * (place + 1), value) for place, value in enumerate(values)]
    found = paired.reached_at(points, target, higher)
    costs = np.linspace(10, points[-1][0], 20_001)
    curve = np.interp(costs, *zip(*points, strict=True))
    good = curve >= target if higher else curve <= target
    if not good[-1]:
        assert found is None
    else:
        bad = np.flatnonzero(~good)
        slow = costs[bad[-1] + 1] if len(bad) else costs[0]
        assert found == pytest.approx(slow, abs=0.01)


def test_a_gap_in_the_curve_does_not_count_as_reached() -> None:
    points = [(1.0, 0.9), (2.0, math.nan), (3.0, 0.9)]
    assert paired.reached_at(points, 0.8) == 3.0
    assert paired.reached_at(points[:2], 0.8) is None
    assert paired.reached_at([], 0.8) is None
