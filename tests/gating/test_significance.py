"""Scores against plain Python loops in float64, and a sentence where they cannot be."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from astkit.gating import (
    Gate,
    Loss,
    LossAndContrast,
    LossContrastConstant,
    OriginPI,
    RelativeScore,
    Scored,
)

RELATIVE = [LossAndContrast, LossContrastConstant]
Batch = tuple[Tensor, Tensor, Tensor]
seeds = st.integers(0, 2**32 - 1)


def slow_loss(logits: list[float], label: int) -> float:
    top = max(logits)
    return top + math.log(sum(math.exp(logit - top) for logit in logits)) - logits[label]


def slow_std(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def slow_features(outputs: Tensor, targets: Tensor, inputs: Tensor) -> list[tuple[float, float]]:
    rows = zip(outputs.tolist(), targets.tolist(), inputs.flatten(1).tolist(), strict=True)
    return [(slow_loss(logits, label), slow_std(image)) for logits, label, image in rows]


def slow_origin(*batch: Tensor) -> list[float]:
    features = slow_features(*batch)
    means = [sum(column) / len(features) for column in zip(*features, strict=True)]

    def half(value: float, mean: float) -> float:
        return min(max(value / (mean + 1e-6), 0.0), 2.0) / 2

    return [0.7 * half(loss, means[0]) + 0.3 * half(std, means[1]) for loss, std in features]


def slow_older(*batch: Tensor) -> list[float]:
    features = slow_features(*batch)
    most = [max(column) for column in zip(*features, strict=True)]
    return [
        0.5 * loss / (most[0] + 1e-6) + 0.3 * std / (most[1] + 1e-6) + 0.2 for loss, std in features
    ]


def make_batch(
    seed: int, rows: int = 16, channels: int = 3, size: int = 4, dtype: torch.dtype = torch.float64
) -> Batch:
    """Logits for 5 classes, labels, and images of very different contrast, one of them blank."""
    random = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(rows, 5, generator=random, dtype=dtype)
    targets = torch.randint(5, (rows,), generator=random)
    contrast = torch.rand(rows, 1, 1, 1, generator=random, dtype=dtype) * 3
    inputs = torch.randn(rows, channels, size, size, generator=random, dtype=dtype) * contrast
    inputs[0] = 0.25
    return outputs, targets, inputs


@settings(deadline=None, max_examples=25)
@given(
    seeds,
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(2, 5),
    st.sampled_from([0.0, 0.01, 1.0, 20.0]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_origins_rules_equal_a_loop_over_rows(
    seed: int, rows: int, channels: int, size: int, scale: float, dtype: torch.dtype
) -> None:
    outputs, targets, inputs = make_batch(seed, rows, channels, size, dtype)
    batch = scale * outputs, targets, inputs
    # a loss is a difference of logits: in float32 a small one has the error of their rounding
    mean = sum(loss for loss, _ in slow_features(*batch)) / rows
    assume(dtype == torch.float64 or mean > 0.01)
    rounding = torch.finfo(dtype).eps * float(batch[0].abs().max()) / (mean + 1e-6)
    for score, slow in ((LossAndContrast(), slow_origin), (LossContrastConstant(), slow_older)):
        scores = score(*batch)
        assert (scores.shape, scores.dtype) == ((rows,), dtype)
        tolerance = rounding + (1e-5 if dtype == torch.float32 else 1e-7)
        assert scores.tolist() == pytest.approx(slow(*batch), abs=tolerance)
    assert bool(((LossAndContrast()(*batch) >= 0) & (LossAndContrast()(*batch) <= 1)).all())


def test_the_loss_is_that_of_each_row() -> None:
    batch = make_batch(5)
    losses = Loss()(*batch)
    assert losses.dtype == torch.float64
    assert losses.tolist() == pytest.approx([loss for loss, _ in slow_features(*batch)])
    half = batch[0].bfloat16(), batch[1], batch[2].bfloat16()
    assert LossAndContrast()(*half).dtype == torch.float32


# --- why the older rule is kept as a warning -------------------------------------------------


def learned_batch(seed: int, rows: int = 64) -> Batch:
    """Rows that are learned but for the last four: loss about 0 on images of any contrast."""
    _, targets, inputs = make_batch(seed, rows, dtype=torch.float32)
    outputs = 30.0 * F.one_hot(targets, 5)
    outputs[-4:] = outputs[-4:].roll(1, 1)
    return outputs, targets, inputs


def test_a_threshold_below_the_older_rules_constant_gates_nothing() -> None:
    batch = learned_batch(0)
    scores = LossContrastConstant()(*batch)
    assert float(scores[0]) == pytest.approx(0.2, abs=1e-6)  # nothing left to learn, a blank image
    assert float(scores.min()) >= 0.2 - 1e-6
    assert float(LossAndContrast()(*batch)[0]) < 1e-6
    # 0.1 is where the origin's controller stops at the low end
    older, newer = (
        Gate(0.1, score, OriginPI(0.1, start=0.1))
        for score in ("loss_contrast_constant", "loss_and_contrast")
    )
    for seed in range(20):
        batch = learned_batch(seed)
        assert len(older.select(older.significance(*batch))) == 64
        newer.select(newer.significance(*batch))
    assert older.rate == 1
    assert newer.rate < 0.9


def test_one_outlier_presses_the_older_scores_together() -> None:
    _, targets, inputs = make_batch(0, rows=128, dtype=torch.float32)
    losses = torch.linspace(0.5, 1.5, 128)
    losses[0] = 100.0
    outputs, inputs = losses[:, None], inputs[1:2].expand(128, -1, -1, -1)  # equal contrast

    def spread(score: RelativeScore) -> float:
        others = score(outputs, targets, inputs)[1:]
        return float(others.max() - others.min())

    def first(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0]

    assert spread(LossContrastConstant(first)) < 0.01
    assert spread(LossAndContrast(first)) > 0.15


# --- references ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RELATIVE)
@settings(deadline=None, max_examples=10)
@given(seed=seeds, rows=st.integers(1, 15))
def test_features_are_each_rows_own_and_references_can_run(
    kind: type[LossAndContrast], seed: int, rows: int
) -> None:
    score, batch = kind(), make_batch(seed, rows)
    features = score.features(Scored(*batch))
    flat = [value for pair in slow_features(*batch) for value in pair]
    assert features.flatten().tolist() == pytest.approx(flat, abs=1e-12)
    last = score.features(Scored(*(part[-1:] for part in batch)))
    torch.testing.assert_close(last, features[-1:])
    # a running reference is that of a batch of the rows so far
    running = torch.full((2,), 1e9 if kind is LossAndContrast else 0.0, dtype=torch.float64)
    for count in range(rows):
        running = score.running(running, count, features[count : count + 1])
        torch.testing.assert_close(running, score.reference(features[: count + 1]))


# --- what is not finite, or no image ---------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bad"), [(RELATIVE[0], math.nan), (RELATIVE[0], math.inf), (RELATIVE[1], -math.inf)]
)
def test_a_row_that_is_not_finite_has_no_score_and_does_not_touch_the_others(
    kind: type[LossAndContrast], bad: float
) -> None:
    outputs, targets, inputs = make_batch(4)
    keep = torch.arange(16) != 5
    expected = kind()(outputs[keep], targets[keep], inputs[keep])
    spoiled, images = outputs.clone(), inputs.clone()
    # a logit of -inf at the label makes the loss infinite, one elsewhere does nothing
    spoiled[5] = 0.0
    spoiled[5, targets[5]] = math.nan if math.isnan(bad) else -math.inf
    images[5, 0, 0, 0] = bad
    for batch in ((spoiled, targets, inputs), (outputs, targets, images)):
        scores = kind()(*batch)
        torch.testing.assert_close(scores[keep], expected)
        assert not math.isfinite(scores[5])
    assert not bool(kind()(outputs * math.nan, targets, inputs).isfinite().any())
    for column in (0, 1):  # against a running reference, too; clamped, infinity would be the best
        features = torch.tensor([[1.0, 1.0], [2.0, 0.5]])
        features[0, column] = bad
        scores = kind().combine(features, torch.tensor([2.0, 2.0]))
        assert scores.isfinite().tolist() == [False, True]


def test_contrast_asks_for_images() -> None:
    outputs, targets, _ = make_batch(0, rows=4)
    tokens, pair = torch.zeros(4, 7, dtype=torch.int64), (torch.zeros(4, 7), torch.zeros(4, 7))
    for inputs in (tokens, torch.zeros(4), torch.zeros(4, 1), pair):
        with pytest.raises(ValueError, match=r"contrast needs the inputs in one.*score='loss'"):
            LossAndContrast()(outputs, targets, inputs)
