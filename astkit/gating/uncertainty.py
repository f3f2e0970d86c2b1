"""Scores from class outputs: uncertainty of the prediction, distance from the label."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from astkit.batch import count_rows
from astkit.gating.losses import check_labels, labels_of, logits_of, single

INSTEAD = "choose score='loss', or a policy that uses losses, such as 'gate'"


def class_logits(outputs: Any, targets: Any) -> Tensor:
    """``outputs`` as ``[rows, classes]``, in float32 or higher precision.

    Raises ``ValueError`` for other shapes or fewer than two classes.
    """
    with suppress(ValueError):
        outputs = logits_of(outputs)
    tensor, rows = isinstance(outputs, Tensor), count_rows(targets)
    if not tensor or outputs.ndim != 2 or len(outputs) != rows or outputs.shape[1] < 2:
        what = list(outputs.shape) if tensor else type(outputs).__name__
        raise ValueError(
            f"the model returned {what} for a batch of {rows} rows, but this score compares classes"
            f" and needs [batch, classes] with at least two of them: {INSTEAD}"
        )
    return single(outputs)


def entropy(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """Entropy of the predicted distribution, in nats, from 0 to ``ln(classes)``. Ignores labels.

    Source: Settles, "Active Learning Literature Survey" (2009), section 3.1.
    """
    logs = class_logits(outputs, targets).log_softmax(1)
    logs = logs.clamp_min(torch.finfo(logs.dtype).min)  # 0 * log 0 is 0, but 0 * -inf is NaN
    return -(logs.exp() * logs).sum(1)


def margin(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """``1 - (p1 - p2)`` with the two largest probabilities; 1 if they are equal.

    Source: Scheffer, Decomain and Wrobel, "Active Hidden Markov Models for Information Extraction"
    (2001), reversed so that higher means less certain. Ignores labels.
    """
    shares = class_logits(outputs, targets).softmax(1)
    first, second = shares.topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)


def confidence(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """Least confidence: ``1 - p`` with the largest probability ``p``. Ignores labels.

    Source: Lewis and Gale, "A Sequential Algorithm for Training Text Classifiers" (1994).
    """
    return 1 - class_logits(outputs, targets).softmax(1).amax(1)


def gradient_norm(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """Norm of the gradient of cross-entropy with respect to the logits: ``||softmax(z) - y||``.

    Up to a constant, it bounds the norm of the full gradient without a backward pass. Targets are
    class indices ``[batch]`` or probabilities ``[batch, classes]``; the training criterion is not
    used. Source: Katharopoulos and Fleuret, "Not All Samples Are Created Equal" (ICML
    2018), section 3.2.
    """
    logits, labels = class_logits(outputs, targets), labels_of(targets)
    if labels.is_floating_point() and labels.shape == logits.shape:
        if bool((labels < 0).any()):
            raise ValueError(
                "targets are negative, but this score takes float targets as class probabilities:"
                f" {INSTEAD}"
            )
        shares = labels.to(logits.dtype)
    elif labels.is_floating_point() or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"targets are {labels.dtype} of shape {list(labels.shape)}, but this score compares"
            f" outputs of shape {list(logits.shape)} with class indices [batch] or float"
            f" probabilities [batch, classes]: give such targets, or {INSTEAD}"
        )
    else:
        check_labels(labels, logits.shape[1], ignored=None)
        shares = F.one_hot(labels.long(), logits.shape[1]).to(logits.dtype)
    return (shares.sum(1, keepdim=True) * logits.softmax(1) - shares).norm(dim=1)
