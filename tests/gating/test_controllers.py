"""Controllers: their laws step by step, and how well the default one holds its rate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from astkit.gating import Controller, LogIntegral, OriginPI, TopK

KINDS = [LogIntegral, OriginPI, TopK]
rates = st.floats(0, 1)
targets = st.floats(0.001, 1)


def gamma2(seed: int, steps: int, batch: int = 128) -> Tensor:
    """Gamma scores of shape 2, ``[steps, batch]``: sums of two exponential ones."""
    random = torch.Generator().manual_seed(seed)
    return -torch.rand(2, steps, batch, generator=random, dtype=torch.float64).log().sum(0)


def follow(controller: Controller, stream: Iterable[Tensor]) -> list[float]:
    """The rate of each batch."""
    found = []
    for scores in stream:
        active = scores > controller.threshold(scores, quota=0)
        found.append(float(active.double().mean()))
        controller.update(found[-1], scores)
    return found


# --- rates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0, 0.0, -1, -0.1, 1.5, 1 + 1e-9, math.inf, math.nan])
def test_a_rate_outside_0_to_1_is_refused_at_once_and_while_running(
    kind: Callable[[float], Controller], rate: float
) -> None:
    sentence = rf"target_rate is {rate}, but a rate is a share .* above 0 and at most 1"
    with pytest.raises(ValueError, match=sentence):
        kind(rate)
    controller = kind(0.25)
    with pytest.raises(ValueError, match=sentence):
        controller.target_rate = rate
    assert controller.target_rate == 0.25


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [1, 1.0, 0.5, 1e-6])
def test_a_rate_within_is_taken(kind: Callable[[float], Controller], rate: float) -> None:
    controller = kind(rate)
    assert controller.target_rate == rate
    controller.target_rate = 0.3
    assert controller.target_rate == 0.3


@pytest.mark.parametrize("gain", [0, -0.5, math.nan])
def test_a_gain_that_cannot_steer_is_refused(gain: float) -> None:
    with pytest.raises(ValueError, match=rf"gain is {gain}, but it must be above 0"):
        LogIntegral(0.1, gain=gain)


def test_an_update_before_the_first_threshold_is_refused() -> None:
    with pytest.raises(RuntimeError, match="ask for a threshold first"):
        LogIntegral(0.1).update(0.5, torch.ones(4))


# --- the origin's PI -------------------------------------------------------------------------

# target 0.5, kp 1, ki 0.5, alpha 0.5, from 0.5. Each line: the batch's rate; then, worked out by
# hand, ema = (rate + ema) / 2, error = ema - 0.5, unclamped = t + error + integral / 2.
BY_HAND = [
    # rate, ema,       integral,   t       error      unclamped
    (1, 0.75, 0.25, 0.75),  #      0.25       0.5 + 0.25 + 0 = 0.75
    (1, 0.875, 0.225, 1.0),  #     0.375      0.75 + 0.375 + 0.125 = 1.25: integral * 0.9
    (0, 0.4375, 0.2025, 1.0),  #  -0.0625     1 - 0.0625 + 0.1125 = 1.05: integral * 0.9
    (0, 0.21875, -0.07875, 0.82),  # -0.28125 1 - 0.28125 + 0.10125 = 0.82
    (0, 0.109375, -0.469375, 0.39),  # -0.390625  0.82 - 0.390625 - 0.039375 = 0.39
    (0, 0.0546875, -0.4224375, 0.0),  # -0.4453125  0.39 - 0.4453125 - 0.2346875 = -0.29
    (1, 0.52734375, -0.38019375, 0.0),  # 0.02734375  0.02734375 - 0.21121875 = -0.183875
]


def test_the_origins_controller_makes_the_steps_worked_out_by_hand() -> None:
    controller = OriginPI(0.5, kp=1, ki=0.5, alpha=0.5)
    assert controller.threshold(torch.rand(4), 0) == 0.5
    for rate, ema, integral, threshold in BY_HAND:
        controller.update(rate, torch.rand(4))
        assert controller.rate_ema == ema
        assert controller.integral == pytest.approx(integral, abs=1e-12)
        assert controller.threshold(torch.rand(4), 0) == pytest.approx(threshold, abs=1e-12)


def test_the_origins_constants_are_the_defaults() -> None:
    controller = OriginPI(0.1)
    controller.update(0.5, torch.rand(4))  # ema 0.15 + 0.07, error 0.12
    assert controller.value == pytest.approx(0.5 + 0.0015 * 0.12, abs=1e-12)
    controller.update(0.5, torch.rand(4))  # ema 0.15 + 0.154, error 0.204; the integral is 0.12
    assert controller.value == pytest.approx(0.50018 + 0.0015 * 0.204 + 5e-5 * 0.12, abs=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_origins_integral_stops_at_50(sign: int) -> None:
    controller = OriginPI(0.5, kp=0, ki=0, alpha=1)  # errors of 0.5, and a threshold that stays
    for step in range(1, 121):
        controller.update(0.5 + sign * 0.5, torch.rand(4))
        assert controller.integral == sign * min(step * 0.5, 50.0)
    controller.update(0.5 - sign * 0.5, torch.rand(4))
    assert controller.integral == sign * 49.5


@pytest.mark.parametrize(
    ("start", "moves"), [(0.01, False), (0.0101, True), (0.9899, True), (0.99, False)]
)
def test_the_origins_integral_only_grows_away_from_the_bounds(start: float, moves: bool) -> None:
    controller = OriginPI(0.5, kp=0, ki=0, alpha=1, start=start)
    controller.integral = 10.0
    controller.update(0.75, torch.rand(4))
    assert controller.integral == (10.25 if moves else 9.0)


@settings(deadline=None)
@given(targets, st.lists(rates, max_size=60), st.floats(0, 3), st.floats(0, 1), st.floats(0.01, 1))
def test_the_origins_threshold_stays_within_0_and_1(
    target: float, found: list[float], kp: float, ki: float, alpha: float
) -> None:
    controller = OriginPI(target, kp, ki, alpha)
    for rate in found:
        controller.update(rate, torch.rand(2))
        assert 0 <= controller.threshold(torch.rand(2), 0) <= 1
        assert abs(controller.integral) <= 50
        assert 0 <= controller.rate_ema <= 1


# --- top-k -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.data())
def test_top_k_is_the_score_of_the_last_wanted_row(scores: list[int], data: st.DataObject) -> None:
    quota = data.draw(st.integers(1, len(scores)))
    threshold = TopK(0.5).threshold(torch.tensor(scores, dtype=torch.float32), quota)
    assert threshold == sorted(scores, reverse=True)[quota - 1]


def test_top_k_wants_a_whole_batch_and_may_want_none_of_it() -> None:
    assert not TopK.held
    assert LogIntegral.held
    assert OriginPI.held
    assert TopK(0.1).threshold(torch.rand(4), 0) == math.inf


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

SEEDS = [5, pytest.param(20, marks=pytest.mark.full)]
TAU, STEPS, BATCH = 200, 800, 128


def decaying(seed: int) -> Tensor:
    return gamma2(seed, STEPS, BATCH) * (-torch.arange(STEPS) / TAU).exp()[:, None]


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("target", [0.05, 0.10, 0.25, 0.40])
def test_the_rate_is_held_while_scores_decay(target: float, seeds: int) -> None:
    controllers = [LogIntegral(target) for _ in range(seeds)]
    found = np.array([follow(c, decaying(seed)) for seed, c in enumerate(controllers)])
    bias = found.mean() - target
    assert -(1 / (TAU * controllers[0].gain) + 0.005) <= bias < 0
    floor = math.sqrt(target * (1 - target) / BATCH)
    assert math.sqrt(((found - target) ** 2).mean()) <= 1.15 * floor


@pytest.mark.parametrize("gain", [0.1, 0.25, 1.0])
def test_the_bias_on_decaying_scores_is_the_one_in_the_docstring(gain: float) -> None:
    found = [follow(LogIntegral(0.25, gain), decaying(seed)) for seed in range(3)]
    assert np.mean(found) - 0.25 == pytest.approx(-1 / (TAU * gain), rel=0.15, abs=5e-4)


@pytest.mark.parametrize("target", [0.05, 0.10, 0.25, 0.40])
@pytest.mark.parametrize("scale", [4.0, 0.25], ids=["up", "down"])
def test_the_rate_returns_after_a_fourfold_jump_of_scale(target: float, scale: float) -> None:
    before, after, window = 20, 75, 5
    found = []
    for seed in range(20):
        stream = gamma2(seed, before + after, BATCH)
        stream[before:] *= scale
        found.append(follow(LogIntegral(target), stream))
    mean = np.array(found).mean(0)
    # it was there, it was thrown out, it came back
    assert mean[before - window : before].mean() == pytest.approx(target, rel=0.2)
    assert abs(mean[before] - target) > 0.7 * target
    smooth = np.convolve(mean[before:], np.ones(window) / window, mode="valid")
    assert np.abs(smooth - target).min() <= 0.2 * target
    assert smooth[-1] == pytest.approx(target, rel=0.25)


def test_the_gain_is_stable_up_to_two_over_the_density() -> None:
    # exponential scores: the density of log-scores at the threshold is p ln(1 / p)
    target = 0.3
    density = target * math.log(1 / target)
    random = torch.Generator().manual_seed(0)
    stream = -torch.rand(150, 4096, generator=random).log()
    spread = {
        share: np.std(follow(LogIntegral(target, gain=share / density), stream)[50:])
        for share in (0.2, 1.5, 2.5)
    }
    floor = math.sqrt(target * (1 - target) / 4096)
    assert spread[0.2] < 1.2 * floor
    assert spread[1.5] < 3 * floor
    assert spread[2.5] > 10 * floor


@pytest.mark.parametrize("target", [0.1, 0.4])
def test_signed_scores_hold_the_rate_too(target: float) -> None:
    random = torch.Generator().manual_seed(0)
    stream = torch.randn(400, BATCH, generator=random) * 3 - 1
    found = np.array(follow(LogIntegral(target), stream))
    assert found.mean() == pytest.approx(target, abs=0.005)
    floor = math.sqrt(target * (1 - target) / BATCH)
    assert math.sqrt(((found - target) ** 2).mean()) <= 1.25 * floor


# --- state -----------------------------------------------------------------------------------


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state, allow_nan=False))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 1, 17])
@pytest.mark.parametrize("shift", [0.0, -2.0], ids=["unsigned", "signed"])
def test_a_controller_continues_from_its_saved_state(
    kind: Callable[[float], Controller], steps: int, shift: float
) -> None:
    stream = (gamma2(3, 40) + shift) / 4
    controller, resumed = kind(0.2), kind(0.7)
    follow(controller, stream[:steps])
    resumed.load_state_dict(through_json(controller.state_dict()))
    assert resumed.target_rate == 0.2
    for scores in stream[steps:]:
        threshold = controller.threshold(scores, 9)
        assert resumed.threshold(scores, 9) == threshold
        rate = float((scores > threshold).double().mean())
        controller.update(rate, scores)
        resumed.update(rate, scores)
    assert resumed.state_dict() == controller.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_lacks_a_number_or_holds_a_wrong_rate_is_refused(
    kind: Callable[[float], Controller],
) -> None:
    whole = kind(0.2).state_dict()
    for name in whole:
        with pytest.raises(KeyError, match=name):
            kind(0.2).load_state_dict({key: whole[key] for key in whole if key != name})
    with pytest.raises(ValueError, match="target_rate is 7"):
        kind(0.2).load_state_dict({**whole, "target_rate": 7})


def test_log_integral_does_not_wind_up_on_scores_of_exactly_zero() -> None:
    # 70 % of the losses are zero, so half of the rows cannot be had; then losses return
    controller = LogIntegral(0.5)
    zeros = torch.cat([torch.zeros(70), torch.linspace(1, 2, 30)])
    for _ in range(300):
        rate = float((zeros > controller.threshold(zeros, 0)).double().mean())
        controller.update(rate, zeros)
    scores = torch.linspace(0.01, 4, 100)
    rates = []
    for _ in range(30):
        rates.append(float((scores > controller.threshold(scores, 0)).double().mean()))
        controller.update(rates[-1], scores)
    assert rates[-1] == pytest.approx(0.5, abs=0.05)
