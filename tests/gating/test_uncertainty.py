"""Scores of the class outputs against loops in Python numbers, and gradients against autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from astkit.gating import Score
from astkit.gating.scores import confidence, entropy, gradient_norm, margin
from astkit.names import resolve

ALL = ["entropy", "margin", "confidence", "gradient_norm"]
UNUSED = torch.zeros(0)  # no input is looked at
logits = st.integers(1, 6).flatmap(
    lambda rows: st.integers(2, 7).flatmap(
        lambda classes: st.lists(
            st.lists(st.floats(-80, 80), min_size=classes, max_size=classes),
            min_size=rows,
            max_size=rows,
        )
    )
)


def slow_softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value - max(row)) for value in row]
    return [power / sum(powers) for power in powers]


def slow_entropy(row: list[float]) -> float:
    return -sum(p * math.log(p) for p in slow_softmax(row) if p > 0)


def slow_margin(row: list[float]) -> float:
    first, second = sorted(slow_softmax(row), reverse=True)[:2]
    return 1 - (first - second)


def slow_confidence(row: list[float]) -> float:
    return 1 - max(slow_softmax(row))


@pytest.mark.parametrize(
    ("score", "slow"),
    [(entropy, slow_entropy), (margin, slow_margin), (confidence, slow_confidence)],
)
@settings(deadline=None, max_examples=30)
@given(rows=logits)
def test_uncertainties_equal_a_loop_over_rows(
    score: Score, slow: Callable[[list[float]], float], rows: list[list[float]]
) -> None:
    outputs = torch.tensor(rows, dtype=torch.float64)
    scores = score(outputs, torch.zeros(len(rows), dtype=torch.int64), UNUSED)
    assert scores.dtype == torch.float64
    assert scores.tolist() == pytest.approx([slow(row) for row in rows], abs=1e-6)
    assert bool((scores >= 0).all())


def autograd_norm(row: Tensor, target: Tensor) -> float:
    """Norm of the gradient of one row's cross-entropy with respect to its logits."""
    row = row.clone().requires_grad_()
    F.cross_entropy(row[None], target[None]).backward()
    return float(row.grad.norm())


@settings(deadline=None, max_examples=30)
@given(rows=logits, seed=st.integers(0, 2**32 - 1))
def test_the_gradient_norm_is_autograds_for_labels_and_for_shares(
    rows: list[list[float]], seed: int
) -> None:
    outputs = torch.tensor(rows, dtype=torch.float64)
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(outputs.shape[1], (len(rows),), generator=random)
    shares = torch.rand(outputs.shape, generator=random, dtype=torch.float64)  # do not sum to 1
    for targets in (labels, shares, shares / shares.sum(1, keepdim=True)):
        scores = gradient_norm(outputs, targets, UNUSED)
        expected = [autograd_norm(*pair) for pair in zip(outputs, targets, strict=True)]
        assert scores.tolist() == pytest.approx(expected, abs=1e-6)


def test_scores_of_an_even_and_of_a_sure_guess() -> None:
    for classes in (2, 3, 10, 1000):
        outputs, targets = torch.full((3, classes), 4.2).double(), torch.zeros(3).long()
        known = {
            "entropy": math.log(classes),
            "margin": 1.0,
            "confidence": 1 - 1 / classes,
            "gradient_norm": math.sqrt(1 - 1 / classes),
        }
        for name in ALL:
            scores = resolve("score", name)(outputs, targets, UNUSED)
            assert scores.tolist() == pytest.approx([known[name]] * 3, abs=1e-12)
    for dtype, size in product([torch.float32, torch.float64], [1e4, 1e30]):  # however large
        outputs = torch.tensor([[size, 0.0, -size], [-size, 0.0, size]], dtype=dtype)
        for name in ALL:
            sure = resolve("score", name)(outputs, torch.tensor([0, 2]), UNUSED)
            assert sure.tolist() == [0, 0]
        wrong = gradient_norm(outputs, torch.tensor([1, 0]), UNUSED)
        assert wrong.tolist() == pytest.approx([math.sqrt(2)] * 2)


def test_a_class_that_is_masked_out_does_not_count() -> None:
    outputs = torch.tensor([[1.0, -math.inf, 0.5, 0.2]])
    without = outputs[:, [0, 2, 3]]
    for name in ALL:
        score = resolve("score", name)
        masked = score(outputs, torch.tensor([2]), UNUSED)
        torch.testing.assert_close(masked, score(without, torch.tensor([1]), UNUSED))


def test_a_row_that_is_not_finite_has_no_score_and_does_not_touch_the_others() -> None:
    for name, bad in product(ALL, [math.nan, math.inf]):
        score = resolve("score", name)
        outputs, targets = torch.randn(6, 5), torch.randint(5, (6,))
        expected = score(outputs, targets, UNUSED)
        outputs[2, 3] = bad
        scores = score(outputs, targets, UNUSED)
        keep = torch.arange(6) != 2
        assert scores[keep].equal(expected[keep])
        assert not math.isfinite(scores[2])


def test_half_precision_outputs_are_scored_in_float32_wherever_they_are() -> None:
    for name, dtype in product(ALL, [torch.bfloat16, torch.float16]):
        score = resolve("score", name)
        outputs, targets = (4 * torch.randn(32, 5)).to(dtype), torch.randint(5, (32,))
        scores = score(outputs, targets, UNUSED)
        assert scores.dtype == torch.float32
        exact = score(outputs.double(), targets, UNUSED)
        assert torch.allclose(scores.double(), exact, atol=1e-6, rtol=1e-5)
        whole = score({"logits": outputs}, {"labels": targets}, UNUSED)
        assert whole.equal(scores)


def test_outputs_and_targets_that_are_no_classes_are_refused() -> None:
    shapes = [(4,), (4, 1), (3, 5), (4, 5, 7), ()]
    for name, outputs in product(ALL, [*map(torch.zeros, shapes), ("a",), None]):
        sentence = r"model returned (\[.*\]|tuple|NoneType) for a batch of 4 rows.*, such as 'gate'"
        with pytest.raises(ValueError, match=sentence):
            resolve("score", name)(outputs, torch.zeros(4, dtype=torch.int64), UNUSED)
    column, whole = torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 5, dtype=torch.int64)
    for targets in (torch.zeros(4), torch.zeros(4, 3), column, whole):
        with pytest.raises(ValueError, match=r"targets are torch\.\w+ of shape .*, such as 'gate'"):
            gradient_norm(torch.zeros(4, 5), targets, UNUSED)
    for label in (5, -1, -100):
        with pytest.raises(ValueError, match=rf"label {label}, but the model has 5 outputs"):
            gradient_norm(torch.zeros(3, 5), torch.tensor([0, label, 1]), UNUSED)
    with pytest.raises(ValueError, match="targets are negative"):
        gradient_norm(torch.zeros(2, 5), torch.full((2, 5), -1.0), UNUSED)
