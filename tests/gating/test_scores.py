"""Scores against plain Python loops and autograd; names; scores that remember."""

import math
import re
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from astkit.gating import ContextScore, Gate, LossAndContrast, Scored
from astkit.gating.scores import LossContrastConstant, confidence, entropy, gradient_norm, margin
from astkit.names import resolve
from astkit.trainers.fingerprint import plain
from tests.build import refused
from tests.gating.streams import slow_loss

RELATIVE = [LossAndContrast, LossContrastConstant]
Parts = tuple[Tensor, Tensor, Tensor]
seeds = st.integers(0, 2**32 - 1)


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
) -> Parts:
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
def test_the_origins_rules_equal_a_loop_over_rows(seed, rows, channels, size, scale, dtype):
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


@pytest.mark.parametrize("kind", RELATIVE)
@settings(deadline=None, max_examples=10)
@given(seed=seeds, rows=st.integers(1, 15))
def test_features_are_each_rows_own_and_references_can_run(kind, seed, rows):
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


OF_CLASSES = ["entropy", "margin", "confidence", "gradient_norm"]
UNUSED = torch.zeros(0)  # no input is looked at
some_logits = st.integers(1, 6).flatmap(
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
@given(rows=some_logits)
def test_uncertainties_equal_a_loop_over_rows(score, slow, rows):
    outputs = torch.tensor(rows, dtype=torch.float64)
    scores = score(outputs, torch.zeros(len(rows), dtype=torch.int64), UNUSED)
    assert scores.dtype == torch.float64
    assert scores.tolist() == pytest.approx([slow(row) for row in rows], abs=1e-6)
    assert bool((scores >= 0).all())


def autograd_norm(row: Tensor, target: Tensor) -> float:
    """Norm of the gradient of one row's cross-entropy with respect to its some_logits."""
    row = row.clone().requires_grad_()
    F.cross_entropy(row[None], target[None]).backward()
    return float(row.grad.norm())


@settings(deadline=None, max_examples=30)
@given(rows=some_logits, seed=st.integers(0, 2**32 - 1))
def test_the_gradient_norm_is_autograds_for_labels_and_for_shares(rows, seed):
    outputs = torch.tensor(rows, dtype=torch.float64)
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(outputs.shape[1], (len(rows),), generator=random)
    shares = torch.rand(outputs.shape, generator=random, dtype=torch.float64)  # do not sum to 1
    for targets in (labels, shares, shares / shares.sum(1, keepdim=True)):
        scores = gradient_norm(outputs, targets, UNUSED)
        expected = [autograd_norm(*pair) for pair in zip(outputs, targets, strict=True)]
        assert scores.tolist() == pytest.approx(expected, abs=1e-6)


def test_scores_of_a_sure_guess() -> None:
    for dtype, size in product([torch.float32, torch.float64], [1e4, 1e30]):  # however large
        outputs = torch.tensor([[size, 0.0, -size], [-size, 0.0, size]], dtype=dtype)
        for name in OF_CLASSES:
            sure = resolve("score", name)(outputs, torch.tensor([0, 2]), UNUSED)
            assert sure.tolist() == [0, 0]
        wrong = gradient_norm(outputs, torch.tensor([1, 0]), UNUSED)
        assert wrong.tolist() == pytest.approx([math.sqrt(2)] * 2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
def test_a_row_whose_label_is_ignored_has_no_gradient(dtype: torch.dtype) -> None:
    outputs = torch.randn(3, 4)
    norms = gradient_norm(outputs, torch.tensor([2, -100, 0], dtype=dtype), UNUSED)
    assert norms[1] == 0
    assert norms[::2].equal(gradient_norm(outputs[::2], torch.tensor([2, 0]), UNUSED))


def test_a_class_that_is_masked_out_does_not_count() -> None:
    outputs = torch.tensor([[1.0, -math.inf, 0.5, 0.2]])
    without = outputs[:, [0, 2, 3]]
    for name in OF_CLASSES:
        score = resolve("score", name)
        masked = score(outputs, torch.tensor([2]), UNUSED)
        torch.testing.assert_close(masked, score(without, torch.tensor([1]), UNUSED))


def test_what_has_no_score_is_refused() -> None:
    labels, rows = torch.zeros(4, dtype=torch.int64), torch.zeros(4, 5)
    sentence = r"model returned (\[.*\]|Tensor|tuple|NoneType) for a batch of 4 rows.*, such as 'ga"
    for outputs in (*map(torch.zeros, [(4,), (4, 1), (3, 5), (4, 5, 7), ()]), ("a",), None):
        for name in OF_CLASSES:
            refused((partial(resolve("score", name), outputs, labels, UNUSED), sentence))
    for targets in (torch.zeros(4), torch.zeros(4, 3), labels[:, None], rows.long()):
        sentence = r"targets are torch\.\w+ of shape .*, such as 'gate'"
        refused((partial(gradient_norm, rows, targets, UNUSED), sentence))
    for label in (5, -1):
        call = partial(gradient_norm, rows, torch.tensor([0, label, 1, 1]), UNUSED)
        refused((call, f"the label {label}, but the model has 5 outputs"))
    sentence = r"float probabilities \[batch, classes\] of 0 or more"
    refused((partial(gradient_norm, rows, rows - 1, UNUSED), sentence))
    for inputs in (labels[:, None], torch.zeros(4), rows[:, :1], (rows, rows)):
        sentence = r"contrast needs the inputs in one.*score='loss'"
        refused((partial(LossAndContrast(), rows, labels, inputs), sentence))
    for score in ("loss_and_contrast", "loss_contrast_constant"):
        likelihood = Gate(score=score, criterion=lambda outputs, targets: outputs[:, 0] - 9)
        call = partial(likelihood, torch.nn.Identity(), torch.rand(4, 5), labels)
        refused((call, "a loss is negative, but this score divides losses"))
    for text in ("", "lose", "loss ", "loss + contrast", "0.7*loss", "loss, loss"):
        sentence = f"^unknown score {re.escape(repr(text))}: choose one of"
        refused((partial(Gate, score=text), sentence))


class Surprise(ContextScore):
    """The loss above its mean in the batch before, as an exponential."""

    def __init__(self) -> None:
        self.before = 0.0

    def score(self, batch: Scored) -> Tensor:
        losses, before = batch.score().losses, self.before
        self.before = float(losses.mean())
        return (losses - before).exp()

    def state_dict(self) -> dict[str, Any]:
        return {"before": self.before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = state["before"]


@pytest.mark.parametrize("steps", [6, 0])
def test_a_gate_with_a_memory_continues_bit_for_bit(steps: int) -> None:
    model = nn.Linear(3, 4)

    def run(gate: Gate, numbers: range) -> list[Any]:
        found = []
        for number in numbers:
            random = torch.Generator().manual_seed(number)
            x, y = torch.randn(6, 3, generator=random), torch.randint(4, (6,), generator=random)
            found.append(gate.scores(Scored(None, y, x, None, model)).tolist())
            found.append(gate.select(torch.tensor(found[-1])).index.tolist())
        return found

    gate, resumed = Gate(0.3, Surprise()), Gate(0.3, Surprise())
    run(gate, range(steps))
    resumed.load_state_dict(gate.state_dict())
    assert run(resumed, range(steps, 12)) == run(gate, range(steps, 12))
    assert plain(resumed.state_dict()) == plain(gate.state_dict())
    assert run(Gate(0.3, Surprise()), range(11, 12)) != run(gate, range(11, 12))  # memory matters
