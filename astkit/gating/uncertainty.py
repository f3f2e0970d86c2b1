"""Scores of the class outputs alone: uncertainty of the prediction, distance from the label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from astkit.batch import count_rows
from astkit.gating.losses import (
    Criterion,
    check_labels,
    cross_entropy_rows,
    labels_of,
    logits_of,
    single,
)


def class_logits(outputs: Any, rows: int) -> Tensor:
    """``outputs`` as ``[rows, classes]``, in float32 at least.

    Raises ``ValueError`` for another shape or fewer than two classes.
    """
    with suppress(ValueError):
        outputs = logits_of(outputs)
    tensor = isinstance(outputs, Tensor)
    if not tensor or outputs.ndim != 2 or len(outputs) != rows or outputs.shape[1] < 2:
        what = list(outputs.shape) if tensor else type(outputs).__name__
        raise ValueError(
            f"the model returned {what} for a batch of {rows} rows, but this score compares classes"
            " and needs [batch, classes] with at least two of them: change the model, or choose"
            " score='loss'"
        )
    return single(outputs)


def log_shares(logits: Tensor) -> Tensor:
    """Log-probabilities of ``logits [batch, classes]``; finite where a logit is -inf."""
    logs = logits.log_softmax(1)
    # 0 * log 0 is 0 in every formula here, but 0 * -inf is not a number
    return logs.clamp_min(torch.finfo(logs.dtype).min)


def gradient_norms(logits: Tensor, targets: Tensor) -> Tensor:
    """``||sum(targets) * softmax(logits) - targets||`` of each row, ``[batch]``.

    This is the norm of the cross-entropy's gradient with respect to ``logits [batch, classes]``.
    ``targets``: class indices ``[batch]`` or shares ``[batch, classes]``. Raises ``ValueError``
    for others.
    """
    if targets.is_floating_point() and targets.shape == logits.shape:
        shares = targets.to(logits.dtype)
    elif targets.is_floating_point() or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"targets are {targets.dtype} of shape {list(targets.shape)}, but this score compares"
            f" outputs of shape {list(logits.shape)} with class indices [batch] or float shares"
            " [batch, classes]: give such targets, or choose score='loss'"
        )
    else:
        check_labels(targets, logits.shape[1], ignored=None)
        shares = F.one_hot(targets.long(), logits.shape[1]).to(logits.dtype)
    return (shares.sum(1, keepdim=True) * logits.softmax(1) - shares).norm(dim=1)


class OutputScore(ABC):
    """A score of ``outputs [batch, classes]``, and perhaps of the targets, without a state.

    ``criterion`` is not used.
    """

    def __init__(self, criterion: Criterion = cross_entropy_rows) -> None:  # noqa: B027
        pass

    def __call__(self, outputs: Any, targets: Any, inputs: Any) -> Tensor:
        return self.of(class_logits(outputs, count_rows(targets)), targets)

    @abstractmethod
    def of(self, logits: Tensor, targets: Any) -> Tensor:
        """Scores ``[batch]`` of ``logits [batch, classes]``, float32 or float64."""


class Entropy(OutputScore):
    """Entropy of the predicted distribution, in nats: 0 to ``ln(classes)``. Labels play no part.

    Source: Settles, "Active Learning Literature Survey" (2009), section 3.1.
    """

    def of(self, logits: Tensor, targets: Any) -> Tensor:
        logs = log_shares(logits)
        return -(logs.exp() * logs).sum(1)


class Margin(OutputScore):
    """``1 - (p1 - p2)`` of the two largest probabilities: 1 where two classes tie for the first.

    Source: Scheffer, Decomain and Wrobel, "Active Hidden Markov Models for Information Extraction"
    (2001), reversed so that higher means less certain. Labels play no part.
    """

    def of(self, logits: Tensor, targets: Any) -> Tensor:
        first, second = logits.softmax(1).topk(2, dim=1).values.unbind(1)
        return 1 - (first - second)


class Confidence(OutputScore):
    """Least confidence: ``1 - p``, with the largest probability ``p``. Labels play no part.

    Source: Lewis and Gale, "A Sequential Algorithm for Training Text Classifiers" (1994).
    """

    def of(self, logits: Tensor, targets: Any) -> Tensor:
        return 1 - logits.softmax(1).amax(1)


class GradientNorm(OutputScore):
    """Norm of the cross-entropy's gradient with respect to the logits: ``||softmax(z) - y||``.

    Up to a constant it bounds the norm of the gradient of all weights, without a backward pass.
    Targets are class indices ``[batch]`` or shares ``[batch, classes]``; the training's criterion
    plays no part. Source: Katharopoulos and Fleuret, "Not All Samples Are Created Equal" (ICML
    2018), section 3.2.
    """

    def of(self, logits: Tensor, targets: Any) -> Tensor:
        return gradient_norms(logits, labels_of(targets))
