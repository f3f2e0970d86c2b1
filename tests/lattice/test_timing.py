"""The ways that a step can be timed: each computes the same, and slopes are those of a line."""

from __future__ import annotations

import math

import pytest
import torch

from astkit.lattice import timing, trajectory
from astkit.lattice.config import LatticeConfig
from astkit.lattice.model import EnergyFlowLattice

TINY = LatticeConfig(dim=6, width=2, height=2, depth=3, hidden=4, mapper_width=8)


def test_each_way_is_timed_against_the_first() -> None:
    table = timing.measure(TINY, 2, rounds=2).table()
    assert [row["arm"] for row in table] == list(timing.WAYS)
    assert table[0]["speedup"] == 1
    with pytest.raises(ValueError, match="way is 'luck': choose one of flow by flow"):
        timing.stepper(TINY, 2, "luck")


def test_sizes_are_counted_in_flows() -> None:
    rows = timing.grown(TINY, [(2, 1), (3, 2)], timing.WAYS[2:], rounds=2)
    assert [(row["way"], row["flows"]) for row in rows] == [
        (way, flows) for flows in (4, 18) for way in timing.WAYS[2:]
    ]


def test_a_slope_is_the_power_of_growth() -> None:
    rows = [
        {"way": f"power {power}", "flows": flows, "seconds": 0.1 * flows**power}
        for power in (0.5, 1)
        for flows in (1, 10, 100)
    ]
    assert timing.slopes(rows) == pytest.approx({"power 0.5": 0.5, "power 1": 1.0})
    assert math.isnan(timing.slopes(rows[:1])["power 0.5"])


def test_rows_are_a_samples_flows_step_by_step() -> None:
    model = EnergyFlowLattice(TINY)
    x = torch.randn(3, TINY.dim, generator=torch.Generator().manual_seed(0))
    _, frames = trajectory.trajectory(model, x)
    rows = trajectory.rows(frames, sample=1)
    first = [row for row in rows if row["step"] == 0]
    assert sorted((row["x"], row["y"]) for row in first) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(row["z"] == 0 for row in first)
    total = sum(len(trajectory.rows(frames, sample)) for sample in range(3))
    assert total == sum(len(frame.slot) for frame in frames)
