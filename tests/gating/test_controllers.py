"""What all controllers have in common: rates, gains, decisions, signs, state; and top-k."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.gating import (
    LogIntegral,
    OriginPI,
    QuantileEMA,
    TopK,
)
from tests.gating.streams import BATCH, follow, gamma2, through_json

KINDS: list[Any] = [LogIntegral, OriginPI, QuantileEMA, TopK]
TRACKING: list[Any] = [LogIntegral, QuantileEMA]  # start at the batch's quantile


def automatic(target: float) -> LogIntegral:
    return LogIntegral(target, gain="auto")


# --- rates and gains -------------------------------------------------------------------------


POSITIVE = [(LogIntegral, "gain")]
NOT_NEGATIVE = [(OriginPI, "kp"), (OriginPI, "ki")]
SHARES = [(OriginPI, "alpha"), (QuantileEMA, "alpha"), *((kind, "target_rate") for kind in KINDS)]


def test_a_rate_or_a_gain_is_checked_at_once_and_while_running() -> None:
    for kind, name in POSITIVE + NOT_NEGATIVE + SHARES:
        bad = [-1.0, -1e-9, math.nan, math.inf]
        bad += [0.0] if (kind, name) not in NOT_NEGATIVE else []
        bad += [1.001] if (kind, name) in SHARES else []
        assert name in ("target_rate", *kind.gains)
        controller = kind(0.25)
        good = getattr(controller, name)
        for value in bad:
            with pytest.raises(ValueError, match=f"{name} is {value}, but "):
                kind(**{"target_rate": 0.25, name: value})
            with pytest.raises(ValueError, match=f"{name} is {value}, but "):
                setattr(controller, name, value)
            assert getattr(controller, name) == good
        for value in [1, 0.5] + [0] * ((kind, name) in NOT_NEGATIVE):
            setattr(controller, name, value)
            assert getattr(controller, name) == value
            assert getattr(kind(0.25), name) == good  # each has its own


@pytest.mark.parametrize("kind", KINDS)
def test_changing_a_gain_or_the_target_moves_no_threshold_and_is_saved(kind: Any) -> None:
    stream = gamma2(1, 30) / 8
    controller, resumed = kind(0.2), kind(0.2)
    follow(controller, stream)
    before = controller.threshold(stream[0], 9)
    for name in controller.gains:
        setattr(controller, name, getattr(controller, name) / 2)
        assert controller.threshold(stream[0], 9) == before
    controller.target_rate = 0.4
    assert controller.threshold(stream[0], 9) == before
    resumed.load_state_dict(through_json(controller.state_dict()))
    for name in ("target_rate", *kind.gains):
        assert getattr(resumed, name) == getattr(controller, name)
        assert getattr(resumed, name) != getattr(kind(0.2), name)


# --- decisions -------------------------------------------------------------------------------


def test_top_k_alone_needs_the_batch_before_it_decides() -> None:
    assert [kind for kind in KINDS if not kind.held] == [TopK]


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.data())
def test_top_k_is_the_score_of_the_last_wanted_row(scores: list[int], data: st.DataObject) -> None:
    quota = data.draw(st.integers(0, len(scores)))
    threshold = TopK(0.5).threshold(torch.tensor(scores, dtype=torch.float32), quota)
    assert threshold == (sorted(scores, reverse=True)[quota - 1] if quota else math.inf)


# --- signs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "target"), [*zip(TRACKING, [0.1, 0.4], strict=True)])
def test_mixed_scores_hold_the_rate(kind: Any, target: float) -> None:
    # on scores that are never negative the tests of each do this
    random = torch.Generator().manual_seed(0)
    stream = torch.randn(400, BATCH, generator=random) * 3 - 1
    found = np.array(follow(kind(target), stream))
    assert found.mean() == pytest.approx(target, abs=0.005)
    floor = math.sqrt(target * (1 - target) / BATCH)
    assert math.sqrt(((found - target) ** 2).mean()) <= 1.25 * floor


@pytest.mark.parametrize(
    ("kind", "target"), [*zip([*TRACKING, automatic], [0.1, 0.1, 0.5], strict=True)]
)
def test_the_rate_is_held_when_scores_turn_negative_later(kind: Any, target: float) -> None:
    random = torch.Generator().manual_seed(0)
    mixed = torch.randn(300, 128, generator=random, dtype=torch.float64) - 0.5
    controller = kind(target)
    follow(controller, gamma2(0, 20))
    before = controller.threshold(mixed[0], 64)
    assert not controller.additive
    assert controller.threshold(mixed[0], 64) == before  # kept: the decision is not delayed
    found = follow(controller, mixed)
    assert controller.additive
    assert np.mean(found[100:]) == pytest.approx(target, abs=0.01)


def test_the_first_negative_score_gives_the_spread() -> None:
    scores = torch.tensor([-1.0, 1.0, 2.0, 6.0])  # mean 2, mean absolute deviation 2
    controller = LogIntegral(0.25, gain=0.5)
    assert controller.threshold(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), 0) == 4
    controller.threshold(scores, 0)
    controller.update(0.5, scores)
    assert controller.value == 4 + 0.5 * 2 * 0.25


# --- zeros -----------------------------------------------------------------------------------


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


# --- state -----------------------------------------------------------------------------------

NEGATIVE_AT = {"never": 40, "first": 0, "later": 10}  # the batch from which scores are negative


@pytest.mark.parametrize("kind", [*KINDS, automatic])
@pytest.mark.parametrize("negative", NEGATIVE_AT)
def test_a_controller_continues_from_its_saved_state(kind: Any, negative: str) -> None:
    stream = gamma2(3, 40) / 4
    stream[NEGATIVE_AT[negative] :] -= 0.5
    for steps in (0, 1, 17):
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


def test_a_state_that_lacks_a_number_or_holds_a_wrong_rate_is_refused() -> None:
    for kind in KINDS:
        whole = kind(0.2).state_dict()
        for name in whole:
            with pytest.raises(KeyError, match=name):
                kind(0.2).load_state_dict({key: whole[key] for key in whole if key != name})
        with pytest.raises(ValueError, match="target_rate is 7"):
            kind(0.2).load_state_dict({**whole, "target_rate": 7})
