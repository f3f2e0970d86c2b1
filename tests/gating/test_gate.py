"""The gate: exact decisions, fair ties, counted fallbacks, no side effects, a resumable state."""

import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from astkit.gating import Gate, LogIntegral, OriginPI, Selection, TopK
from astkit.gating.scores import Loss
from astkit.names import REGISTRIES
from tests.build import refused
from tests.gating.streams import through_json
from tests.gating.syncs import Syncs

CONTROLLERS = ["log_integral", "origin_pi", "top_k"]
HELD = ["log_integral", "origin_pi"]
alone = pytest.mark.filterwarnings("ignore:a batch of 1 row")
equal_scores = pytest.mark.filterwarnings("ignore:all scores of a batch are equal")


def uniform(seed: int, steps: int, batch: int) -> Tensor:
    return torch.rand(steps, batch, generator=torch.Generator().manual_seed(seed))


def never(**options: Any) -> Gate:
    """A gate whose threshold no score below 1 exceeds."""
    return Gate(controller=OriginPI(0.1, kp=0, ki=0, start=1.0), **options)


def as_tuple(chosen: Selection) -> tuple[Any, ...]:
    index, weight = tuple(chosen.index.tolist()), tuple(chosen.weight.tolist())
    active = None if chosen.active is None else chosen.active.tolist()
    return index, weight, chosen.candidates, chosen.measured_rate, chosen.threshold, active


@alone
@equal_scores
@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(HELD),
    st.floats(1e-3, 1),
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
    st.sampled_from([2, 5, 10**6]),  # with few levels most batches hold ties
    st.floats(0, 0.8),
    st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(0, 2**32 - 1)),
)
@example("log_integral", 0.9999999999999999, [3], 10**6, 0.0, (0, 1, 0))
def test_every_decision_follows_the_rules(controller, target, batches, levels, share, rest):
    """Above the threshold, ties up to the quota, fallback; as if no row were without a score."""
    fallback, min_active, seed = rest
    min_active = min(min_active, fallback or min_active)
    options = {"fallback": fallback, "min_active": min_active, "seed": seed}
    gate, clean = (Gate(target, controller=controller, **options) for _ in range(2))
    generator, carry = torch.Generator().manual_seed(seed), 0.0
    active = added = lost = 0
    for size in batches:
        scores = torch.randint(levels, (size,), generator=generator) / levels
        bad = torch.rand(size, generator=generator) < share
        bad[0] = False
        kinds = torch.tensor([math.nan, math.inf, -math.inf])
        scores[bad] = kinds[torch.randint(3, (int(bad.sum()),), generator=generator)]
        finite = (~bad).nonzero().flatten()
        usable = scores[finite].tolist()
        quota = min(len(usable), int(target * len(usable) + carry + 1e-9))
        carry += target * len(usable) - quota
        chosen, expected = gate.select(scores), clean.select(scores[finite])
        assert chosen.threshold is not None
        kept = slice(None) if chosen.active is None else chosen.active
        decided = set(chosen.index[kept].tolist())
        # compared as tensors: a threshold may differ from a score by less than float32 can hold
        above = set(finite[scores[finite] > chosen.threshold].tolist())
        tied = int((scores[finite] == chosen.threshold).sum())
        if len(set(usable)) == 1 < len(usable):  # choosing by score would mean nothing
            assert len(decided) == quota
        else:
            assert above <= decided
            assert len(decided) == len(above) + max(0, min(tied, quota - len(above)))
        missing = min(fallback, len(usable)) - len(decided) if len(decided) < min_active else 0
        assert len(chosen) == len(decided) + max(0, missing)
        assert chosen.index.tolist() == sorted(set(chosen.index.tolist()) & set(finite.tolist()))
        assert chosen.index.equal(finite[expected.index])
        assert as_tuple(chosen)[3:] == as_tuple(expected)[3:]
        assert (chosen.candidates, chosen.measured_rate) == (size, len(decided) / len(usable))
        assert (chosen.active is not None) == (missing > 0)
        assert chosen.weight.tolist() == [1.0] * len(chosen)
        active, added, lost = active + len(decided), added + max(0, missing), lost + int(bad.sum())
    assert (gate.active, gate.fallback_rows, gate.nonfinite) == (active, added, lost)
    assert (gate.seen, gate.measured_rate) == (sum(batches) - lost, active / gate.seen)
    assert {**gate.state_dict(), "nonfinite": 0} == clean.state_dict()


