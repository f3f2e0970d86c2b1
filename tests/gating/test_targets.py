"""What whole-number targets are to a criterion: names of classes, or numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from astkit.datasets.batch import IGNORED
from astkit.gating import cross_entropy_rows
from astkit.gating.targets import Targets, targets_of

ROWS = 2
LABELS, SEVERAL = torch.tensor([1, 0]), torch.tensor([[1, 0, 1], [0, 0, 1]])
ONE, THREE = torch.randn(ROWS, 1), torch.randn(ROWS, 3)
NUMBERS, NAMES, LOGIT = Targets(False), Targets(True), Targets(True, predicted=True)
LOGITS = Targets(True, True, True)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (
        (outputs.reshape(targets.shape) - targets.float())
        .square()
        .reshape(len(targets), -1)
        .mean(1)
    )


def one(loss: Any, **options: Any) -> Any:
    """A criterion of one output a row, of torch's class ``loss``."""
    made = loss(reduction="none", **options)
    return lambda o, y: made(o.reshape(len(y)), y.reshape(len(y)).float())


def several(loss: Any) -> Any:
    return lambda o, y: loss(reduction="none")(o, y.float()).mean(1)


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="none")
    return ((1 - (-losses).exp()) ** 2 * losses).squeeze(1)


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    soft = 0.9 * targets.float() + 0.05
    return F.binary_cross_entropy_with_logits(outputs.squeeze(1), soft, reduction="none")


def brier(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1).sigmoid() - targets.float()).square()


def ordinal(outputs: Tensor, targets: Tensor) -> Tensor:
    above = (targets[:, None] > torch.arange(3)).float()
    return F.binary_cross_entropy_with_logits(outputs, above, reduction="none").mean(1)


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    distance = (outputs[:, None] - outputs).norm(dim=2)
    return torch.where(targets[:, None] == targets, distance, (4 - distance).relu()).mean(1)


class Centres(nn.Module):
    """The distance to the centre of the class, of which there are more than outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(9, 3))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - self.centres[targets]).square().sum(1)


CASES: dict[str, tuple[Any, Tensor, Tensor, Targets]] = {
    "squares": (squares, ONE, LABELS * 7, NUMBERS),
    "squares of one output": (squares, ONE[:, 0], LABELS, NUMBERS),
    "squares of a column": (squares, ONE, LABELS[:, None], NUMBERS),
    "squares of several": (squares, THREE, SEVERAL * 9, NUMBERS),
    "whole decimals": (squares, ONE, LABELS.float() * 30, NUMBERS),
    "decimals": (squares, ONE, torch.tensor([1.5, 0.0]), NUMBERS),
    "absolute errors": (one(nn.L1Loss), ONE, LABELS + 17, NUMBERS),
    "counts": (one(nn.PoissonNLLLoss), ONE, LABELS, NUMBERS),
    "counts, mean of two outputs": (lambda o, y: squares(o.mean(1), y), THREE, LABELS, NUMBERS),
    "huber": (one(nn.HuberLoss), ONE, LABELS.to(torch.uint8), NUMBERS),
    "ratings in order": (ordinal, THREE, LABELS + 1, NUMBERS),
    "several labels": (several(nn.BCEWithLogitsLoss), THREE, SEVERAL, NUMBERS),
    "several probabilities": (several(nn.BCELoss), THREE.sigmoid(), SEVERAL, NUMBERS),
    "one logit": (one(nn.BCEWithLogitsLoss), ONE, LABELS, LOGIT),
    "one logit, as a vector": (one(nn.BCEWithLogitsLoss), ONE[:, 0], LABELS, LOGIT),
    "one logit, a column": (one(nn.BCEWithLogitsLoss), ONE, LABELS[:, None], LOGIT),
    "one logit, decimals": (one(nn.BCEWithLogitsLoss), ONE, LABELS.float(), LOGIT),
    "one logit, true or false": (one(nn.BCEWithLogitsLoss), ONE, LABELS > 0, LOGIT),
    "weighted": (one(nn.BCEWithLogitsLoss, pos_weight=torch.tensor(4.0)), ONE, LABELS, LOGIT),
    "focal": (focal, ONE, LABELS[:, None], LOGIT),
    "smoothed": (smoothed, ONE, LABELS, LOGIT),
    "squares of a probability": (brier, ONE, LABELS, LOGIT),
    "one probability": (one(nn.BCELoss), ONE.sigmoid(), LABELS, NAMES),
    "cross-entropy": (cross_entropy_rows, THREE, LABELS, LOGITS),
    "torch's cross-entropy": (nn.CrossEntropyLoss(reduction="none"), THREE, LABELS, LOGITS),
    "tokens": (cross_entropy_rows, torch.randn(ROWS, 3, 5), SEVERAL, NAMES),
    "pixels": (
        lambda o, y: nn.CrossEntropyLoss(reduction="none")(o, y).mean(1),
        torch.randn(ROWS, 2, 3),
        SEVERAL,
        NAMES,
    ),
    "probabilities": (cross_entropy_rows, THREE, THREE.softmax(1), NAMES),
    "pairs": (contrastive, THREE, LABELS, NAMES),
    "centres": (Centres(), THREE, LABELS, NAMES),
    "own": (lambda o, y: o.square().sum(1), THREE, LABELS * 40, NAMES),
    "soft labels of another loss": (
        several(nn.BCELoss),
        THREE.sigmoid(),
        THREE.sigmoid(),
        Targets(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_criterion_tells_classes_from_numbers(case: str) -> None:
    criterion, outputs, targets, expected = CASES[case]
    assert targets_of(criterion, outputs, targets) == expected
    alike = {"logits": outputs}, {"labels": targets}
    if criterion is not cross_entropy_rows:

        def unpacked(outputs: Any, targets: Any) -> Any:
            return criterion(outputs["logits"], targets["labels"])

        assert targets_of(unpacked, *alike) == expected


def test_a_criterion_is_tried_without_a_trace_and_without_labels_nothing_is_known() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.calls += 1
            return squares(outputs, targets)

    criterion = Counting()
    assert targets_of(criterion, ONE, LABELS) == NUMBERS
    assert criterion.calls == 0
    assert targets_of(squares, ONE, {"x": LABELS}) == Targets()
    assert targets_of(cross_entropy_rows, THREE, LABELS.where(LABELS > 0, IGNORED)) == LOGITS
