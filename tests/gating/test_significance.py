"""Scores against plain Python loops in float64, and one sentence for each way to misuse them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
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
    cross_entropy_rows,
    row_losses,
)

RELATIVE = [LossAndContrast, LossContrastConstant]
Batch = tuple[Tensor, Tensor, Tensor]


def slow_loss(logits: list[float], label: int) -> float:
    top = max(logits)
    return top + math.log(sum(math.exp(logit - top) for logit in logits)) - logits[label]


def slow_std(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def slow_features(outputs: Tensor, targets: Tensor, inputs: Tensor) -> list[tuple[float, float]]:
    return [
        (slow_loss(logits, label), slow_std([v for plane in image for row in plane for v in row]))
        for logits, label, image in zip(
            outputs.tolist(), targets.tolist(), inputs.tolist(), strict=True
        )
    ]


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
    seed: int, rows: int = 16, channels: int = 3, size: int = 4, dtype: torch.dtype = torch.float32
) -> Batch:
    """Logits for 5 classes, labels, and images of very different contrast, one of them blank."""
    random = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(rows, 5, generator=random, dtype=dtype)
    targets = torch.randint(5, (rows,), generator=random)
    contrast = torch.rand(rows, 1, 1, 1, generator=random, dtype=dtype) * 3
    inputs = torch.randn(rows, channels, size, size, generator=random, dtype=dtype) * contrast
    inputs[0] = 0.25
    return outputs, targets, inputs


@pytest.mark.parametrize(
    ("score", "slow"), [(LossAndContrast(), slow_origin), (LossContrastConstant(), slow_older)]
)
def test_the_origins_rules_equal_a_loop_over_rows(
    score: RelativeScore, slow: Callable[..., list[float]]
) -> None:
    for seed in range(10):
        batch = make_batch(seed)
        scores = score(*batch)
        assert scores.shape == (16,)
        assert scores.dtype == torch.float32
        assert scores.tolist() == pytest.approx(slow(*batch), abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4), st.integers(2, 5), st.data()
)
def test_the_origins_rules_equal_a_loop_for_any_shape(
    seed: int, rows: int, channels: int, size: int, data: st.DataObject
) -> None:
    outputs, targets, inputs = make_batch(seed, rows, channels, size, torch.float64)
    outputs = outputs * data.draw(st.sampled_from([0.0, 0.01, 1.0, 20.0]))
    batch = outputs, targets, inputs
    assert LossAndContrast()(*batch).tolist() == pytest.approx(slow_origin(*batch), abs=1e-7)
    assert LossContrastConstant()(*batch).tolist() == pytest.approx(slow_older(*batch), abs=1e-7)


def test_the_origins_rule_on_numbers_worked_out_by_hand() -> None:
    # losses 1, 2, 9 (mean 4), contrasts sqrt(2) times 1, 2, 0 (mean sqrt(2))
    score = LossAndContrast(criterion=lambda outputs, targets: outputs[:, 0])
    outputs = torch.tensor([[1.0], [2.0], [9.0]], dtype=torch.float64)
    inputs = torch.tensor([[1.0, -1.0], [2.0, -2.0], [7.0, 7.0]], dtype=torch.float64)
    scores = score(outputs, torch.zeros(3), inputs)
    assert scores.tolist() == pytest.approx(
        [0.7 / 8 + 0.3 / 2, 0.7 / 4 + 0.3, 0.7], abs=1e-5
    )  # the third loss is clamped at twice the mean


@given(st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=20)
def test_weights_share_the_score_between_loss_and_contrast(loss: float, contrast: float) -> None:
    batch = make_batch(1, dtype=torch.float64)
    alone = [LossAndContrast(loss_weight=a, contrast_weight=1 - a)(*batch) for a in (1.0, 0.0)]
    both = LossAndContrast(loss_weight=loss, contrast_weight=contrast)(*batch)
    torch.testing.assert_close(both, loss * alone[0] + contrast * alone[1])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_the_origins_rule_stays_within_0_and_1(seed: int, rows: int) -> None:
    scores = LossAndContrast()(*make_batch(seed, rows))
    assert bool(((scores >= 0) & (scores <= 1)).all())


# --- why the older rule is kept as a warning -------------------------------------------------


def learned_batch(seed: int, rows: int = 64) -> Batch:
    """Rows that are learned but for the last four: loss about 0 on images of any contrast."""
    _, targets, inputs = make_batch(seed, rows)
    outputs = 30.0 * F.one_hot(targets, 5)
    outputs[-4:] = outputs[-4:].roll(1, 1)
    return outputs, targets, inputs


def test_the_older_rules_constant_keeps_every_score_at_0_2_or_more() -> None:
    outputs, targets, inputs = learned_batch(0)
    older = LossContrastConstant()(outputs, targets, inputs)
    assert float(older[0]) == pytest.approx(0.2, abs=1e-6)  # nothing left to learn, a blank image
    assert float(older.min()) >= 0.2 - 1e-6
    assert float(LossAndContrast()(outputs, targets, inputs)[0]) < 1e-6


def test_a_threshold_below_the_constant_gates_nothing() -> None:
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
    _, targets, inputs = make_batch(0, rows=128)
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
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 40))
def test_a_running_reference_is_the_batch_reference_of_the_rows_so_far(
    kind: type[LossAndContrast], seed: int, rows: int
) -> None:
    score = kind()
    features = score.features(Scored(*make_batch(seed, rows, dtype=torch.float64)))
    assert features.shape == (rows, 2)
    running = torch.full((2,), 1e9 if kind is LossAndContrast else 0.0, dtype=torch.float64)
    for count in range(rows):
        running = score.running(running, count, features[count : count + 1])
        torch.testing.assert_close(running, score.reference(features[: count + 1]))


def test_the_features_are_loss_and_unbiased_standard_deviation() -> None:
    batch = make_batch(2, dtype=torch.float64)
    features = LossAndContrast().features(Scored(*batch)).flatten().tolist()
    assert features == pytest.approx([v for pair in slow_features(*batch) for v in pair], abs=1e-12)


@pytest.mark.parametrize("kind", RELATIVE)
def test_a_rows_features_depend_on_that_row_alone(kind: type[LossAndContrast]) -> None:
    outputs, targets, inputs = make_batch(3, dtype=torch.float64)
    together = kind().features(Scored(outputs, targets, inputs))
    for i in range(len(targets)):
        row = slice(i, i + 1)
        alone = kind().features(Scored(outputs[row], targets[row], inputs[row]))
        torch.testing.assert_close(alone, together[row])


@pytest.mark.parametrize("kind", RELATIVE)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_does_not_touch_the_scores_of_the_others(
    kind: type[LossAndContrast], bad: float
) -> None:
    outputs, targets, inputs = make_batch(4)
    keep = torch.arange(16) != 5
    expected = kind()(outputs[keep], targets[keep], inputs[keep])
    for broken in ("loss", "contrast"):
        spoiled, images = outputs.clone(), inputs.clone()
        if broken == "loss":
            spoiled[5] = math.nan if math.isnan(bad) else -math.inf
            spoiled[5, (targets[5] + 1) % 5] = math.nan if math.isnan(bad) else 0.0
        else:
            images[5, 0, 0, 0] = bad
        scores = kind()(spoiled, targets, images)
        torch.testing.assert_close(scores[keep], expected)
        assert not math.isfinite(scores[5])


@pytest.mark.parametrize("kind", RELATIVE)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 1])
def test_a_row_that_is_not_finite_has_no_score_against_a_running_reference_either(
    kind: type[LossAndContrast], bad: float, column: int
) -> None:
    features = torch.tensor([[1.0, 1.0], [2.0, 0.5]])
    features[0, column] = bad  # clamped, an infinite loss would get the best of scores
    scores = kind().combine(features, torch.tensor([2.0, 2.0]))
    assert scores.isfinite().tolist() == [False, True]


@pytest.mark.parametrize("kind", RELATIVE)
def test_a_batch_without_a_finite_row_has_no_finite_score(kind: type[LossAndContrast]) -> None:
    outputs, targets, inputs = make_batch(4)
    scores = kind()(outputs * math.nan, targets, inputs)
    assert scores.shape == (16,)
    assert not bool(scores.isfinite().any())


@pytest.mark.parametrize(
    "inputs",
    [
        torch.zeros(4, 7, dtype=torch.int64),
        torch.zeros(4),
        torch.zeros(4, 1),
        (torch.zeros(4, 7), torch.zeros(4, 7)),
    ],
    ids=["tokens", "scalars", "one value a row", "a tuple"],
)
def test_contrast_asks_for_images(inputs: Tensor) -> None:
    outputs, targets, _ = make_batch(0, rows=4)
    with pytest.raises(ValueError, match=r"contrast needs the inputs in one.*score='loss'"):
        LossAndContrast()(outputs, targets, inputs)


# --- row losses ------------------------------------------------------------------------------


def test_the_loss_of_each_row_is_its_cross_entropy() -> None:
    outputs, targets, inputs = make_batch(5, dtype=torch.float64)
    slow = [loss for loss, _ in slow_features(outputs, targets, inputs)]
    losses = row_losses(cross_entropy_rows, outputs, targets)
    assert losses.dtype == torch.float64
    assert losses.tolist() == pytest.approx(slow)
    assert Loss()(outputs, targets, inputs).equal(losses)


def test_dimensions_after_the_first_are_averaged() -> None:
    outputs, targets = torch.randn(3, 5, 7, dtype=torch.float64), torch.randint(5, (3, 7))
    losses = row_losses(cross_entropy_rows, outputs, targets)
    assert losses.shape == (3,)
    for b in range(3):
        steps = [slow_loss(outputs[b, :, t].tolist(), int(targets[b, t])) for t in range(7)]
        assert float(losses[b]) == pytest.approx(sum(steps) / 7)


def test_other_criteria_and_soft_targets() -> None:
    outputs, targets = torch.randn(4, 2, 3), torch.randn(4, 2, 3)
    losses = row_losses(torch.nn.MSELoss(reduction="none"), outputs, targets)
    assert losses.tolist() == pytest.approx(
        [float(((outputs[b] - targets[b]) ** 2).mean()) for b in range(4)]
    )
    logits, labels = torch.randn(4, 5), torch.tensor([0, 4, 2, 2])
    soft = row_losses(cross_entropy_rows, logits, F.one_hot(labels, 5).float())
    torch.testing.assert_close(soft, row_losses(cross_entropy_rows, logits, labels))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outputs_are_scored_in_float32(dtype: torch.dtype) -> None:
    seen = []

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.dtype)
        return cross_entropy_rows(outputs, targets)

    outputs, targets, inputs = make_batch(6, rows=64)
    rounded = (4 * outputs).to(dtype)
    losses = row_losses(criterion, rounded, targets)
    assert seen == [torch.float32]
    assert losses.dtype == torch.float32
    expected = [slow_loss(row, label) for row, label in zip(rounded.tolist(), targets, strict=True)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert LossAndContrast(criterion)(rounded, targets, inputs.to(dtype)).dtype == torch.float32


@pytest.mark.parametrize(
    "outputs",
    [
        torch.zeros(3, 5),
        torch.zeros(()),
        (torch.zeros(4, 5),),
        {"logits": torch.zeros(4, 5)},
        None,
    ],
    ids=["three rows", "a number", "a tuple", "a dict", "None"],
)
def test_a_model_must_return_one_tensor_with_a_row_for_each_target(outputs: Tensor) -> None:
    named = r"\[3, 5\]|\[\]|tuple|dict|NoneType"
    with pytest.raises(ValueError, match=rf"model returned ({named}) for a batch of 4 rows"):
        row_losses(cross_entropy_rows, outputs, torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_criterion_that_averages_is_refused(reduction: str) -> None:
    outputs, targets, _ = make_batch(0)
    with pytest.raises(ValueError, match=r"shape \[\] for 16 rows.*reduction='none'"):
        row_losses(torch.nn.CrossEntropyLoss(reduction=reduction), outputs, targets)


def test_a_criterion_that_loses_rows_is_refused() -> None:
    outputs, targets, _ = make_batch(0)
    with pytest.raises(ValueError, match=r"shape \[15\] for 16 rows"):
        row_losses(lambda o, t: cross_entropy_rows(o, t)[1:], outputs, targets)


@pytest.mark.parametrize("label", [5, 6, 1000, -1, -7])
@pytest.mark.parametrize("steps", [(), (7,)], ids=["[B, C]", "[B, C, T]"])
def test_a_label_out_of_range_is_named_with_the_number_of_outputs(
    label: int, steps: tuple[int, ...]
) -> None:
    targets = torch.randint(5, (4, *steps))
    targets[(2, *(0 for _ in steps))] = label
    with pytest.raises(ValueError, match=rf"label {label}, but the model has 5 outputs.*0\.\.4"):
        row_losses(cross_entropy_rows, torch.zeros(4, 5, *steps), targets)


def test_what_a_criterion_refuses_for_another_reason_is_passed_on() -> None:
    with pytest.raises(ValueError, match=r"shape \[4, 5\] and targets of shape \[4, 3\]") as caught:
        row_losses(cross_entropy_rows, torch.zeros(4, 5), torch.zeros(4, 3))
    assert caught.value.__cause__ is not None
    assert str(caught.value.__cause__) in str(caught.value)
