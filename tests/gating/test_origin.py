"""The original's controllers: each step by hand, or in a plain loop, and their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astkit.gating import OriginPI

# --- PI --------------------------------------------------------------------------------------


def plain_pi(
    target: float, rates: Iterable[float], kp: float, ki: float, alpha: float, start: float
) -> Iterator[tuple[float, float, float]]:
    """The published law: EMA, integral and threshold after each rate."""
    threshold, integral, ema = start, 0.0, target
    for rate in rates:
        ema = alpha * rate + (1 - alpha) * ema
        error = ema - target
        moved = threshold + kp * error + ki * integral
        integral = min(50, max(-50, integral + error)) if 0.01 < moved < 0.99 else 0.9 * integral
        threshold = min(1, max(0, moved))
        yield ema, integral, threshold


@settings(deadline=None, max_examples=40)
@given(
    st.floats(0.001, 1),
    st.lists(st.floats(0, 1), max_size=60),
    st.fixed_dictionaries(
        {"kp": st.floats(0, 3), "ki": st.floats(0, 1), "alpha": st.floats(0.01, 1)},
        optional={"start": st.floats(0, 1)},
    ),
)
@example(0.5, [1.0] * 120 + [0.0], {"kp": 0, "ki": 0, "alpha": 1})  # the integral stops at 50
@example(0.5, [0.0] * 120 + [1.0], {"kp": 0, "ki": 0, "alpha": 1})
@example(0.5, [0.75] * 3, {"kp": 0, "ki": 0, "alpha": 1, "start": 0.01})  # it stands still there
@example(0.5, [0.75] * 3, {"kp": 0, "ki": 0, "alpha": 1, "start": 0.99})
@example(0.1, [0.5, 0.5, 0.0], {})
def test_it_is_the_published_law(
    target: float, rates: list[float], options: dict[str, float]
) -> None:
    controller = OriginPI(target, **options)
    constants = {"kp": 0.0015, "ki": 0.00005, "alpha": 0.3, "start": 0.5}
    for rate, expected in zip(rates, plain_pi(target, rates, **constants | options), strict=True):
        controller.update(rate, torch.rand(2))
        found = (controller.rate_ema, controller.integral, controller.threshold(torch.rand(2), 0))
        assert found == pytest.approx(expected, abs=1e-12)


def deviation(controller: OriginPI, density: float, steps: int) -> tuple[float, float]:
    """How far the threshold is from the quantile, early and late: its rate falls linearly."""
    quantile, nudge = 0.5, 1e-9
    controller.value = quantile + nudge
    found = []
    for _ in range(steps):
        controller.update(0.2 - density * (controller.value - quantile), torch.rand(2))
        found.append(abs(controller.value - quantile))
    return max(found[: steps // 4]), max(found[-steps // 4 :])


@pytest.mark.parametrize(("alpha", "density"), [(0.1, 3.0), (0.3, 0.5)])
def test_the_gains_are_stable_exactly_within_the_bounds_of_the_card(
    alpha: float, density: float
) -> None:
    # below the one bound, on both sides of the other; and the other way round
    kp = 0.1 / density
    for share, stable in ((0.9, True), (1.1, False)):
        controller = OriginPI(0.2, kp, share * alpha * kp, alpha)
        early, late = deviation(controller, density, 6000)
        assert (late < 0.5 * early) == stable
    largest = 4 * (2 - alpha) / alpha / density  # of 2 kp - ki
    for share, stable in ((0.95, True), (1.05, False)):
        kp = share * largest / (2 - 0.05 * alpha)
        controller = OriginPI(0.2, kp, 0.05 * alpha * kp, alpha)
        early, late = deviation(controller, density, 400)
        assert (late < early) == stable


def test_the_defaults_are_stable_but_oscillate_for_hundreds_of_batches() -> None:
    controller = OriginPI(0.2)
    controller.value = 0.5 + 1e-6
    signs = []
    for _ in range(4000):
        controller.update(0.2 - (controller.value - 0.5), torch.rand(2))
        signs.append(controller.value > 0.5)
    crossings = np.flatnonzero(np.diff(signs))
    # sqrt(ki) radians a batch, so that half a period takes some 450 of them
    assert np.diff(crossings) == pytest.approx(math.pi / math.sqrt(5e-5), rel=0.05)
    assert abs(controller.value - 0.5) < 0.3e-6
