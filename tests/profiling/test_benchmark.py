"""The comparison on a clock that only moves when an arm says so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.profiling.benchmark import Timings, bootstrap_interval, interleaved


class Machine:
    """A clock, arms that move it, and a note of who ran; ``speed`` scales what follows."""

    def __init__(self) -> None:
        self.now, self.speed, self.calls = 0.0, 1.0, list[str]()

    def clock(self) -> float:
        return self.now

    def arm(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.calls.append(name)
            self.now += seconds / self.speed

        return run

    def rounds(self, width: int) -> list[list[str]]:
        return [self.calls[i : i + width] for i in range(0, len(self.calls), width)]


def test_ratios_are_exact() -> None:
    machine = Machine()
    arms = {"dense": machine.arm("dense", 4.0), "gated": machine.arm("gated", 1.0)}
    result = interleaved(arms, rounds=5, clock=machine.clock)
    ratio = result.ratio("dense", "gated")
    assert (ratio.median, ratio.low, ratio.high, ratio.n) == (4.0, 4.0, 4.0, 5)
    assert str(ratio) == "4.00x [4.00, 4.00]"
    assert result.median("dense") == 4.0
    assert result.seconds["gated"] == (1.0,) * 5
    assert result.baseline == "dense"


def test_every_round_runs_every_arm_once_in_a_changing_order() -> None:
    machine = Machine()
    arms = {name: machine.arm(name, 1.0) for name in "abc"}
    interleaved(arms, rounds=40, warmup=3, clock=machine.clock)
    rounds = machine.rounds(3)
    assert len(rounds) == 43
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    first = Counter(order[0] for order in rounds)
    assert min(first.values()) >= 5
    assert len({tuple(order) for order in rounds}) == 6


def test_the_order_depends_on_the_seed_alone() -> None:
    def calls(seed: int) -> list[str]:
        machine = Machine()
        arms = {name: machine.arm(name, 1.0) for name in "abc"}
        interleaved(arms, clock=machine.clock, seed=seed)
        return machine.calls

    assert calls(0) == calls(0) != calls(1)


def test_warm_up_rounds_are_not_kept() -> None:
    machine = Machine()

    def cold() -> None:
        machine.now += 100.0 if len(machine.calls) < 2 else 1.0
        machine.calls.append("cold")

    result = interleaved({"cold": cold}, rounds=4, warmup=2, clock=machine.clock)
    assert result.seconds["cold"] == (1.0,) * 4
    assert len(machine.calls) == 6


def test_a_machine_that_doubles_its_speed_halfway_leaves_the_ratio_right() -> None:
    machine = Machine()
    slow, fast = machine.arm("slow", 3.0), machine.arm("fast", 2.0)

    def drifting(arm: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            machine.speed = 2.0 if len(machine.calls) >= 20 else 1.0
            arm()

        return run

    arms = {"slow": drifting(slow), "fast": drifting(fast)}
    result = interleaved(arms, rounds=20, warmup=0, clock=machine.clock)
    assert len(set(result.seconds["slow"])) == 2
    ratio = result.ratio("slow", "fast")
    assert ratio.median == ratio.low == ratio.high == pytest.approx(1.5)


def test_synchronize_charges_queued_work_to_its_arm() -> None:
    machine, queue = Machine(), list[float]()

    def synchronize() -> None:
        machine.now += sum(queue)
        queue.clear()

    def launch(seconds: float) -> Callable[[], None]:
        return lambda: queue.append(seconds)

    arms = {"a": launch(2.0), "b": launch(6.0)}
    result = interleaved(arms, rounds=3, clock=machine.clock, synchronize=synchronize)
    assert (result.median("a"), result.median("b")) == (2.0, 6.0)


def test_the_table_and_the_json_hold_the_same_numbers() -> None:
    machine = Machine()
    arms = {"dense": machine.arm("dense", 4.0), "gated": machine.arm("gated", 2.0)}
    result = interleaved(arms, rounds=3, baseline="dense", clock=machine.clock)
    dense, gated = result.table()
    assert (dense["arm"], dense["seconds"], dense["speedup"]) == ("dense", 4.0, 1.0)
    assert (gated["arm"], gated["speedup"], gated["rounds"]) == ("gated", 2.0, 3)
    content = json.loads(result.to_json())
    assert content["table"] == [dense, gated]
    assert content["seconds"]["gated"] == [2.0, 2.0, 2.0]


def test_the_real_clock_runs() -> None:
    result = interleaved({"sum": lambda: sum(range(2_000))}, rounds=2, warmup=0)
    assert result.median("sum") > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 1}, "at least 2 rounds"),
        ({"warmup": -1}, "warmup"),
        ({"baseline": "c"}, "Unknown arm 'c': choose one of 'a', 'b'"),
    ],
)
def test_impossible_comparisons_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interleaved({"a": int, "b": int}, **options)  # type: ignore[arg-type]


def test_no_arms_and_unknown_arms_are_refused() -> None:
    with pytest.raises(ValueError, match="no arms"):
        interleaved({})
    result = Timings({"a": (1.0, 2.0), "b": (0.0, 0.0)}, "a")
    with pytest.raises(ValueError, match="Unknown arm 'c'"):
        result.ratio("a", "c")
    with pytest.raises(ValueError, match="Unknown arm 'c'"):
        result.median("c")
    with pytest.raises(ValueError, match="no measurable time"):
        result.ratio("a", "b")


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20),
    seed=st.integers(0, 2**31),
)
def test_the_interval_lies_within_the_values_and_is_ordered(values: list[float], seed: int) -> None:
    low, high = bootstrap_interval(values, resamples=200, seed=seed)
    assert min(values) <= low <= high <= max(values)
    assert (low, high) == bootstrap_interval(values, resamples=200, seed=seed)


@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(statistic: str) -> None:
    random = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        values = random.normal(3.0, 1.0, size=25).tolist()
        low, high = bootstrap_interval(values, statistic, resamples=400, seed=trial)  # type: ignore[arg-type]
        hits += low <= 3.0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_a_higher_level_gives_a_wider_interval() -> None:
    values = np.random.default_rng(1).normal(size=30).tolist()
    low, high = bootstrap_interval(values, "mean", level=0.5)
    wide_low, wide_high = bootstrap_interval(values, "mean", level=0.99)
    assert wide_low < low < high < wide_high


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1.0], {}, "at least 2 values"),
        ([1.0, float("nan")], {}, "finite"),
        ([1.0, 2.0], {"level": 1.0}, "level must lie between 0 and 1"),
        ([1.0, 2.0], {"resamples": 0}, "resamples be at least 1"),
        ([1.0, 2.0], {"statistic": "mode"}, "Unknown statistic 'mode'"),
    ],
)
def test_impossible_intervals_are_refused(
    values: list[float], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(values, **options)  # type: ignore[arg-type]
