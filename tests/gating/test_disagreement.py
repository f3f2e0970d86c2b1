"""Disagreement with an EMA teacher against a second model that is averaged by hand."""

from __future__ import annotations

import copy
import io
import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from astkit.gating import Disagreement, Gate, Scored
from astkit.gating.disagreement import jensen_shannon
from astkit.gating.uncertainty import log_shares


def build(seed: int = 0, width: int = 8) -> nn.Sequential:
    """A float64 model with normalisation, dropout and a layer that is used twice."""
    torch.manual_seed(seed)
    twice = nn.Linear(width, width)
    layers = (nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5))
    return nn.Sequential(*layers, twice, nn.Tanh(), twice, nn.Linear(width, 5)).double()


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(7, 6, generator=random, dtype=torch.float64),
            torch.randint(5, (7,), generator=random),
        )
        for _ in range(count)
    ]


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """One step that moves every parameter and the statistics of the normalisation."""
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad


def slow_divergence(first: list[float], second: list[float]) -> float:
    middle = [(p + q) / 2 for p, q in zip(first, second, strict=True)]

    def apart(shares: list[float]) -> float:
        return sum(p * math.log(p / m) for p, m in zip(shares, middle, strict=True) if p > 0)

    return (apart(first) + apart(second)) / 2


def test_it_is_the_divergence_from_a_model_averaged_by_hand() -> None:
    decay = 0.9
    model, score, teacher = build(), Disagreement(decay=decay), None
    for x, y in batches(8):
        if teacher is None:
            teacher = copy.deepcopy(model)
        with torch.no_grad():
            for own, other in zip(teacher.parameters(), model.parameters(), strict=True):
                own.copy_(decay * own + (1 - decay) * other)
        for own, other in zip(teacher.buffers(), model.buffers(), strict=True):
            own.copy_(other)
        teacher.eval()
        model.eval()
        with torch.no_grad():
            outputs = model(x)
            shares = [made.softmax(1).tolist() for made in (teacher(x), outputs)]
        model.train()
        scores = score.score(Scored(outputs, y, x, None, model))
        expected = [slow_divergence(*pair) for pair in zip(*shares, strict=True)]
        assert scores.tolist() == pytest.approx(expected, abs=1e-12)
        train(model, x, y)
    assert min(expected) > 1e-6  # they did come to disagree
    saved = score.state_dict()["teacher"]
    assert len(saved) == 8  # the layer that is used twice is there once
    for name, weight in teacher.named_parameters():
        torch.testing.assert_close(saved[name], weight.detach(), atol=1e-12, rtol=0)


def test_the_first_call_finds_no_disagreement() -> None:
    model, (x, y) = build(), batches(1)[0]
    assert Gate(score="disagreement").score(model, x, y).tolist() == [0.0] * 7


@pytest.mark.filterwarnings("ignore:all scores of a batch are equal")  # the first ones
def test_the_default_controller_finds_its_scale_after_the_first_call() -> None:
    model, gate, rates = build(), Gate(0.3, "disagreement", fallback=0), []
    for x, y in batches(60):
        rates.append(gate(model, x, y).rate)
        train(model, x, y)
    assert sum(rates[-30:]) / 30 == pytest.approx(0.3, abs=0.1)


def test_the_first_call_scores_0_even_where_averaging_rounds() -> None:
    model = build().float()
    (x, y) = batches(1)[0]
    score = Disagreement(decay=0.3)
    for seed in range(20):  # a new teacher each, and weights that the average may round
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(generator=torch.Generator().manual_seed(seed))
        score.teacher = None
        outputs = 1.001 * model.eval()(x.float()).detach()  # another path through the model
        assert score.score(Scored(outputs, y, x.float(), None, model)).tolist() == [0.0] * 7


# --- the divergence --------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-8, 1e-3, 1.0, 30.0, 1e4]))
def test_the_divergence_is_symmetric_and_lies_between_0_and_ln_2(seed: int, size: float) -> None:
    random = torch.Generator().manual_seed(seed)
    first, second = (size * torch.randn(2, 6, 5, generator=random)).log_softmax(2)
    found = jensen_shannon(first, second)
    assert bool(((found >= 0) & (found <= math.log(2) + 1e-6)).all())
    torch.testing.assert_close(found, jensen_shannon(second, first))
    assert jensen_shannon(first, first).tolist() == [0.0] * 6
    sure = (1e4 * torch.eye(2)).log_softmax(1)
    assert jensen_shannon(sure, sure.flip(0)).tolist() == pytest.approx([math.log(2)] * 2)


