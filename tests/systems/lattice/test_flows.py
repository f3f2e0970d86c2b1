"""Walls that fold, and what a landing leaves."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.systems.lattice.model import Flows, LatticeConfig, deposit, fold

SQUARE = LatticeConfig(width=2, height=2)


@settings(deadline=None, max_examples=40)
@given(st.floats(-40, 40), st.integers(1, 9))
def test_fold_bounces_to_and_fro(value: float, wall: int) -> None:
    at = value
    while not 0 <= at <= wall:
        at = -at if at < 0 else 2 * wall - at
    folded = fold(torch.tensor([value], dtype=torch.float64), torch.tensor([float(wall)]))
    torch.testing.assert_close(folded.item(), at, atol=1e-12, rtol=0)


def landing(*flows: tuple[float, float, float, float]) -> Flows:
    """Flows of one sample: x, y, energy and age."""
    x, y, energy, age = torch.tensor(flows, dtype=torch.float64).T
    place = torch.stack([x, y, torch.zeros_like(x), energy], 1)
    return Flows(torch.zeros(len(flows), dtype=torch.int64), place, age, age)


def test_a_cell_holds_the_mean_weighted_by_energy_age_and_nearness() -> None:
    surface = deposit([landing((0.25, 0, 0.5, 0)), landing((0.5, 0, -1.0, 10))], 1, SQUARE)
    near, far = 0.75 * 0.5, 0.5 * 1.0 * 2
    expected = (near * 0.5 + far * -1.0) / (near + far)
    torch.testing.assert_close(surface[0, 0].item(), expected, atol=1e-5, rtol=0)
    assert surface[0, 2:].tolist() == [0, 0]


def test_a_lost_position_shows_as_nan() -> None:
    assert deposit([landing((float("nan"), 0, 1.0, 0))], 1, SQUARE).isnan().any()
