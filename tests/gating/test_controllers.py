"""Controllers: what all have in common, each law against a plain loop, their bounds and figures."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from astkit.gating import LogIntegral, OriginPI, QuantileEMA, TopK
from tests.gating.streams import BATCH, follow, gamma2

KINDS: list[Any] = [LogIntegral, OriginPI, QuantileEMA, TopK]
TRACKING: list[Any] = [LogIntegral, QuantileEMA]  # start at the batch's quantile


def automatic(target: float) -> LogIntegral:
    return LogIntegral(target, gain="auto")


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_gain_or_target_is_checked_and_moves_no_threshold(kind: Any) -> None:
    stream = gamma2(1, 30) / 8
    controller = kind(0.2)
    follow(controller, stream)
    before = controller.threshold(stream[0], 9)
    for name in ("rate", *kind.gains):
        good = getattr(controller, name)
        for value in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=f"{name} is {value}: give "):
                kind(**{"rate": 0.25, name: value})
            with pytest.raises(ValueError, match=f"{name} is {value}: give "):
                setattr(controller, name, value)
        assert getattr(controller, name) == good
        setattr(controller, name, good / 2)
        assert controller.threshold(stream[0], 9) == before
    with pytest.raises(KeyError, match="rate"):
        controller.load_state_dict({})


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.data())
def test_top_k_is_the_score_of_the_last_wanted_row(scores: list[int], data: st.DataObject) -> None:
    quota = data.draw(st.integers(0, len(scores)))
    threshold = TopK(0.5).threshold(torch.tensor(scores, dtype=torch.float32), quota)
    assert threshold == (sorted(scores, reverse=True)[quota - 1] if quota else math.inf)


@pytest.mark.parametrize("kind", [*TRACKING, automatic])
@pytest.mark.parametrize("least", [-1e-6, -0.5, -30.0])
def test_a_negative_score_is_refused_in_the_first_batch_and_later(kind: Any, least: float) -> None:
    stream = gamma2(0, 20)
    low = stream[0].clone()
    low[3] = least
    early, late = kind(0.25), kind(0.25)
    follow(late, stream)
    for controller in (early, late):
        with pytest.raises(
            ValueError, match=f"a score is {least:.3g}, but .* or controller='top_k'"
        ):
            follow(controller, [low])


@pytest.mark.parametrize("kind", [*TRACKING, automatic])
def test_scores_of_exactly_zero_do_not_wind_up(kind: Any) -> None:
    # 70 % of the losses are zero, so half of the rows cannot be had; then losses return
    controller = kind(0.5)
    follow(controller, [torch.cat([torch.zeros(70), torch.linspace(1, 2, 30)])] * 300)
    rates = follow(controller, [torch.linspace(0.01, 4, 100)] * 30)
    assert rates[-1] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("kind", [*TRACKING, automatic])
def test_batches_of_zeros_before_the_first_scores_leave_no_trace(kind: Any) -> None:
    late, prompt = kind(0.2), kind(0.2)
    for _ in range(50):
        late.threshold(torch.zeros(128), 0)
        late.update(0.2, torch.zeros(128))
    stream = gamma2(0, 20)
    assert follow(late, stream)[:2] == follow(prompt, stream)[:2]
    if isinstance(late, QuantileEMA):  # nor do they later
        follow(late, [torch.zeros(128)] * 50)
        assert late.value == pytest.approx(prompt.value, rel=1e-9)
    assert late.threshold(stream[0], 0) == pytest.approx(prompt.threshold(stream[0], 0), rel=0.05)


any_rates = st.floats(0, 1)
any_targets = st.floats(0.001, 1)


def exponential(steps: int) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return -torch.rand(steps, BATCH, generator=random, dtype=torch.float64).log()


@settings(deadline=None, max_examples=40)
@given(any_targets, st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_it_starts_at_the_first_batchs_quantile(target: float, seed: int, batch: int) -> None:
    scores = gamma2(seed, 1, batch)[0]
    threshold = LogIntegral(target).threshold(scores, 0)
    assert threshold == pytest.approx(np.quantile(scores.numpy(), 1 - target), rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(any_targets, st.floats(0.01, 2), st.lists(any_rates, min_size=1, max_size=60))
def test_it_moves_the_logarithm_by_gain_times_error(target, gain, found):
    scores = torch.tensor([0.5, 1.0, 2.0])
    controller = LogIntegral(target, gain)
    logarithm = math.log(controller.threshold(scores, 0))
    for rate in found:
        controller.update(rate, torch.full((3,), 1e-31))  # something is left to admit
        logarithm = min(max(logarithm + gain * (rate - target), math.log(1e-30)), math.log(1e30))
        # later scores do not move it
        assert math.log(controller.threshold(torch.rand(3), 0)) == pytest.approx(logarithm)


def test_a_huge_gain_stays_within_the_range_of_thresholds() -> None:
    controller = LogIntegral(0.1, gain=1000)
    controller.threshold(torch.rand(8), 1)
    controller.update(1.0, torch.rand(8))  # by e**900
    assert controller.value == 1 / controller.smallest


def test_scores_of_any_scale_and_kind_can_steer() -> None:
    stream = (gamma2(0, 60) * 16).round() / 16
    plain = follow(LogIntegral(0.25), stream)
    for scale in (2.0**-20, 2.0**20):
        assert follow(LogIntegral(0.25), stream * scale) == plain
    for dtype in (torch.int64, torch.bfloat16, torch.float16):
        kept = stream * 16 if dtype == torch.int64 else stream
        found = follow(LogIntegral(0.25), kept.to(dtype))
        assert np.mean(found) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(("target", "scale"), [(0.05, 1.0), (0.4, 1e-6)])
def test_the_automatic_gain_is_a_quarter_over_the_density(target: float, scale: float) -> None:
    # exponential scores: the density of log-scores at the threshold is p ln(1 / p)
    expected = 0.25 / (target * math.log(1 / target))
    controller = automatic(target)
    found = []
    for scores in exponential(400):
        follow(controller, [scores * scale])
        found.append(controller.gain)
    assert np.mean(found[50:]) == pytest.approx(expected, rel=0.2)
    assert np.std(found[50:]) < 0.15 * expected


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


def test_the_automatic_gain_can_be_replaced_by_hand_and_given_back() -> None:
    stream = gamma2(0, 30)
    controller = automatic(0.3)
    follow(controller, stream)
    measured = controller.gain
    assert measured != 0.5
    for refused in ("car", 0.0, math.nan):
        with pytest.raises(ValueError, match=f"gain is {refused!r}: give "):
            controller.gain = refused
        assert (controller.gain, controller.auto) == (measured, True)
    controller.gain = 0.125
    assert (controller.gain, controller.auto) == (0.125, False)
    follow(controller, stream)
    assert controller.gain == 0.125
    controller.gain = "auto"
    assert controller.gain == measured


@pytest.mark.parametrize(("scale", "target"), [(4.0, 0.05), (0.25, 0.50)])
def test_it_settles_after_a_fourfold_shock(scale: float, target: float) -> None:
    runs = []
    for seed in range(20):
        stream = gamma2(seed, 160)
        stream[40:] *= scale
        runs.append(follow(LogIntegral(target), stream))
    mean = np.mean(runs, axis=0)
    assert mean[30:40].mean() == pytest.approx(target, rel=0.2)  # it was there
    assert abs(mean[40] - target) > 0.5 * target  # it was thrown out
    smooth = np.convolve(mean[40:], np.ones(5) / 5, mode="valid")
    away = np.flatnonzero(np.abs(smooth - target) > 0.2 * target)
    assert 0 < away[-1] < 75  # it came back, and stayed


def weibull(ordered: list[float], level: float) -> float:
    """The score at the rank ``(n + 1) level``, between neighbours linearly, within the range."""
    place = min(max((len(ordered) + 1) * level, 1), len(ordered))
    low = int(place)
    above = ordered[min(low, len(ordered) - 1)]
    return ordered[low - 1] + (place - low) * (above - ordered[low - 1])


@settings(deadline=None, max_examples=40)
@given(st.floats(0.001, 1), st.floats(0.01, 1), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_quantile_ema_averages_weibulls_quantiles(target, alpha, batch, seed):
    stream = gamma2(seed, 8, batch)
    controller = QuantileEMA(target, alpha)
    expected: float | None = None
    for scores in stream:
        found = math.log(weibull(sorted(scores.tolist()), 1 - target))
        if expected is None:
            expected = found
        assert math.log(controller.threshold(scores, 0)) == pytest.approx(expected, abs=1e-9)
        expected += alpha * (found - expected)
        controller.update(0.123, scores)  # the rate takes no part
    assert math.log(controller.threshold(stream[0], 0)) == pytest.approx(expected, abs=1e-9)


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
def test_it_is_the_published_law(target, rates, options):
    controller = OriginPI(target, **options)
    constants = {"kp": 0.0015, "ki": 0.00005, "alpha": 0.3, "start": 0.5}
    for rate, expected in zip(rates, plain_pi(target, rates, **constants | options), strict=True):
        controller.update(rate, torch.rand(2))
        found = (controller.rate_ema, controller.integral, controller.threshold(torch.rand(2), 0))
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("value", ["abc", None, math.nan])
def test_what_is_no_number_is_refused_in_a_sentence(value: Any) -> None:
    with pytest.raises(ValueError, match=r"rate is .*: give a share"):
        LogIntegral(value)
    with pytest.raises(ValueError, match=r"start is .*: give a share of 0 or more"):
        OriginPI(0.1, start=value)
