"""Comparisons on clocks and counters that only move when an arm says so."""

from __future__ import annotations

import json
import math
import timeit
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.profiling import Timings, benchmark, bootstrap_interval, compare_energy, interleaved
from astkit.profiling import counters as meters
from tests.profiling.conftest import Machine


class Clock:
    """A clock, arms that move it, and a note of who ran; ``speed`` scales what follows."""

    def __init__(self):
        self.now, self.speed, self.calls = 0.0, 1.0, []

    def __call__(self):
        return self.now

    def arm(self, name, seconds):
        def run():
            self.calls.append(name)
            self.now += seconds / self.speed

        return run


@pytest.fixture
def clock():
    return Clock()


# --- seconds


def test_ratios_table_and_json_are_exact(clock):
    arms = {"dense": clock.arm("dense", 4.0), "gated": clock.arm("gated", 1.0)}
    result = interleaved(arms, rounds=5, clock=clock)
    ratio = result.ratio("dense", "gated")
    assert (ratio.median, ratio.low, ratio.high, ratio.n) == (4.0, 4.0, 4.0, 5)
    assert str(ratio) == "4.00x [4.00, 4.00]"
    assert (result.median("dense"), result.seconds["gated"]) == (4.0, (1.0,) * 5)
    dense, gated = result.table()
    assert (dense["arm"], dense["seconds"], dense["speedup"]) == ("dense", 4.0, 1.0)
    assert (gated["arm"], gated["speedup"], gated["rounds"]) == ("gated", 4.0, 5)
    content = json.loads(result.to_json())
    assert content["table"] == [dense, gated]
    assert (content["baseline"], content["seconds"]["gated"]) == ("dense", [1.0] * 5)


