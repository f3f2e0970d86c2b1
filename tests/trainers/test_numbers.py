"""What a trainer tells policies of its targets: class numbers are labels, other numbers are not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from astkit.aim.auto import Auto
from astkit.datasets import Batch
from astkit.gating import Policy, RunInfo
from astkit.trainers import StepResult, TrainConfig
from tests import build

ROWS = 240
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
COUNTS = torch.poisson(X[:, 0].exp(), generator=torch.Generator().manual_seed(1)).long()
SIGN = (X[:, 0] > 0).long()
AGED = [(x, float(20 + count)) for x, count in zip(X, COUNTS, strict=True)]
WRONG = torch.arange(ROWS) % 10 < 3  # 30 % of the labels


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten() - targets.flatten().float()).square()


def counted(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.poisson_nll_loss(outputs.squeeze(1), targets.float(), reduction="none")


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs, targets = outputs.flatten(), targets.flatten().float()
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")


def marked(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="none").mean(1)


NUMBERS: dict[str, tuple[Any, Any]] = {
    "counts": (TensorDataset(X, COUNTS), counted),
    "a column of ratings": (TensorDataset(X, COUNTS.clamp_max(4)[:, None]), squares),
    "ages": (build.as_dataset(AGED, targets=np.asarray(20 + COUNTS)), squares),
    "several labels": (TensorDataset(X, (X > 0).long()), marked),
}
ONE_LOGIT: dict[str, Any] = {
    "whole numbers": lambda y: y,
    "a column": lambda y: y[:, None],
    "true or false": lambda y: y > 0,
}


def model(outputs: int = 1) -> nn.Module:
    return build.network(4, outputs, 8, nn.Tanh())


class Visits:
    """How often each row was trained on."""

    def __init__(self) -> None:
        self.times = torch.zeros(ROWS, dtype=torch.int64)

    def log(self, step: int, **metrics: Any) -> None: ...

    def close(self) -> None: ...

    def watch(self, batch: Batch, result: StepResult) -> None:
        assert batch.index is not None
        rows = batch.index[result.rows]
        self.times.index_add_(0, rows, torch.ones_like(rows))


def trained(policy: Any, data: Any, criterion: Any, epochs: int, outputs: int = 1) -> Visits:
    visits, config = Visits(), TrainConfig(lr=0.03)
    options: dict[str, Any] = {"criterion": criterion, "policy": policy, "observers": [visits]}
    run = build.trainer(
        model(outputs), data, epochs=epochs, batch_size=16, config=config, **options
    )
    run.run()
    return visits


class Told(Policy):
    """Keeps what it is told."""

    def plan(self, run: RunInfo) -> None:
        self.run = run


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_are_no_labels_for_a_policy(kind: str) -> None:
    data, criterion = NUMBERS[kind]
    policy = Told()
    outputs = 4 if kind == "several labels" else 1
    trained(policy, data, criterion, 1, outputs)
    assert (policy.run.classes, policy.run.labels) == (False, None)
    with pytest.raises(ValueError, match="ClassBalanced chooses by class, but the criterion takes"):
        trained("class_balanced", data, criterion, 1, outputs)


@pytest.mark.parametrize("kind", NUMBERS)
def test_auto_trains_on_all_rows_of_a_regression(kind: str) -> None:
    data, criterion = NUMBERS[kind]
    visits = trained(Auto(), data, criterion, 4, 4 if kind == "several labels" else 1)
    assert visits.times.eq(4).all()


@pytest.mark.parametrize("form", ONE_LOGIT)
def test_auto_asks_a_model_with_one_logit_about_wrong_labels(form: str) -> None:
    """Of two classes random labels are not told from confused ones: all rows are trained on."""
    labels = ONE_LOGIT[form](torch.where(WRONG, 1 - SIGN, SIGN))
    policy = Auto()
    visits = trained(policy, TensorDataset(X, labels), binary, 6)
    assert policy.known is not None
    correct = policy.known[1].bool()
    assert correct[~WRONG].float().mean() > 0.8
    assert correct[WRONG].float().mean() < 0.2
    assert visits.times.eq(6).all()


def test_labels_of_classes_reach_a_policy() -> None:
    for criterion, outputs in ((F.cross_entropy, 2), (binary, 1)):
        policy = Told()
        options = {"reduction": "none"} if outputs == 2 else {}
        trained(policy, TensorDataset(X, SIGN), lambda o, y: criterion(o, y, **options), 1, outputs)  # noqa: B023
        assert policy.run.classes is True
        assert policy.run.labels is not None
        assert policy.run.labels.equal(SIGN)


def test_a_custom_loop_may_say_that_numbers_are_no_classes() -> None:
    data = TensorDataset(X, COUNTS.clamp_max(3))
    for said, labels in ((None, True), (True, True), (False, False)):
        policy = Told()
        list(policy.sampler(data, epochs=1, classes=said))
        assert policy.run.classes is said
        assert (policy.run.labels is not None) == labels
