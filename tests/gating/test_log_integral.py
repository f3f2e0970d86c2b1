"""The default controller: its law step by step, how well it holds its rate, and its own gain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.gating import LogIntegral
from tests.gating.streams import BATCH, follow, gamma2, through_json

rates = st.floats(0, 1)
targets = st.floats(0.001, 1)


@pytest.mark.parametrize("gain", [0, -0.5, math.nan])
def test_a_gain_that_cannot_steer_is_refused(gain: float) -> None:
    with pytest.raises(ValueError, match=rf"gain is {gain}, but it must be above 0"):
        LogIntegral(0.1, gain=gain)


# --- log-integral: the law -------------------------------------------------------------------


@settings(deadline=None)
@given(targets, st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_log_integral_starts_at_the_first_batchs_quantile(
    target: float, seed: int, batch: int
) -> None:
    scores = gamma2(seed, 1, batch)[0]
    expected = np.quantile(scores.numpy(), 1 - target)
    assert LogIntegral(target).threshold(scores, 0) == pytest.approx(expected, rel=1e-9)
    signed = scores - 2
    threshold = LogIntegral(target, signed=True).threshold(signed, 0)
    assert threshold == pytest.approx(np.quantile(signed.numpy(), 1 - target), rel=1e-9)


@settings(deadline=None)
@given(targets, st.floats(0.01, 2), st.lists(rates, min_size=1, max_size=60))
def test_log_integral_moves_the_logarithm_by_gain_times_error(
    target: float, gain: float, found: list[float]
) -> None:
    scores = torch.tensor([0.5, 1.0, 2.0])
    controller = LogIntegral(target, gain)
    logarithm = math.log(controller.threshold(scores, 0))
    for rate in found:
        controller.update(rate, torch.full((3,), 1e-31))  # something is left to admit
        logarithm = min(max(logarithm + gain * (rate - target), math.log(1e-30)), math.log(1e30))
        # later scores do not move it
        assert math.log(controller.threshold(torch.rand(3), 0)) == pytest.approx(logarithm)


def test_log_integral_by_hand() -> None:
    controller = LogIntegral(0.25)
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert controller.threshold(scores, 0) == 4.0  # the quantile at 0.75
    controller.update(0.65, scores)
    assert controller.threshold(scores, 0) == pytest.approx(4 * math.exp(0.2))
    controller.update(0.0, scores)
    assert controller.threshold(scores, 0) == pytest.approx(4 * math.exp(0.075))
    controller.update(0.25, scores)
    assert controller.threshold(scores, 0) == pytest.approx(4 * math.exp(0.075))


def slow_deviation(scores: list[float]) -> float:
    mean = sum(scores) / len(scores)
    return sum(abs(score - mean) for score in scores) / len(scores)


@settings(deadline=None)
@given(targets, st.lists(rates, max_size=30), st.integers(0, 2**32 - 1))
def test_signed_scores_move_the_threshold_itself(
    target: float, found: list[float], seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    first, *later = torch.randn(len(found) + 1, 7, generator=random, dtype=torch.float64)
    first[0] = -1.0
    controller = LogIntegral(target, gain=0.5)
    threshold = controller.threshold(first, 0)
    spread = slow_deviation(first.tolist())
    for rate, scores in zip(found, later, strict=True):
        controller.update(rate, scores)
        spread = 0.9 * spread + 0.1 * slow_deviation(scores.tolist())
        threshold += 0.5 * spread * (rate - target)
        assert controller.threshold(scores, 0) == pytest.approx(threshold, abs=1e-9)
    assert controller.signed is True


def test_the_sign_is_told_from_the_first_batch_unless_given() -> None:
    below, above = torch.tensor([-0.1, 1.0, 2.0]), torch.tensor([0.0, 1.0, 2.0])
    for scores, told, expected in (
        (below, None, True),
        (above, None, False),
        (above, True, True),
        (below, False, False),
    ):
        controller = LogIntegral(0.9, signed=told)
        assert controller.signed is told
        controller.threshold(scores, 0)
        assert controller.signed is expected


def test_an_unsigned_threshold_stays_above_zero_and_finite() -> None:
    controller = LogIntegral(0.5, gain=100.0)
    assert controller.threshold(torch.zeros(4), 0) > 0
    for rate, bound in ((0.0, 1e-30), (1.0, 1e30)):
        for _ in range(5):
            controller.update(rate, torch.full((4,), 1e-31))
        assert controller.threshold(torch.zeros(4), 0) == pytest.approx(bound)
    controller.update(0.0, torch.full((4,), 1e-31))  # and nothing has wound up behind the bound
    assert controller.threshold(torch.zeros(4), 0) == pytest.approx(1e30 * math.exp(-50))


@pytest.mark.parametrize("shift", [0.0, -2.0], ids=["unsigned", "signed"])
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
def test_decisions_do_not_depend_on_the_scale_of_the_scores(shift: float, scale: float) -> None:
    stream = gamma2(0, 50) + shift
    assert follow(LogIntegral(0.2), stream) == follow(LogIntegral(0.2), stream * scale)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [0, -3], ids=["unsigned", "signed"])
def test_scores_of_other_kinds_can_steer(dtype: torch.dtype, shift: int) -> None:
    stream = (gamma2(0, 60) * 16).round() / 16 + shift
    if dtype == torch.int64:
        stream = stream * 16
    controller = LogIntegral(0.25)
    found = follow(controller, stream.to(dtype))
    assert sum(found) / 60 == pytest.approx(0.25, abs=0.03)


# --- log-integral: how well it holds the rate ------------------------------------------------
# on scores that are never negative: tests/runs/test_response.py and test_stability.py


@pytest.mark.parametrize("target", [0.1, 0.4])
def test_signed_scores_hold_the_rate_too(target: float) -> None:
    random = torch.Generator().manual_seed(0)
    stream = torch.randn(400, BATCH, generator=random) * 3 - 1
    found = np.array(follow(LogIntegral(target), stream))
    assert found.mean() == pytest.approx(target, abs=0.005)
    floor = math.sqrt(target * (1 - target) / BATCH)
    assert math.sqrt(((found - target) ** 2).mean()) <= 1.25 * floor


# --- log-integral: a gain from the density ----------------------------------------------------


def automatic(target: float) -> LogIntegral:
    return LogIntegral(target, gain="auto")


def test_the_automatic_gain_is_damping_over_the_density() -> None:
    # exponential scores: the density of log-scores at the threshold is p ln(1 / p)
    for target in (0.05, 0.1, 0.4):
        expected = 0.25 / (target * math.log(1 / target))
        for scale in (1.0, 1e-6):
            random = torch.Generator().manual_seed(0)
            controller = automatic(target)
            found = []
            for scores in -torch.rand(400, BATCH, generator=random, dtype=torch.float64).log():
                follow(controller, [scores * scale])
                found.append(controller.gain)
            assert np.mean(found[50:]) == pytest.approx(expected, rel=0.2)
            assert np.std(found[50:]) < 0.15 * expected


@pytest.mark.parametrize("damping", [0.25, 1.0])
def test_the_automatic_gain_scatters_as_its_damping_says(damping: float) -> None:
    target = 0.3
    random = torch.Generator().manual_seed(0)
    stream = -torch.rand(2000, BATCH, generator=random, dtype=torch.float64).log()
    found = follow(LogIntegral(target, "auto", damping=damping), stream)[100:]
    floor = math.sqrt(target * (1 - target) / BATCH)
    expected = math.sqrt(1 + damping / (2 - damping)) * floor
    assert np.std(found) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("width", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("shift", [0.0, -2.0], ids=["unsigned", "signed"])
def test_the_automatic_gain_holds_scores_that_0_point_5_cannot(width: float, shift: float) -> None:
    random = torch.Generator().manual_seed(0)
    stream = torch.randn(300, BATCH, generator=random, dtype=torch.float64)
    stream = (width * stream).exp() if shift == 0 else width * stream + shift
    controller = automatic(0.2)
    found = follow(controller, stream)[50:]
    floor = math.sqrt(0.2 * 0.8 / BATCH)
    assert np.std(found) < 1.2 * floor
    assert np.mean(found) == pytest.approx(0.2, abs=0.005)
    if width == 0.01 and shift == 0:
        assert np.std(follow(LogIntegral(0.2), stream)[50:]) > 3 * floor


@pytest.mark.parametrize("target", [0.05, 0.10, 0.25, 0.40])
@pytest.mark.parametrize("scale", [4.0, 0.25], ids=["up", "down"])
def test_the_automatic_gain_returns_sooner_after_a_jump(target: float, scale: float) -> None:
    found = []
    for seed in range(10):
        stream = gamma2(seed, 60, BATCH)
        stream[20:] *= scale
        found.append(follow(automatic(target), stream))
    mean = np.array(found).mean(0)
    assert abs(mean[20] - target) > 0.7 * target
    assert mean[50:].mean() == pytest.approx(target, rel=0.1)


def test_the_automatic_gain_stays_within_its_bounds_and_ignores_batches_without_density() -> None:
    controller = automatic(0.3)
    follow(controller, [torch.ones(16), torch.zeros(16), torch.ones(1)])
    assert controller.density is None
    assert controller.gain == 0.5
    follow(controller, 1 + 1e-6 * gamma2(0, 5))
    assert controller.gain == 0.01
    controller = automatic(0.001)
    follow(controller, (20 * gamma2(0, 5)).exp())
    assert controller.gain == 5.0


def test_the_automatic_gain_can_be_taken_over_by_hand_and_given_back() -> None:
    stream = gamma2(0, 30)
    controller = automatic(0.3)
    follow(controller, stream)
    measured = controller.gain
    assert measured != 0.5
    controller.gain = 0.125
    assert (controller.gain, controller.auto) == (0.125, False)
    follow(controller, stream)
    assert controller.gain == 0.125
    controller.gain = "auto"
    assert controller.gain == measured
    with pytest.raises(ValueError, match="gain is 'car', but it must be a number above 0 or"):
        controller.gain = "car"
    for damping in (0.0, 2.0, math.nan):
        with pytest.raises(ValueError, match=f"damping is {damping}, but it must be above 0 and b"):
            LogIntegral(0.1, damping=damping)


def test_the_automatic_gain_continues_from_its_saved_state() -> None:
    stream = gamma2(0, 30)
    controller, resumed = automatic(0.3), LogIntegral(0.1, gain=2.0, damping=1.0)
    follow(controller, stream[:10])
    resumed.load_state_dict(through_json(controller.state_dict()))
    assert follow(resumed, stream[10:]) == follow(controller, stream[10:])
    assert resumed.state_dict() == controller.state_dict()


def test_a_start_of_zeros_waits_for_a_scale_however_rows_were_drawn() -> None:
    controller = LogIntegral(0.1)
    for _ in range(3):
        controller.threshold(torch.zeros(8), 1)
        controller.update(0.25, torch.zeros(8))  # of 8 equal rows, two were drawn
    scores = torch.arange(1.0, 101.0)
    assert controller.threshold(scores, 10) == pytest.approx(90.1)