def test_every_round_runs_every_arm_once_in_an_order_of_its_own(clock):
    arms = {name: clock.arm(name, 1.0) for name in "abc"}
    interleaved(arms, rounds=40, warmup=3, clock=clock)
    calls = clock.calls
    rounds = [tuple(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 43
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert min(Counter(order[0] for order in rounds).values()) >= 5
    assert len(set(rounds)) == 6
    clock.calls = []
    interleaved(arms, rounds=40, warmup=3, clock=clock)
    assert clock.calls == calls


def test_warm_up_rounds_are_not_kept(clock):
    def cold():
        clock.now += 100.0 if len(clock.calls) < 2 else 1.0
        clock.calls.append("cold")

    result = interleaved({"cold": cold}, rounds=4, warmup=2, clock=clock)
    assert result.seconds["cold"] == (1.0,) * 4
    assert len(clock.calls) == 6


def test_a_machine_that_doubles_its_speed_halfway_leaves_the_ratio_right(clock):
    def drifting(arm):
        def run():
            clock.speed = 2.0 if len(clock.calls) >= 20 else 1.0
            arm()

        return run

    arms = {name: drifting(clock.arm(name, s)) for name, s in (("slow", 3.0), ("fast", 2.0))}
    result = interleaved(arms, rounds=20, warmup=0, clock=clock)
    assert len(set(result.seconds["slow"])) == 2
    ratio = result.ratio("slow", "fast")
    assert ratio.median == ratio.low == ratio.high == pytest.approx(1.5)


def test_synchronize_charges_queued_work_to_its_arm(clock):
    queue = []

    def synchronize():
        clock.now += sum(queue)
        queue.clear()

    arms = {"a": lambda: queue.append(2.0), "b": lambda: queue.append(6.0)}
    result = interleaved(arms, rounds=3, clock=clock, synchronize=synchronize)
    assert (result.median("a"), result.median("b")) == (2.0, 6.0)


def test_the_real_clock_runs():
    result = interleaved({"sum": lambda: sum(range(2_000))}, rounds=2, warmup=0)
    assert result.median("sum") > 0


def test_impossible_timings_are_refused():
    for options, message in (
        ({"rounds": 1}, "rounds is 1.*at least 2"),
        ({"warmup": -1}, "warmup is -1"),
        ({"baseline": "c"}, "unknown arm 'c': choose one of 'a', 'b'"),
        ({"arms": {}}, "no arms"),
    ):
        with pytest.raises(ValueError, match=message):
            interleaved(**{"arms": {"a": int, "b": int}, **options})
    result = Timings({"a": (1.0, 2.0), "b": (0.0, 0.0)}, "a")
    for wrong, message in (
        (lambda: result.ratio("a", "c"), "unknown arm 'c'"),
        (lambda: result.median("c"), "unknown arm 'c'"),
        (lambda: result.ratio("a", "b"), "no measurable time"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


# --- intervals


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20),
)
def test_the_interval_lies_within_the_values_and_is_ordered(values):
    low, high = bootstrap_interval(values)
    assert min(values) <= low <= high <= max(values)
    assert (low, high) == bootstrap_interval(values)


@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(statistic, monkeypatch):
    monkeypatch.setattr(benchmark, "RESAMPLES", 400)
    random, hits = np.random.default_rng(0), 0
    for _ in range(200):
        values = random.normal(3.0, 1.0, size=25).tolist()
        low, high = bootstrap_interval(values, statistic)
        hits += low <= 3.0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_impossible_intervals_are_refused():
    for values, statistic, message in (
        ([1.0], "mean", "at least 2"),
        ([1.0, math.nan], "mean", "finite"),
        ([1.0, 2.0], "mode", "unknown statistic 'mode'"),
    ):
        with pytest.raises(ValueError, match=message):
            bootstrap_interval(values, statistic)


# --- joules


def arms_of(machine, watts=(300.0, 200.0), seconds=(3.0, 2.0)):
    """Two arms, and a list of who ran."""
    ran = []

    def arm(name, watts, seconds):
        def run():
            ran.append(name)
            machine.spend(seconds, watts)

        return run

    names = ("dense", "gated")
    return {name: arm(name, watts[i], seconds[i]) for i, name in enumerate(names)}, ran


def compared(machine, arms, **options):
    return compare_energy(arms, counter=machine, clock=machine.clock, **options)


def test_arms_are_compared_by_joules_a_call(machine):
    arms, ran = arms_of(machine)
    result = compared(machine, arms)
    assert result.reason is None
    # windows of 12 s (4 calls of 3 s) and of 10 s (5 calls of 2 s), one pair of which is not kept
    assert result.calls == {"dense": (4,) * 5, "gated": (5,) * 5}
    assert ran.count("dense") == 6 * 4
    assert result.joules("dense") == pytest.approx([900.0] * 5, rel=0.02)
    ratio = result.ratio("gated", "dense")
    assert ratio.median == pytest.approx(400 / 900, rel=0.02)
    assert (ratio.low <= ratio.median <= ratio.high, ratio.n) == (True, 5)
    assert all(r.window_s >= 10 for rs in result.readings.values() for r in rs)
    assert not machine.closed  # it belongs to who brought it
    dense, gated = result.table()
    assert gated["joules"] == pytest.approx(400, rel=0.02)
    assert gated["of_baseline"] == ratio.median
    assert gated["of_baseline_low"] <= ratio.median <= gated["of_baseline_high"]
    content = json.loads(result.to_json())
    assert (content["baseline"], content["table"]) == ("dense", [dense, gated])
    assert (content["calls"]["gated"], content["flags"]) == ([5] * 5, [])
    first = content["readings"]["gated"][0]
    assert (first["kind"], first["scope"]) == ("measured", "test bench")
    assert str(result).splitlines()[1].endswith(f"{ratio} of dense, n = 5")


def test_a_drift_of_the_machine_cancels_within_pairs_and_is_flagged(machine):
    """Power climbs by a third while it is measured, as of a GPU that warms up."""
    began = machine.now

    def arm(watts, drift):
        return lambda: machine.spend(11.0, watts * (1 + drift * (machine.now - began) / 1000))

    arms = {"dense": arm(300.0, 1), "gated": arm(150.0, 1), "flat": arm(150.0, 0)}
    result = compared(machine, arms, pairs=15)
    assert result.ratio("gated", "dense").median == pytest.approx(0.5, rel=0.02)
    joules = np.array(result.joules("dense"))
    spread = [row["spread"] for row in result.table()]
    assert spread[0] == pytest.approx(joules.std(ddof=1) / joules.mean())
    assert [value > 0.03 for value in spread] == [True, True, False]
    assert [flag.partition(": readings spread by")[0] for flag in result.flags()] == [
        "dense",
        "gated",
    ]
    assert str(result).endswith("\n".join(result.flags()))


def test_windows_are_as_long_as_asked_and_as_the_counter_allows(machine):
    arms, _ = arms_of(machine, seconds=(40.0, 0.4))
    result = compared(machine, arms)
    assert result.calls["dense"] == (1,) * 5
    assert result.calls["gated"][0] in (25, 26)
    for each, calls in ((machine, 4), (Machine(step_s=0.001), 1)):
        arms, _ = arms_of(each)
        assert compared(each, arms, min_window_s=0.5).calls["dense"] == (calls,) * 5


def test_one_missing_reading_leaves_no_ratio(machine):
    arms, ran = arms_of(machine)

    def failing():
        machine.failing = len(ran) == 20
        arms["dense"]()

    result = compared(machine, {"dense": failing, "gated": arms["gated"]})
    assert result.reason == "the cable is out"
    with pytest.raises(ValueError, match="not measured: the cable is out"):
        result.ratio("gated", "dense")
    assert (result.table(), result.flags()) == ([], [])
    assert str(result) == "joules not measured: the cable is out"
    assert json.loads(result.to_json())["reason"] == "the cable is out"


def test_work_on_a_device_is_waited_for_within_the_window(machine):
    """What an arm has queued is drawn when it is waited for, and booked to that arm."""
    queued = [(5.0, 700.0)]  # left over from before

    def wait():
        while queued:
            machine.spend(*queued.pop())

    arms = {
        "dense": lambda: queued.append((3.0, 300.0)),
        "gated": lambda: queued.append((3.0, 100.0)),
    }
    result = compared(machine, arms, synchronize=wait)
    assert result.joules("dense") == pytest.approx([900.0] * 5, rel=0.03)
    assert result.ratio("dense", "gated").median == pytest.approx(3.0, rel=0.03)


def test_the_counter_that_was_opened_is_closed(machine, monkeypatch):
    monkeypatch.setattr(benchmark, "open_counter", lambda device: machine)
    arms, _ = arms_of(machine)
    compare_energy(arms, clock=machine.clock)
    assert machine.closed
    machine.closed = False
    with pytest.raises(ZeroDivisionError):
        compare_energy({**arms, "gated": lambda: 1 / 0}, clock=machine.clock)
    assert machine.closed


def test_impossible_comparisons_of_joules_are_refused(machine):
    for options, match in (
        ({"arms": {"a": list}}, "needs at least 2"),
        ({"pairs": 4}, "pairs is 4.*at least 5"),
        ({"min_window_s": 0.0}, "min_window_s is 0.0"),
    ):
        with pytest.raises(ValueError, match=match):
            compared(machine, **{"arms": {"a": list, "b": list}, **options})
    arms, _ = arms_of(machine)
    with pytest.raises(ValueError, match="unknown arm 'c'"):
        compared(machine, arms).ratio("c", "dense")


# --- what tests/benchmarks/energy.py makes of it


def test_the_benchmark_says_why_it_measured_nothing(nothing, capsys):
    from tests.benchmarks import energy

    out = nothing / "energy.json"
    energy.main(["--device", "cpu", "--out", str(out)])
    said = capsys.readouterr().out.strip()
    assert said.startswith("joules not measured: no readable RAPL counter here")
    assert len(said.splitlines()) == 1
    assert not out.exists()


def test_the_benchmark_measures_dense_and_gated_epochs(monkeypatch, capsys, tmp_path):
    from tests.benchmarks import energy

    def draw():
        """A counter of 50 W."""
        joules = 50e3  # mJ a second
        counter = meters.EnergyCounter(
            "rapl", "CPU package-0", lambda: (timeit.default_timer() * joules,)
        )
        counter.step_s = 0.001
        return counter

    monkeypatch.setattr(meters, "RaplCounter", draw)
    out = tmp_path / "energy.json"
    energy.main(["--device", "cpu", "--out", str(out), "--rows", "32", "--min-window", "0.1"])
    content = json.loads(out.read_text())
    assert {"stamp", "baseline", "readings", "table", "flags"} <= content.keys()
    assert content["rows"] == 32
    assert [row["arm"] for row in content["table"]] == ["dense", "gated"]
    for readings in content["readings"].values():
        assert len(readings) == 5
        assert all(r["joules"] == pytest.approx(50 * r["window_s"], rel=0.02) for r in readings)
    assert "of dense" in capsys.readouterr().out
