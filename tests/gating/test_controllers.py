"""What all controllers have in common: rates, gains, decisions, state; and top-k."""

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

from astkit.gating import (
    Controller,
    Gate,
    LogIntegral,
    OriginPI,
    OriginStochastic,
    QuantileEMA,
    TopK,
    VelocityPI,
)
from tests.gating.streams import follow, gamma2, through_json

KINDS: list[Any] = [LogIntegral, OriginPI, OriginStochastic, VelocityPI, QuantileEMA, TopK]
TRACKING = [LogIntegral, VelocityPI, QuantileEMA]  # those that start at the first batch's quantile


def automatic(target: float) -> LogIntegral:
    return LogIntegral(target, gain="auto")


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


@pytest.mark.parametrize("kind", TRACKING)
def test_an_update_before_the_first_threshold_is_refused(kind: Any) -> None:
    controller = kind(0.1)
    before = controller.state_dict()
    with pytest.raises(RuntimeError, match="ask for a threshold first"):
        controller.update(0.5, torch.ones(4))
    assert controller.state_dict() == before


# --- gains -----------------------------------------------------------------------------------

POSITIVE = [(LogIntegral, "gain"), (VelocityPI, "ki"), (OriginStochastic, "temperature")]
NOT_NEGATIVE = [(OriginPI, "kp"), (OriginPI, "ki"), (VelocityPI, "kp"), (VelocityPI, "kii")]
SHARES = [(OriginPI, "alpha"), (QuantileEMA, "alpha")]


@pytest.mark.parametrize(("kind", "name"), POSITIVE + NOT_NEGATIVE + SHARES)
def test_a_gain_is_checked_at_once_and_while_running(kind: Any, name: str) -> None:
    bad = [-1.0, -1e-9, math.nan, math.inf]
    bad += [0.0] if (kind, name) not in NOT_NEGATIVE else []
    bad += [1.001] if (kind, name) in SHARES else []
    assert name in kind.gains
    controller = kind(0.25)
    good = getattr(controller, name)
    for value in bad:
        with pytest.raises(ValueError, match=f"{name} is {value}, but it must be "):
            kind(0.25, **{name: value})
        with pytest.raises(ValueError, match=f"{name} is {value}, but it must be "):
            setattr(controller, name, value)
        assert getattr(controller, name) == good
    for value in [1, 0.5] + [0] * ((kind, name) in NOT_NEGATIVE):
        setattr(controller, name, value)
        assert getattr(controller, name) == value
        assert getattr(kind(0.25), name) == good  # each has its own


@pytest.mark.parametrize("kind", KINDS)
def test_turning_a_gain_or_the_target_moves_no_threshold_by_itself(kind: Any) -> None:
    stream = gamma2(1, 30) / 8
    controller = kind(0.2)
    follow(controller, stream)
    before = controller.threshold(stream[0], 9)
    for name in controller.gains:
        setattr(controller, name, getattr(controller, name) / 2)
        assert controller.threshold(stream[0], 9) == before
    controller.target_rate = 0.4
    assert controller.threshold(stream[0], 9) == before


@pytest.mark.parametrize("kind", KINDS)
def test_turned_gains_are_part_of_the_state(kind: Any) -> None:
    controller, resumed = kind(0.2), kind(0.2)
    for name in controller.gains:
        setattr(controller, name, getattr(controller, name) * 0.7)
    resumed.load_state_dict(through_json(controller.state_dict()))
    assert [getattr(resumed, name) for name in kind.gains] == [
        getattr(kind(0.2), name) * 0.7 for name in kind.gains
    ]


class Odd(Controller):
    """Rows with an odd score, whatever the threshold; keeps the numbers that it drew."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.drawn: list[Tensor] = []

    def threshold(self, scores: Tensor, quota: int) -> float:
        return 2.0

    def decide(self, scores: Tensor, threshold: float, draw: Callable[[str], Tensor]) -> Tensor:
        self.drawn += [draw("this"), draw("that")]
        return scores % 2 == 1

    def update(self, rate: float, scores: Tensor) -> None:
        self.learned = rate


def test_a_controller_may_decide_itself() -> None:
    gate = Gate(controller=Odd())
    chosen = gate.select(torch.tensor([1.0, 2.0, math.nan, 3.0, 8.0]))
    assert chosen.index.tolist() == [0, 3]
    assert (chosen.rate, chosen.threshold) == (0.5, 2.0)
    assert gate.controller.learned == 0.5  # type: ignore[attr-defined]
    # equal scores, too, are its own affair
    assert gate.select(torch.ones(4)).index.tolist() == [0, 1, 2, 3]


def test_its_draws_are_uniform_and_differ_by_purpose_batch_and_seed_alone() -> None:
    gates = [Gate(controller=Odd(), seed=seed) for seed in (0, 0, 1)]
    before = torch.get_rng_state()
    for gate in gates:
        gate.select(torch.ones(1000))
        gate.select(torch.ones(1000))
    assert torch.get_rng_state().equal(before)
    first, same, other = ([d.tolist() for d in g.controller.drawn] for g in gates)  # type: ignore[attr-defined]
    assert first == same
    every = [*first, *other]
    for i, numbers in enumerate(every):
        assert 0 <= min(numbers) < 0.01 < 0.99 < max(numbers) < 1
        for earlier in every[:i]:
            assert abs(np.corrcoef(numbers, earlier)[0, 1]) < 0.15


def test_a_controller_that_needs_the_batch_refuses_single_rows() -> None:
    for kind in (TopK, OriginStochastic):
        with pytest.raises(ValueError, match=f"{kind.__name__} needs a whole batch of scores"):
            Gate(controller=kind(0.1)).admits(torch.tensor(1.0))
        assert Gate(controller=kind(1.0)).admits(torch.tensor(1.0))


# --- top-k -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.data())
def test_top_k_is_the_score_of_the_last_wanted_row(scores: list[int], data: st.DataObject) -> None:
    quota = data.draw(st.integers(1, len(scores)))
    threshold = TopK(0.5).threshold(torch.tensor(scores, dtype=torch.float32), quota)
    assert threshold == sorted(scores, reverse=True)[quota - 1]


def test_top_k_wants_a_whole_batch_and_may_want_none_of_it() -> None:
    assert not TopK.held
    assert not OriginStochastic.held
    assert all(kind.held for kind in (LogIntegral, OriginPI, VelocityPI, QuantileEMA))
    assert TopK(0.1).threshold(torch.rand(4), 0) == math.inf


# --- state -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, automatic])
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


@pytest.mark.parametrize("kind", [*TRACKING, automatic])
def test_scores_of_exactly_zero_do_not_wind_up(kind: Callable[[float], Controller]) -> None:
    # 70 % of the losses are zero, so half of the rows cannot be had; then losses return
    controller = kind(0.5)
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


@pytest.mark.parametrize("kind", [*TRACKING, automatic])
@pytest.mark.parametrize("signed", [False, None])
def test_batches_of_zeros_before_the_first_scores_leave_no_trace(
    kind: Callable[[float], Any], signed: bool | None
) -> None:
    late, prompt = kind(0.2), kind(0.2)
    late.signed = prompt.signed = signed
    for _ in range(50):
        late.threshold(torch.zeros(128), 0)
        late.update(0.2, torch.zeros(128))
    stream = gamma2(0, 20)
    assert follow(late, stream)[:2] == follow(prompt, stream)[:2]
    assert late.threshold(stream[0], 0) == pytest.approx(prompt.threshold(stream[0], 0), rel=0.05)
