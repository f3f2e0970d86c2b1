"""Comparisons on clocks that only move when an arm says so."""

import math

import numpy as np
import pytest

from astkit.profiling import Timings, bootstrap_interval, interleaved, timing
from tests.build import refused


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


def test_ratios_and_table_are_exact_without_the_warm_up(clock):
    arms = {"dense": clock.arm("dense", 4.0), "gated": clock.arm("gated", 1.0)}

    def cold():  # the first two calls take longer
        clock.now += 100.0 * (clock.calls.count("dense") < 2)
        arms["dense"]()

    result = interleaved({**arms, "dense": cold}, rounds=5, clock=clock)
    ratio = result.ratio("dense", "gated")
    assert (ratio.median, ratio.low, ratio.high, ratio.n) == (4.0, 4.0, 4.0, 5)
    assert str(ratio) == "4.00x [4.00, 4.00]"
    assert (result.median("dense"), result.seconds["gated"]) == (4.0, (1.0,) * 5)
    dense, gated = result.table()
    assert (dense["arm"], dense["seconds"], dense["speedup"]) == ("dense", 4.0, 1.0)
    assert (gated["arm"], gated["speedup"], gated["rounds"]) == ("gated", 4.0, 5)
    assert len(clock.calls) == 2 * 7


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


def test_the_interval_covers_the_truth_about_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(timing, "RESAMPLES", 400)
    random, hits = np.random.default_rng(0), 0
    for _ in range(200):
        low, high = bootstrap_interval(random.normal(3.0, 1.0, size=25).tolist())
        hits += low <= 3.0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_impossible_requests_are_refused():
    result = Timings({"a": (1.0, 2.0), "b": (1.0, math.nan)}, "a")
    refused(
        (lambda: result.ratio("a", "b"), "all finite"),
        (lambda: bootstrap_interval([1.0]), "at least 2"),
        (lambda: bootstrap_interval([1.0, math.nan]), "finite"),
    )
