"""Controllers for moving scores: their laws against plain loops, their bounds, their figures."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from astkit.gating import QuantileEMA, density, log_density
from tests.gating.streams import BATCH, TAU, decaying, follow, gamma2, jumping

TARGETS = [0.05, 0.10, 0.25, 0.40, 0.50]
full = pytest.mark.full


def floor(target: float, batch: int = BATCH) -> float:
    return math.sqrt(target * (1 - target) / batch)


def weibull(ordered: list[float], level: float) -> float:
    """The score at the rank ``(n + 1) level``, between neighbours linearly, within the range."""
    place = min(max((len(ordered) + 1) * level, 1), len(ordered))
    low = int(place)
    above = ordered[min(low, len(ordered) - 1)]
    return ordered[low - 1] + (place - low) * (above - ordered[low - 1])


@settings(deadline=None, max_examples=40)
@given(
    st.floats(0.001, 1),
    st.floats(0.01, 1),
    st.integers(1, 50),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_quantile_ema_averages_weibulls_quantiles(
    target: float, alpha: float, batch: int, seed: int, signed: bool
) -> None:
    stream = gamma2(seed, 8, batch) - 40 * signed
    controller = QuantileEMA(target, alpha)
    into, out = (float, float) if signed else (math.log, math.exp)
    expected: float | None = None
    for scores in stream:
        found = into(weibull(sorted(scores.tolist()), 1 - target))
        if expected is None:
            expected = found
        assert controller.threshold(scores, 0) == pytest.approx(out(expected), rel=1e-9, abs=1e-9)
        expected += alpha * (found - expected)
        controller.update(0.123, scores)  # the rate takes no part
    assert controller.threshold(stream[0], 0) == pytest.approx(out(expected), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("target", "batch"), [(0.05, 19), (0.5, 1)])
def test_the_next_score_exceeds_weibulls_quantile_as_often_as_wanted(
    target: float, batch: int
) -> None:
    # where (n + 1) (1 - target) is whole; the usual quantile of 19 scores is exceeded by 0.095
    draws = torch.rand(4000, batch + 1, generator=torch.Generator().manual_seed(0))
    controller = QuantileEMA(target)
    over = [float(row[-1]) > controller.quantile(row[:-1]) for row in draws]
    assert np.mean(over) == pytest.approx(target, abs=4 * floor(target, 4000))


# --- how well they hold the rate -------------------------------------------------------------


@pytest.mark.parametrize("target", [0.4, *(pytest.param(target, marks=full) for target in TARGETS)])
def test_the_rate_is_held_on_stationary_scores(target: float) -> None:
    found = np.array([follow(QuantileEMA(target), gamma2(seed, 500)) for seed in range(3)])
    assert found.mean() == pytest.approx(target, abs=0.003)
    assert math.sqrt(((found - target) ** 2).mean()) <= 1.13 * floor(target)


def test_quantile_emas_error_on_decaying_scores_is_the_one_in_the_docstring() -> None:
    target, alpha = 0.25, 0.1
    found = np.mean([follow(QuantileEMA(target, alpha), decaying(seed)) for seed in range(3)])
    threshold = float(gamma2(0, 400).flatten().quantile(1 - target))
    density = threshold**2 * math.exp(-threshold)
    assert found - target == pytest.approx(-density / (TAU * alpha), rel=0.15)


def test_quantile_ema_scatters_as_its_docstring_says() -> None:
    alpha = 0.2
    found = follow(QuantileEMA(0.4, alpha), gamma2(0, 3000))
    expected = math.sqrt(1 + alpha / (2 - alpha)) * floor(0.4)
    assert np.std(found) == pytest.approx(expected, rel=0.06)


JUMPS = [(scale, 12, target) for scale in (4, 0.25) for target in TARGETS]


@pytest.mark.parametrize(
    ("scale", "seeds", "target"),
    [(0.25, 8, 0.4), *(pytest.param(*jump, marks=full) for jump in JUMPS)],
)
def test_the_rate_returns_within_75_batches_of_a_fourfold_jump(
    scale: float, seeds: int, target: float
) -> None:
    before, after, window = 30, 150, 5
    found = [
        follow(QuantileEMA(target), jumping(seed, before, after, scale)) for seed in range(seeds)
    ]
    mean = np.array(found).mean(0)
    assert abs(mean[before] - target) > 0.7 * target
    smooth = np.convolve(mean[before:], np.ones(window) / window, mode="valid")
    away = np.flatnonzero(np.abs(smooth - target) > 0.2 * target)
    assert 0 < away[-1] <= 75  # and it stays


def test_decisions_do_not_depend_on_the_scale_of_the_scores() -> None:
    for shift in (0.0, -2.0):
        stream = gamma2(0, 50) + shift
        for scale in (2.0**-20, 2.0**20):
            assert follow(QuantileEMA(0.2), stream) == follow(QuantileEMA(0.2), stream * scale)


# --- density ------------------------------------------------------------------------------------

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


CASES = [("exponential", 0.05, 1.0), ("gamma2", 0.25, 1e-9), ("lognormal", 0.05, 1.0)]


@pytest.mark.parametrize(("name", "target", "scale"), CASES)
def test_many_scores_give_the_known_density_to_5_percent(
    name: str, target: float, scale: float
) -> None:
    draw, exact = KNOWN[name]
    scores = draw(torch.Generator().manual_seed(0), 100_000)
    threshold = float(scores.quantile(1 - target))
    found = log_density(scores * scale, threshold * scale)
    assert found == pytest.approx(exact(threshold), rel=0.05)


def test_a_density_is_per_unit_of_the_values() -> None:
    spread = 1e4
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


def test_the_density_by_hand() -> None:
    # 4 values, so k = ceil(4 ** 0.8 / 3) = 2: the third nearest to 1 is 3 away
    assert density(torch.tensor([1.0, 2.0, 4.0, 9.0]), 1.0) == pytest.approx(2 / (2 * 3 * 4))
    assert density(torch.tensor([5.0, 5.0, 5.0, 9.0]), 5.0) == math.inf
    assert log_density(torch.zeros(8), 1.0) == 0


def test_what_has_no_density_is_refused() -> None:
    with pytest.raises(ValueError, match="values holds 1, but a density needs at least two"):
        density(torch.ones(1), 1.0)
    for threshold in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"threshold is {threshold} and .* only positive num"):
            log_density(torch.ones(4), threshold)
    with pytest.raises(ValueError, match=r"scores go down to -2.0, but only positive numbers have"):
        log_density(torch.tensor([1.0, -2.0]), 1.0)