def test_a_class_that_is_masked_out_does_not_count() -> None:
    pair, never = torch.randn(2, 6, 4), torch.full((6, 1), -math.inf)
    masked = [torch.cat([each[:, :1], never, each[:, 1:]], 1) for each in pair]
    found, expected = (jensen_shannon(*map(log_shares, two)) for two in (masked, pair))
    torch.testing.assert_close(found, expected)


# --- no side effects, and a state ------------------------------------------------------------


def test_the_teacher_is_a_copy() -> None:
    model, (x, y) = build(), batches(1)[0]
    gate = Gate(score="disagreement")
    gate.score(model, x, y)
    saved = gate.state_dict()["score"]["teacher"]
    before = {name: weight.clone() for name, weight in saved.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    gate.score(model, x, y)
    assert all(weight.equal(before[name]) for name, weight in saved.items())


@pytest.mark.parametrize("steps", [0, 5])
def test_a_gate_with_a_teacher_continues_bit_for_bit_through_a_file(steps: int) -> None:
    whole, file = Gate(0.3, "disagreement", "top_k"), io.BytesIO()
    model, resumed = build(), Gate(0.3, "disagreement", "top_k")
    for number, (x, y) in enumerate(batches(9)):
        if number == steps:
            torch.save(whole.state_dict(), file)
            file.seek(0)
            resumed.load_state_dict(torch.load(file))
        if number >= steps:
            again = resumed.score(model, x, y)
        scores = whole.score(model, x, y)
        assert number < steps or again.equal(scores)
        train(model, x, y)
    assert scores.min() > 0


class Wrapped(nn.Module):
    """What torch.compile returns: a module that holds the original as ``_orig_mod``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model

    def forward(self, x: Tensor) -> Tensor:
        return self._orig_mod(x)


@pytest.mark.parametrize(
    "compiled",
    [Wrapped, pytest.param(partial(torch.compile, backend="eager"), marks=pytest.mark.full)],
)
def test_a_compiled_model_has_the_teacher_of_its_original(compiled: Any) -> None:
    model, (x, y) = build(), batches(1)[0]
    gates, models = [Gate(score="disagreement") for _ in range(2)], (model, compiled(model))
    for _ in range(3):
        found = [gate.score(made, x, y) for gate, made in zip(gates, models, strict=True)]
        torch.testing.assert_close(*found)
        train(model, x, y)
    assert found[0].min() > 0
    assert (
        gates[1].significance.state_dict()["teacher"].keys()
        == dict(model.named_parameters()).keys()
    )


def test_in_half_precision_the_teacher_keeps_weights_of_its_own() -> None:
    """Autocast remembers casts of weights: the model's must not be taken for the teacher's."""
    (x, y), scores = batches(1)[0], {}
    for precise in (True, False):
        model, gate = build().float(), Gate(score="disagreement")
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
                scores[precise] = gate.score(model, x.float(), y)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter *= 1.3
    assert scores[False].min() > 0
    torch.testing.assert_close(scores[False], scores[True], rtol=0.5, atol=1e-3)


# --- what may be given -----------------------------------------------------------------------


def test_without_a_model_it_says_what_to_do() -> None:
    x, y = batches(1)[0]
    with pytest.raises(ValueError, match=r"got no model: score with gate\(model, x, y\)"):
        Disagreement()(build()(x), y, x)


def test_what_a_teacher_cannot_follow_is_refused() -> None:
    for other in (build(width=9), nn.Linear(6, 5).double()):
        gate, (x, y) = Gate(score="disagreement"), batches(1)[0]
        gate.score(build(), x, y)
        with pytest.raises(ValueError, match="give each model its own gate"):
            gate.score(other, x, y)
    for decay in (0.0, 1.0, 1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match=rf"decay is {decay}, but it must lie between"):
            Disagreement(decay=decay)
    with pytest.raises(ValueError, match=r"returned \[7, 1\] for a batch of 7 rows"):
        Gate(score="disagreement").score(nn.Linear(6, 1).double(), *batches(1)[0])
