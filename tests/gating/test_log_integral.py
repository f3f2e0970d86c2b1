"""The default controller: its law step by step, how well it holds its rate, and its own gain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from astkit.gating import LogIntegral
from tests.gating.streams import BATCH, follow, gamma2

rates = st.floats(0, 1)
targets = st.floats(0.001, 1)


def automatic(target: float) -> LogIntegral:
    return LogIntegral(target, gain="auto")


def exponential(steps: int) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return -torch.rand(steps, BATCH, generator=random, dtype=torch.float64).log()


# --- the law ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(targets, st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_it_starts_at_the_first_batchs_quantile(target: float, seed: int, batch: int) -> None:
    for shift in (0, 20):
        scores = gamma2(seed, 1, batch)[0] - shift
        threshold = LogIntegral(target).threshold(scores, 0)
        assert threshold == pytest.approx(np.quantile(scores.numpy(), 1 - target), rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(targets, st.floats(0.01, 2), st.lists(rates, min_size=1, max_size=60))
def test_it_moves_the_logarithm_by_gain_times_error(
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


def slow_deviation(scores: list[float]) -> float:
    mean = sum(scores) / len(scores)
    return sum(abs(score - mean) for score in scores) / len(scores)


@settings(deadline=None, max_examples=40)
@given(targets, st.lists(rates, max_size=30), st.integers(0, 2**32 - 1))
def test_negative_scores_move_the_threshold_itself(
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


def test_a_threshold_of_positive_scores_stays_above_zero_and_finite() -> None:
    controller = LogIntegral(0.5, gain=100.0)
    assert controller.threshold(torch.zeros(4), 0) > 0
    for rate, bound in ((0.0, 1e-30), (1.0, 1e30)):
        for _ in range(5):
            controller.update(rate, torch.full((4,), 1e-31))
        assert controller.threshold(torch.zeros(4), 0) == pytest.approx(bound)
    controller.update(0.0, torch.full((4,), 1e-31))  # and nothing has wound up behind the bound
    assert controller.threshold(torch.zeros(4), 0) == pytest.approx(1e30 * math.exp(-50))


def test_it_falls_only_while_a_positive_score_lies_at_or_below_it() -> None:
    for lowest, moves in ((1.0, True), (1.001, False), (0.0, False)):
        controller = LogIntegral(0.5)
        controller.value = 1.0
        controller.update(0.0, torch.tensor([lowest, 2.0]))
        assert (controller.value < 1.0) == moves


def test_a_start_of_zeros_waits_for_a_scale_however_rows_were_drawn() -> None:
    controller = LogIntegral(0.1)
    for _ in range(3):
        controller.threshold(torch.zeros(8), 1)
        controller.update(0.25, torch.zeros(8))  # of 8 equal rows, two were drawn
    scores = torch.arange(1.0, 101.0)
    assert controller.threshold(scores, 10) == pytest.approx(90.1)


@pytest.mark.parametrize("shift", [0, -3], ids=["positive", "mixed"])
def test_scores_of_any_scale_and_kind_can_steer(shift: int) -> None:
    stream = (gamma2(0, 60) * 16).round() / 16 + shift
    plain = follow(LogIntegral(0.25), stream)
    for scale in (2.0**-20, 2.0**20):
        assert follow(LogIntegral(0.25), stream * scale) == plain
    for dtype in (torch.int64, torch.bfloat16, torch.float16):
        kept = stream * 16 if dtype == torch.int64 else stream
        found = follow(LogIntegral(0.25), kept.to(dtype))
        assert np.mean(found) == pytest.approx(0.25, abs=0.03)


# --- a gain from the density -----------------------------------------------------------------


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


def test_the_automatic_gain_scatters_7_percent_more_than_chance() -> None:
    found = follow(automatic(0.3), exponential(2000))[100:]
    expected = math.sqrt(1 + 0.25 / 1.75) * math.sqrt(0.3 * 0.7 / BATCH)
    assert np.std(found) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(("width", "shift"), [(0.01, 0.0), (1.0, 0.0), (0.1, -2.0)])
def test_the_automatic_gain_holds_scores_that_0_point_5_cannot(width: float, shift: float) -> None:
    random = torch.Generator().manual_seed(0)
    stream = torch.randn(300, BATCH, generator=random, dtype=torch.float64)
    stream = (width * stream).exp() if shift == 0 else width * stream + shift
    found = follow(automatic(0.2), stream)[50:]
    floor = math.sqrt(0.2 * 0.8 / BATCH)
    assert np.std(found) < 1.2 * floor
    assert np.mean(found) == pytest.approx(0.2, abs=0.005)
    if width == 0.01 and shift == 0:
        assert np.std(follow(LogIntegral(0.2), stream)[50:]) > 3 * floor


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


def test_the_automatic_gain_is_measured_anew_where_the_sign_changes() -> None:
    random = torch.Generator().manual_seed(0)
    mixed = torch.randn(1, BATCH, generator=random, dtype=torch.float64)
    changed, other = automatic(0.2), automatic(0.2)
    follow(changed, (0.01 * gamma2(0, 20)).exp())  # narrow, so a large density
    for controller in (changed, other):
        follow(controller, mixed)
    assert changed.gain == other.gain


def test_the_automatic_gain_can_be_replaced_by_hand_and_given_back() -> None:
    stream = gamma2(0, 30)
    controller = automatic(0.3)
    follow(controller, stream)
    measured = controller.gain
    assert measured != 0.5
    for refused in ("car", 0.0, math.nan):
        with pytest.raises(ValueError, match=f"gain is {refused!r}, but it must be "):
            controller.gain = refused
        assert (controller.gain, controller.auto) == (measured, True)
    controller.gain = 0.125
    assert (controller.gain, controller.auto) == (0.125, False)
    follow(controller, stream)
    assert controller.gain == 0.125
    controller.gain = "auto"
    assert controller.gain == measured
