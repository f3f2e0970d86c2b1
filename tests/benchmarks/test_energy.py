"""Joules of arms, on counters that only move when an arm draws power."""

from __future__ import annotations

import json
import timeit

import pytest

from astkit.profiling import energy_counters
from tests.benchmarks import energy
from tests.profiling.conftest import Machine, nothing

__all__ = ["nothing"]


def arm(machine, watts, seconds):
    return lambda: machine.spend(seconds, watts)


def compared(machine, arms, pairs=5, least=10.0):
    return energy.compare(arms, machine, pairs, least, clock=machine.clock)


def test_arms_are_compared_by_joules_a_call():
    machine = Machine()
    result = compared(machine, {"dense": arm(machine, 300, 3), "gated": arm(machine, 200, 2)})
    assert result["reason"] is None
    # windows of 12 s (4 calls of 3 s) and of 10 s (5 calls of 2 s)
    assert result["calls"] == {"dense": [4] * 5, "gated": [5] * 5}
    dense, gated = result["table"]
    assert dense["joules"] == pytest.approx(900, rel=0.02)
    assert gated["of_baseline"] == pytest.approx(400 / 900, rel=0.02)
    assert gated["of_baseline_low"] <= gated["of_baseline"] <= gated["of_baseline_high"]
    assert (gated["pairs"], gated["steady"]) == (5, True)
    assert json.loads(json.dumps(result)) == result


def test_a_drift_of_the_machine_cancels_within_pairs_and_is_flagged():
    """Power climbs by a third while it is measured, as of a GPU that warms up."""
    machine = Machine()
    began = machine.now

    def drifting(watts):
        return lambda: machine.spend(11.0, watts * (1 + (machine.now - began) / 1000))

    arms = {"dense": drifting(300.0), "gated": drifting(150.0), "flat": arm(machine, 150, 11)}
    rows = compared(machine, arms, pairs=15)["table"]
    assert rows[1]["of_baseline"] == pytest.approx(0.5, rel=0.02)
    assert [row["steady"] for row in rows] == [False, False, True]


def test_one_missing_reading_leaves_no_table():
    machine = Machine()
    result = compared(machine, {"dense": arm(machine, 0, 20), "gated": arm(machine, 9, 20)})
    assert "did not move" in result["reason"]
    assert "table" not in result


def test_the_benchmark_says_why_it_measured_nothing(nothing, capsys):
    out = nothing / "energy.json"
    energy.main(["--device", "cpu", "--out", str(out)])
    said = capsys.readouterr().out.strip()
    assert said.startswith("joules not measured: no readable RAPL counter here")
    assert len(said.splitlines()) == 1
    assert not out.exists()


@pytest.mark.full
def test_the_benchmark_measures_dense_and_gated_epochs(monkeypatch, tmp_path):
    def draw():
        """A counter of 50 W."""
        counter = energy_counters.EnergyCounter(
            "rapl", "CPU", lambda: (timeit.default_timer() * 50e3,)
        )
        counter.step_s = 0.001
        return counter

    monkeypatch.setattr(energy_counters, "RaplCounter", draw)
    out = tmp_path / "energy.json"
    energy.main(["--device", "cpu", "--out", str(out), "--rows", "32", "--min-window", "0.1"])
    content = json.loads(out.read_text())
    assert [row["arm"] for row in content["table"]] == ["dense", "gated"]
    for readings in content["readings"].values():
        assert len(readings) == 5
        assert all(r["joules"] == pytest.approx(50 * r["window_s"], rel=0.02) for r in readings)