@equal_scores
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_a_target_of_1_selects_everything_until_it_is_lowered(controller: str) -> None:
    gate = Gate(1.0, controller=controller)
    for scores in (*uniform(0, 5, 8), torch.zeros(8), -torch.ones(8)):
        chosen = gate.select(scores)
        assert (chosen.index.tolist(), chosen.measured_rate) == (list(range(8)), 1)
    if controller != "origin_pi":  # its gains are too small to get anywhere in 100 batches
        gate.rate = 0.25
        found = [gate.select(scores).measured_rate for scores in uniform(1, 100, 64)]
        assert np.mean(found) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("controller", "value", "target"),
    [("log_integral", 0.0, 0.1), ("log_integral", 0.3, 0.9), ("origin_pi", 5.0, 1 / 3)],
)
def test_equal_scores_warn_once_and_keep_the_target_rate(controller, value, target):
    gate = Gate(target, controller=controller, fallback=0)
    drawn = torch.zeros(10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(300):
            drawn[gate.select(torch.full((10,), value)).index] += 1
    sentences = [str(warning.message) for warning in caught]
    assert len(sentences) == 1
    assert "all scores of a batch are equal" in sentences[0]
    assert "drawn at random" in sentences[0]
    assert abs(gate.active - target * 3000) < 1
    expected = 300 * target
    assert bool(((drawn - expected).abs() < 5 * math.sqrt(expected)).all())


def test_two_random_rows_are_trained_on_when_none_is_active() -> None:
    gate = never()
    drawn = torch.zeros(8)
    for scores in uniform(0, 400, 8) * 0.9:
        chosen = gate.select(scores)
        assert len(chosen) == 2
        assert len(set(chosen.index.tolist())) == 2
        assert chosen.active is not None
        assert not chosen.active.any()
        assert chosen.measured_rate == 0
        drawn[chosen.index] += 1
    assert (gate.measured_rate, gate.active, gate.seen) == (0.0, 0, 3200)
    assert gate.fallback_rows == 800
    # each row with chance 1/4: 100 times, with a standard deviation of 8.7
    assert bool(((drawn - 100).abs() < 45).all())


@pytest.mark.parametrize("controller", ["log_integral", "top_k"])
@pytest.mark.parametrize(
    ("rate", "rows", "fallback", "needed"),
    [(0.25, 1, 2, 8), (0.25, 2, 2, 8), (0.25, 3, 2, 8), (0.1, 7, 2, 20), (0.08, 12, 4, 50)],
)
def test_batches_too_small_for_the_fallback_warn_once_and_both_shares_are_told(
    controller: str, rate: float, rows: int, fallback: int, needed: int
) -> None:
    gate = Gate(rate, controller=controller, fallback=fallback)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [gate.select(scores) for scores in uniform(0, 200, rows)]
    (warning,) = [str(each.message) for each in caught]
    assert warning.startswith(f"a batch of {rows} row")
    needed = needed if controller == "log_integral" else math.ceil(1 / rate)
    assert f"use batches of {needed} rows or more, or fallback=0" in warning
    trained = sum(int((chosen.weight > 0).sum()) for chosen in found) / (200 * rows)
    assert gate.trained_share == pytest.approx(trained)
    assert gate.trained_share > gate.measured_rate == pytest.approx(rate, abs=0.06)
    shares = f"{gate.measured_rate:.3g} active, {trained:.3g} trained on"
    assert repr(gate) == f"Gate(rate={rate:g}): {shares}, of {200 * rows:,} rows"


def test_batches_large_enough_for_the_fallback_or_without_one_do_not_warn() -> None:
    best: dict[str, Any] = {"controller": "top_k"}
    cases = [(0.25, 8, {}), (1.0, 1, {}), (0.1, 1, {"fallback": 0}), (0.25, 4, best)]
    for rate, rows, options in cases:
        gate = Gate(rate, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for scores in uniform(0, 40, rows):
                gate.select(scores)
    steered = Gate(0.25)
    steered.steer("rate", 0.1)
    with pytest.warns(UserWarning, match="a batch of 8 rows has 0.8 active rows"):
        steered.select(uniform(0, 1, 8)[0])
    assert repr(Gate(0.25)) == "Gate(rate=0.25)"


@equal_scores
def test_one_broken_image_does_not_cost_the_batch() -> None:
    x, y = torch.rand(16, 3, 4, 4), torch.randint(5, (16,))
    x[7] = math.nan
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    for score in REGISTRIES["score"]:
        for controller in ("log_integral", "top_k"):
            gate = Gate(0.5, score, controller)
            chosen = gate(model, x, y, torch.arange(16))
            assert 7 not in chosen.index.tolist(), score
            assert 5 < float(chosen.weight.sum()) < 11
            assert (gate.nonfinite, gate.seen) == (1, 15)


def test_scores_that_cannot_be_selected_from_are_refused() -> None:
    gate = Gate()
    gate.select(torch.rand(3))
    diverged = r"all 6 scores of batch 1 are NaN or infinite: the model has diverged \(lower the"
    shape = r"scores has shape \[.*\]: give one score a row"
    cases = [(torch.full((6,), bad), diverged) for bad in (math.nan, math.inf, -math.inf)]
    cases += [(torch.zeros(each), shape) for each in ((), (0,), (4, 1), (2, 3))]
    for scores, sentence in cases:
        none = torch.zeros(scores.shape, dtype=torch.bool)
        refused(
            (partial(gate.select, scores), sentence), (partial(gate.settle, scores, none), sentence)
        )
    for score, found in (
        (lambda o, t, i: o[:3, 0], r"shape \[3\]"),
        (lambda o, t, i: torch.cat([o[:, 0], o[:, 0]]), r"shape \[16\]"),
        (lambda o, t, i: [1.0] * 8, "type list"),
    ):
        call = partial(Gate(0.5, score), nn.Linear(3, 2), torch.randn(8, 3), torch.zeros(8).long())
        refused((call, f"scores has {found} for a batch of 8: give one score a row"))


EVERY = sorted(REGISTRIES["controller"])


def test_impossible_arguments_are_refused_and_leave_the_rate() -> None:
    gate = Gate(0.25)
    for rate in (0, -1, 1.5, math.nan):
        sentence = f"rate is {rate}: give a share above 0 and at most 1"
        refused(
            (partial(Gate, rate, controller=TopK(0.5)), sentence),
            (partial(setattr, gate, "rate", rate), sentence),
        )
        assert gate.rate == gate.controller.rate == 0.25
    for name, values, words in (
        ("fallback", (-1, 1.5, "2", math.inf), "fallback is .*a whole number of 0"),
        ("min_active", (-1, 2.5), "min_active is .*a whole number of 0"),
        ("min_active", (5,), "min_active is .*but the fallback trains on 2 rows: give a fallback"),
        ("controller", (None, LogIntegral), "controller is .*give a name, such as 'log"),
        ("controller", ("pid",), "unknown controller 'pid': choose one of log_integral"),
        ("score", (None, 0.5, Loss), "score is .*give a name, such as 'loss'"),
    ):
        refused(*((partial(Gate, **{name: value}), f"^{words}") for value in values))
    assert Gate(min_active=2, fallback=0).min_active == 2  # no row is added


@pytest.mark.parametrize("name", ["top_k", "quantile_ema"])
def test_a_state_of_before_a_steering_brings_its_controller_back(name: str) -> None:
    gate = Gate(0.25, controller=LogIntegral(0.25, gain=0.7))
    gate.select(uniform(0, 1, 32)[0])
    state = gate.state_dict()
    gate.steer("controller", name)
    steered = gate.state_dict()
    gate.load_state_dict(state)
    assert gate.state_dict() == state
    assert isinstance(gate.controller, LogIntegral)
    gate.load_state_dict(steered)
    assert gate.state_dict() == steered


@equal_scores
@pytest.mark.parametrize("steps", [0, 25])
@pytest.mark.parametrize("controller", EVERY)
def test_a_gate_continues_bit_for_bit_from_its_saved_state(controller: str, steps: int) -> None:
    # few levels, NaN and small batches, so that ties, carries and fallbacks all take part
    generator = torch.Generator().manual_seed(0)
    stream = torch.randint(9, (60, 5), generator=generator) / 9
    stream[4::7, 1] = math.nan
    stream[30, 2:] = 0
    gate, resumed = (Gate(rate, controller=controller) for rate in (0.13, 0.9))
    gate.seed = 11
    for scores in stream[:steps]:
        gate.select(scores)
    resumed.load_state_dict(through_json(gate.state_dict()))
    for scores in stream[steps:]:
        assert as_tuple(resumed.select(scores)) == as_tuple(gate.select(scores))
    assert resumed.state_dict() == gate.state_dict()
    assert gate.nonfinite == 8


@alone
@settings(deadline=None, max_examples=30)
@given(
    st.floats(1e-3, 1),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(0, 5),
    st.sampled_from([2, 10**6]),
    st.integers(0, 2**32 - 1),
)
def test_top_k_takes_the_highest_finite_scores(target, sizes, fallback, levels, seed):
    """Of equal scores the first rows, and never a whole row away from what was wanted so far."""
    gate, carry, generator = Gate(target, controller="top_k", fallback=fallback), 0.0, None
    generator = torch.Generator().manual_seed(seed)
    added = lost = 0
    for size in sizes:
        scores = torch.randint(levels, (size,), generator=generator) / levels
        scores[1:][torch.rand(size - 1, generator=generator) < 0.3] = math.nan
        finite = scores.isfinite().nonzero().flatten().tolist()
        ranked = sorted(finite, key=lambda row: -float(scores[row]))
        quota = min(size, int(target * size + carry + 1e-9))
        carry += target * size - quota
        count = min(quota, len(finite)) or min(fallback, len(finite))
        chosen = gate.select(scores)
        assert chosen.index[chosen.weight > 0].tolist() == sorted(ranked[:count])
        assert int(chosen.active.sum()) == min(quota, len(finite))
        added += count if quota == 0 else 0
        lost += size - len(finite)
        assert abs(float(gate.carry) - carry) < 1e-6
    assert (gate.fallback_rows, gate.nonfinite, gate.seen) == (added, lost, sum(sizes) - lost)


class High(LogIntegral):
    def threshold(self, scores: Tensor, quota: int) -> float:
        self.value = 9.0
        return self.value


@pytest.mark.parametrize("controller", [High(0.01), "top_k"])
def test_a_process_that_selects_no_row_takes_one_with_a_finite_score(controller, monkeypatch):
    monkeypatch.setattr("astkit.distributed.world", lambda: 2)
    gate = Gate(0.01, controller=controller, fallback=0)
    chosen = gate.select(torch.tensor([math.nan, 2.0, 1.0]))
    assert (chosen.index.tolist(), chosen.weight.tolist()) == ([1], [0.0])


SYNC_FREE = ["loss", "contrast", "confidence", "entropy", "margin"]
READERS = ("item", "__bool__", "__float__", "__int__", "__index__", "tolist", "nonzero", "cpu")


@pytest.mark.parametrize("score", SYNC_FREE)
def test_steps_with_top_k_read_nothing(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tensor was read on the host")

    gate, model = Gate(0.25, score, "top_k"), nn.Linear(6, 4)
    x, y = torch.randn(48, 6), torch.randint(4, (48,))
    choices = [gate(model, x, y)]  # the first pass shows whether the model changes its inputs
    with monkeypatch.context() as context, Syncs() as syncs:
        for name in READERS:
            context.setattr(torch.Tensor, name, refuse)
        for _ in range(9):
            choices.append(gate(model, x, y))
            choices[-1].mean(choices[-1].take(y)).isfinite()
    assert syncs.names == []
    together = torch.stack([chosen.measured_rate for chosen in choices])  # all rates in one reading
    assert together.mean().item() == pytest.approx(gate.measured_rate) == 0.25


def test_other_controllers_copy_the_scores_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Tensor] = []
    monkeypatch.setattr(Tensor, "cpu", lambda self: copies.append(self) or self)
    model, gate = nn.Linear(6, 4), Gate(0.25)
    for _ in range(5):
        gate(model, torch.randn(48, 6), torch.randint(4, (48,)))
    assert len(copies) == 5


def test_arguments_in_another_order_are_one_sentence():
    model, x, y = nn.Linear(4, 2), torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)
    for wrong in ((x, model, y), (y, x, model), (None, x, y), (lambda x: x, x, y)):
        with pytest.raises(ValueError, match=r"model is a \w+: call .* as in policy\(model, x, y"):
            Gate(0.5)(*wrong)
    with pytest.raises(ValueError, match=r"(?s)^rate is tensor.{1,60}: give a share") as caught:
        Gate(x, model, y)  # what is to be called, built
    assert len(str(caught.value)) < 130
