"""Densities against those that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from astkit.gating import density, log_density

# name: draw scores, density of their logarithm at log x
KNOWN: dict[str, tuple[Callable[[torch.Generator, int], Tensor], Callable[[float], float]]] = {
    "exponential": (
        lambda random, n: -torch.rand(n, generator=random, dtype=torch.float64).log(),
        lambda x: x * math.exp(-x),
    ),
    "gamma2": (
        lambda random, n: -torch.rand(2, n, generator=random, dtype=torch.float64).log().sum(0),
        lambda x: x * x * math.exp(-x),
    ),
    "lognormal": (
        lambda random, n: torch.randn(n, generator=random, dtype=torch.float64).exp(),
        lambda x: math.exp(-(math.log(x) ** 2) / 2) / math.sqrt(2 * math.pi),
    ),
}


CASES = [("exponential", 0.05), ("exponential", 0.5), ("gamma2", 0.25), ("lognormal", 0.05)]


@pytest.mark.parametrize(("name", "target"), CASES)
@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_many_scores_give_the_known_density_to_5_percent(
    name: str, target: float, scale: float
) -> None:
    draw, exact = KNOWN[name]
    scores = draw(torch.Generator().manual_seed(0), 100_000)
    threshold = float(scores.quantile(1 - target))
    found = log_density(scores * scale, threshold * scale)
    assert found == pytest.approx(exact(threshold), rel=0.05)


@pytest.mark.parametrize(("name", "target"), CASES)
def test_batches_of_128_give_the_known_density_to_25_percent_on_average(
    name: str, target: float
) -> None:
    draw, exact = KNOWN[name]
    random = torch.Generator().manual_seed(1)
    batches = draw(random, 128 * 300).view(300, 128)
    threshold = float(batches.flatten().quantile(1 - target))
    found = [log_density(scores, threshold) for scores in batches]
    assert sum(found) / 300 == pytest.approx(exact(threshold), rel=0.25)


@pytest.mark.parametrize("spread", [1e-4, 1.0, 1e4])
def test_a_density_is_per_unit_of_the_values(spread: float) -> None:
    values = spread * torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    expected = 1 / (spread * math.sqrt(2 * math.pi))
    assert density(values, 0.0) == pytest.approx(expected, rel=0.05)


def test_outliers_and_zeros_only_count_as_rows() -> None:
    random = torch.Generator().manual_seed(0)
    scores = KNOWN["exponential"][0](random, 10_000)
    known = log_density(scores, 1.0)
    zeros, far = torch.zeros(10_000), torch.full((10_000,), 1e30)
    for more in (zeros, far):
        assert log_density(torch.cat([scores, more]), 1.0) == pytest.approx(known / 2, rel=0.1)


def test_by_hand() -> None:
    # 4 values, so k = ceil(4 ** 0.8 / 3) = 2: the third nearest to 1 is 3 away
    assert density(torch.tensor([1.0, 2.0, 4.0, 9.0]), 1.0) == pytest.approx(2 / (2 * 3 * 4))
    assert density(torch.tensor([5.0, 5.0, 5.0, 9.0]), 5.0) == math.inf
    assert log_density(torch.zeros(8), 1.0) == 0


def test_what_has_no_density_is_refused() -> None:
    with pytest.raises(ValueError, match="values holds 1, but a density needs at least two"):
        density(torch.ones(1), 1.0)
    for threshold in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"threshold is {threshold}, but only numbers above"):
            log_density(torch.ones(4), threshold)
    with pytest.raises(ValueError, match=r"scores go down to -2.0, but negative ones have no log"):
        log_density(torch.tensor([1.0, -2.0]), 1.0)
