"""The vectorised steps against the plain loop over flows, in float64."""

import math
import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astkit.systems.lattice.model import LatticeConfig
from astkit.systems.lattice.reference import run_reference
from tests.systems.lattice.examples import config, gradients, inputs, model

SURFACE, GRADIENT = 1e-10, 1e-8


def agree(chosen: LatticeConfig, batch: int, adaptive: bool = True) -> dict[str, int]:
    """Assert that both give the same; the counters, summed over samples."""
    built = model(chosen)
    x = inputs(batch, chosen.dim, chosen.seed)
    fast = built(x, adaptive=adaptive)
    fast_gradients = gradients(built, fast)
    slow = run_reference(built, x, adaptive=adaptive)
    slow_gradients = gradients(built, slow)
    for name, count in slow.stats._asdict().items():
        assert torch.equal(getattr(fast.stats, name), count), name
    assert (fast.surface - slow.surface).abs().max() <= SURFACE
    assert (fast.y - slow.y).abs().max() <= SURFACE
    largest = max(each.abs().max().item() for each in slow_gradients.values())
    for name, expected in slow_gradients.items():
        scale = max(expected.abs().max().item(), 1e-6 * largest)
        assert (fast_gradients[name] - expected).abs().max() <= GRADIENT * scale, name
    return {name: int(count.sum()) for name, count in fast.stats._asdict().items()}


@st.composite
def configs(draw: st.DrawFn) -> LatticeConfig:
    width, height = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    z_min = draw(st.sampled_from([0.4, 0.8]))
    return LatticeConfig(
        dim=5,
        mapper_width=8,
        width=width,
        height=height,
        depth=draw(st.integers(2, 7)),
        hidden=draw(st.integers(1, 6)),
        layers=draw(st.integers(1, 2)),
        max_flows=width * height + draw(st.sampled_from([0, 2, 30])),
        z_min=z_min,
        z_max=z_min + draw(st.sampled_from([0.0, 0.3, 1.5])),
        spawn_threshold=draw(st.sampled_from([0.3, 0.5, 0.6, 1.0])),
        max_children=draw(st.integers(1, 4)),
        theta_e=draw(st.sampled_from([0.0, 0.1])),
        tau=draw(st.sampled_from([0.3, 0.95, 1.0])),
        patience=draw(st.sampled_from([1, 3, math.inf])),
        energy_rule=draw(st.sampled_from(["residual", "original"])),
        seed=draw(st.integers(0, 1000)),
    )


MANY = 200 if os.environ.get("ASTKIT_FULL") == "1" else 6


@settings(max_examples=MANY, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(configs(), st.integers(1, 3), st.booleans())
def test_any_lattice_agrees(chosen: LatticeConfig, batch: int, adaptive: bool) -> None:
    agree(chosen, batch, adaptive)


@pytest.mark.parametrize(
    ("changes", "positive"),
    [
        ({"spawn_threshold": 0.3, "max_flows": 13}, ("dropped",)),
        ({"depth": 12, "tau": 0.5, "spawn_threshold": 1.0, "z_max": 3.0}, ("left",)),
        ({"depth": 20, "tau": 1.0, "spawn_threshold": 1.0, "patience": 1}, ("left", "completed")),
        ({"theta_e": 0.1, "depth": 9, "tau": 0.5}, ("died", "left")),
        ({"spawn_threshold": 1.0}, ("completed",)),
    ],
    ids=["full slots", "early stops", "patience", "deaths and leftovers", "no spawning"],
)
def test_named_cases_agree(changes: dict[str, Any], positive: tuple[str, ...]) -> None:
    counted = agree(config(**changes), 2)
    assert all(counted[name] > 0 for name in positive)
    if changes.get("spawn_threshold") == 1:
        assert (counted["created"], counted["dropped"]) == (24, 0)
    else:
        assert counted["created"] > 24  # slots of flows that ended are used again
