"""Controllers for moving scores: their laws against plain loops, their bounds, their figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from astkit.gating import LogIntegral, QuantileEMA, VelocityPI, density, log_density
from tests.gating.streams import BATCH, TAU, decaying, follow, gamma2, jumping

ONES, LOW = torch.ones(100), torch.full((100,), 1e-31)  # under a threshold of 1, all is left
TARGETS = [0.05, 0.10, 0.25, 0.40, 0.50]
full = pytest.mark.full
KINDS: list[Any] = [VelocityPI, QuantileEMA]


def floor(target: float, batch: int = BATCH) -> float:
    return math.sqrt(target * (1 - target) / batch)


# --- velocity PI: the law --------------------------------------------------------------------

gains = st.floats(0.01, 2)


@settings(deadline=None, max_examples=40)
@given(gains, gains, st.floats(0, 0.05), st.lists(st.integers(0, 100), min_size=1, max_size=40))
def test_velocity_pi_is_its_law(kp: float, ki: float, kii: float, counts: list[int]) -> None:
    target, rows = 0.3, 100
    controller = VelocityPI(target, kp, ki, kii)
    start = torch.linspace(0.5, 2, 101)
    expected = math.log(controller.threshold(start, 0))
    drift, before = 0.0, counts[0] / rows
    for count in counts:
        rate = count / rows
        error = rate - target
        # chance leaves all or none of 100 rows less often than 1 in 100 times
        if 0 < count < rows and abs(error) <= 3 * math.sqrt(target * (1 - target) / rows):
            drift = min(max(drift + kii * error, -0.05), 0.05)
        expected += kp * (rate - before) + ki * error + drift
        before = rate
        controller.update(rate, LOW)
        assert controller.drift == pytest.approx(drift, abs=1e-12)
        assert math.log(controller.threshold(start, 0)) == pytest.approx(expected, abs=1e-9)


def test_without_p_and_drift_it_is_log_integral() -> None:
    for shift in (0.0, -2.0):
        stream = gamma2(0, 100) + shift
        assert follow(VelocityPI(0.2, 0, 0.5, 0), stream) == follow(LogIntegral(0.2), stream)


def test_a_negative_score_moves_the_threshold_in_units_of_the_spread() -> None:
    scores = torch.linspace(-3, 5, 100, dtype=torch.float64)
    spread = float((scores - scores.mean()).abs().mean())
    controller = VelocityPI(0.3, 0.1, 0.5, 0.02)
    start = controller.threshold(scores, 0)
    controller.update(0.4, scores)
    assert controller.threshold(scores, 0) == pytest.approx(start + spread * 0.52 * 0.1)
    controller.update(0.3, scores)
    assert controller.threshold(scores, 0) == pytest.approx(start + spread * (0.054 - 0.01))


# --- velocity PI: no wind-up -----------------------------------------------------------------


def started(controller: VelocityPI) -> VelocityPI:
    """``controller`` with a threshold of 1."""
    controller.threshold(ONES, 0)
    return controller


def test_the_drift_stands_still_while_the_error_is_saturated() -> None:
    for rate in (0.0, 1.0):
        controller = started(VelocityPI(0.3))
        for _ in range(50):
            controller.update(rate, LOW)
        assert controller.drift == 0
        controller.update(0.35, LOW)
        assert controller.drift == pytest.approx(0.003 * 0.05)
    controller = started(VelocityPI(0.3))
    controller.update(0.0, LOW[:10])  # none of 10 rows at 0.3: 1 in 35, so no saturation
    assert controller.drift == pytest.approx(-0.003 * 0.3)


@pytest.mark.parametrize(("rate", "bound"), [(0.25, 1e-30), (0.35, 1e30)])
def test_the_drift_stands_still_while_the_threshold_is_at_its_bounds(
    rate: float, bound: float
) -> None:
    controller = started(VelocityPI(0.3, ki=500.0))
    for _ in range(100):
        controller.update(rate, LOW)
    assert controller.value == pytest.approx(bound)
    drift = controller.drift
    controller.update(rate, torch.zeros(100))
    assert controller.drift == drift
    assert abs(drift) < 50 * 0.003 * 0.05


def test_the_drift_is_bounded() -> None:
    controller = started(VelocityPI(0.5, kii=1.0))
    for rate, expected in ((0.6, 0.05), (0.4, -0.05)):
        for _ in range(20):
            controller.update(rate, LOW)
        assert controller.drift == expected


# --- velocity PI: stability ------------------------------------------------------------------


def decays(kp: float, ki: float, kii: float, density: float) -> bool:
    """Whether a tiny deviation dies out where the rate falls linearly in the log-threshold."""
    controller = started(VelocityPI(0.4, kp, ki, kii))
    controller.value = math.exp(1e-9)
    found = [1e-9]
    for _ in range(1500):
        assert controller.value is not None
        error = math.log(controller.value)
        found.append(abs(error))
        if found[-1] > 1e-4:
            return False
        controller.update(0.4 - density * error, LOW)
    return max(found[-200:]) < 0.5 * max(found[:200])


@pytest.mark.parametrize(("density", "shares"), [(0.2, (0, 0.1, 3)), (1.0, (2, 1, 0.01))])
def test_velocity_pi_is_stable_exactly_within_the_bound_of_its_card(
    shares: tuple[float, float, float], density: float
) -> None:
    kp, ki, kii = shares
    unit = 4 / density / (4 * kp + 2 * ki + kii)
    for share, stable in ((0.2, True), (0.97, True), (1.03, False)):
        assert decays(*(share * unit * gain for gain in shares), density) == stable  # type: ignore[arg-type]


@pytest.mark.full
@settings(deadline=None, max_examples=150)
@given(st.floats(0, 1), st.floats(0.05, 1), st.floats(0.01, 1), st.floats(0.1, 2))
def test_any_velocity_pi_is_stable_exactly_within_the_bound(
    kp: float, ki: float, kii: float, density: float
) -> None:
    unit = 4 / density / (4 * kp + 2 * ki + kii)
    assert decays(0.96 * unit * kp, 0.96 * unit * ki, 0.96 * unit * kii, density)
    assert not decays(1.04 * unit * kp, 1.04 * unit * ki, 1.04 * unit * kii, density)


# --- quantile EMA: the law -------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (VelocityPI, 0.1),
        (QuantileEMA, 0.4),
        *(pytest.param(kind, target, marks=full) for kind in KINDS for target in TARGETS),
    ],
)
def test_the_rate_is_held_on_stationary_scores(kind: Any, target: float) -> None:
    found = np.array([follow(kind(target), gamma2(seed, 500)) for seed in range(3)])
    assert found.mean() == pytest.approx(target, abs=0.003)
    assert math.sqrt(((found - target) ** 2).mean()) <= 1.13 * floor(target)


@pytest.mark.parametrize(
    ("target", "seeds"), [(0.1, 3), *(pytest.param(target, 20, marks=full) for target in TARGETS)]
)
def test_velocity_pi_has_no_lasting_error_on_decaying_scores(target: float, seeds: int) -> None:
    controllers = [VelocityPI(target) for _ in range(seeds)]
    found = np.array([follow(c, decaying(seed)) for seed, c in enumerate(controllers)])
    assert math.sqrt(((found - target) ** 2).mean()) <= 1.15 * floor(target)
    late = found[:, 300:]
    # log_integral: -1 / (tau * gain) = -0.01
    assert abs(late.mean() - target) < 0.0015 + 3 * floor(target, BATCH * late.size)
    drifts = np.mean([c.drift for c in controllers])
    assert drifts == pytest.approx(-1 / TAU, rel=0.3)


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


JUMPS = [(kind, scale, 12, target) for kind in KINDS for scale in (4, 0.25) for target in TARGETS]


@pytest.mark.parametrize(
    ("kind", "scale", "seeds", "target"),
    [
        (VelocityPI, 4.0, 8, 0.1),
        (QuantileEMA, 0.25, 8, 0.4),
        *(pytest.param(*jump, marks=full) for jump in JUMPS),
    ],
)
def test_the_rate_returns_within_75_batches_of_a_fourfold_jump(
    kind: Any, scale: float, seeds: int, target: float
) -> None:
    before, after, window = 30, 150, 5
    found = [follow(kind(target), jumping(seed, before, after, scale)) for seed in range(seeds)]
    mean = np.array(found).mean(0)
    assert abs(mean[before] - target) > 0.7 * target
    smooth = np.convolve(mean[before:], np.ones(window) / window, mode="valid")
    away = np.flatnonzero(np.abs(smooth - target) > 0.2 * target)
    assert 0 < away[-1] <= 75  # and it stays


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_do_not_depend_on_the_scale_of_the_scores(kind: Any) -> None:
    for shift in (0.0, -2.0):
        stream = gamma2(0, 50) + shift
        for scale in (2.0**-20, 2.0**20):
            assert follow(kind(0.2), stream) == follow(kind(0.2), stream * scale)


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
