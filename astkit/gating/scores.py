"""Scores: one value per sample; higher means more important.

A score is any callable ``(outputs, targets, inputs) -> [batch]``. A score that needs sample
indices or the model subclasses `ContextScore`. "The original" refers to
oluwafemidiakhoa/adaptive-sparse-training at 3e66290, file KAGGLE_VIT_BATCHED_STANDALONE.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor

from astkit.datasets.batch import IGNORED, count_rows
from astkit.gating.losses import (
    check_labels,
    ignored_label,
    labels_of,
    logits_of,
    single,
    whole_numbers,
)
from astkit.gating.selection import Scored
from astkit.names import resolve

Score = Callable[[Any, Any, Any], Tensor]
"""``(outputs, targets, inputs)`` -> one number per row ``[rows]``; higher means more important."""


class ContextScore(ABC):
    """Base class of scores that need the model, or that keep state.

    Override ``score``, and ``state_dict`` and ``load_state_dict`` if values depend on earlier
    batches. A score that needs a second model calls ``batch.forward(model)``, which is counted.
    """

    @abstractmethod
    def score(self, batch: Scored) -> Tensor:
        """Scores ``[batch]``, NaN if undefined. Called in eval mode without gradients.

        Raises ``ValueError`` if ``batch`` lacks a required model.
        """

    def __call__(self, outputs: Any, targets: Any, inputs: Any) -> Tensor:
        return self.score(Scored(outputs, targets, inputs))

    def state_dict(self) -> dict[str, Any]:
        """State that determines later scores, as plain numbers and lists; may be empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore ``state``."""


class Loss(ContextScore):
    """The loss of each row, by the criterion of the policy, or without one of the training."""

    def score(self, batch: Scored) -> Tensor:
        batch.score()  # whose own losses stay unread: a policy would be told of scored rows
        return batch.measured[0]


def score_rows(score: Score, batch: Scored) -> Tensor:
    """Evaluate ``score``, a function or a `ContextScore`, on ``batch``: ``[batch]``."""
    if isinstance(score, ContextScore):
        return score.score(batch)
    batch.score()
    targets, ignored = batch.targets, ignored_label(batch.criterion) if batch.ignores else IGNORED
    if ignored != IGNORED and isinstance(targets, Tensor) and whole_numbers(targets):
        targets = targets.masked_fill(targets == ignored, IGNORED)  # which a function may know
    return score(batch.outputs, targets, batch.inputs)


class RelativeScore(ContextScore):
    """A score that compares features of a row with a reference, by default the mean of the batch.

    Sample-by-sample training uses a running reference, by default the mean of all previous rows.
    """

    @abstractmethod
    def features(self, batch: Scored) -> Tensor:
        """Raw features, ``[batch, features]``; each row is computed independently."""

    @abstractmethod
    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        """Scores ``[batch]`` from features and reference; NaN for non-finite features."""

    def reference(self, features: Tensor) -> Tensor:
        """Reference of a batch, ``[features]``."""
        return features.mean(0)

    def running(self, reference: Tensor, count: int, features: Tensor) -> Tensor:
        """The reference of ``count`` rows, updated with a row's ``features [1, features]``."""
        return reference + (features[0] - reference) / (count + 1)

    def score(self, batch: Scored) -> Tensor:
        features = self.features(batch)
        finite = features[features.isfinite().all(1)]  # one NaN would make all scores NaN
        return self.combine(features, self.reference(finite if len(finite) else features))


def finite_only(scores: Tensor, features: Tensor) -> Tensor:
    """``scores [batch]``, with NaN for rows with non-finite features."""
    return scores.masked_fill(~features.isfinite().all(1), math.nan)


def contrast(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """Standard deviation (unbiased) over all values of each row of ``inputs [batch, ...]``.

    It does not depend on the model, so used alone it always selects the same samples; combine it
    with other scores. Source: the input term of the original's ``_compute_batch_significance``.

    Raises ``ValueError`` unless the inputs are a float tensor with at least two values per row.
    """
    if isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.shape[1:].numel() > 1:
        return inputs.flatten(1).std(dim=1)
    raise ValueError(
        "contrast needs the inputs in one float tensor with at least two values per row: choose"
        " score='loss'"
    )


class LossAndContrast(RelativeScore):
    """The original's score: ``0.7 * half(loss) + 0.3 * half(contrast)``.

    ``half(v) = clamp(v / (batch mean of v + 1e-6), 0, 2) / 2``; contrast as in `contrast`. Source:
    ``_compute_batch_significance``. Raises ``ValueError`` for negative losses.
    """

    weights: tuple[float, float] = (0.7, 0.3)

    def features(self, batch: Scored) -> Tensor:
        batch.score()
        losses = batch.measured[0]
        if bool((losses[losses.isfinite()] < 0).any()):
            raise ValueError(
                "a loss is negative, but this score divides losses by their mean: use a criterion"
                " that is 0 or more, or score='loss' with controller='top_k'"
            )
        contrasts = contrast(batch.outputs, batch.targets, batch.inputs)
        return torch.stack([losses, contrasts.to(losses.dtype)], dim=1)

    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        half = (features / (reference + 1e-6)).clamp(0, 2) / 2
        return finite_only(half @ half.new_tensor(self.weights), features)


class LossContrastConstant(LossAndContrast):
    """The original's older score: ``0.5 loss/max + 0.3 contrast/max + 0.2``.

    A negative example: the constant raises every score to at least 0.2, and an outlier compresses
    all others, so a threshold below 0.2 selects all rows. Source: the same file at 32ff988.
    """

    weights = (0.5, 0.3)

    def reference(self, features: Tensor) -> Tensor:
        return features.amax(0)

    def running(self, reference: Tensor, count: int, features: Tensor) -> Tensor:
        return torch.maximum(reference, features[0])

    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        share = features / (reference + 1e-6)
        return finite_only(share @ share.new_tensor(self.weights) + 0.2, features)


INSTEAD = "choose score='loss', or a policy that uses losses, such as 'gate'"


def class_logits(outputs: Any, targets: Any) -> Tensor:
    """``outputs`` as ``[rows, classes]``, in float32 or higher precision.

    Raises ``ValueError`` for other shapes or fewer than two classes.
    """
    with suppress(ValueError):
        outputs = logits_of(outputs)
    rows, shape = count_rows(targets), list(getattr(outputs, "shape", ()))
    if len(shape) != 2 or shape[0] != rows or shape[1] < 2:
        raise ValueError(
            f"the model returned {shape or type(outputs).__name__} for a batch of {rows} rows, but"
            f" this score needs [batch, classes] with at least two classes: {INSTEAD}"
        )
    return single(outputs)


def entropy(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """Entropy of the predicted distribution, in nats, from 0 to ``ln(classes)``."""
    logs = class_logits(outputs, targets).log_softmax(1)
    logs = logs.clamp_min(torch.finfo(logs.dtype).min)  # 0 * log 0 is 0, but 0 * -inf is NaN
    return -(logs.exp() * logs).sum(1)


def margin(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """``1 - (p1 - p2)`` with the two largest probabilities (Scheffer et al., 2001, reversed)."""
    first, second = class_logits(outputs, targets).softmax(1).topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)


def confidence(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """Least confidence (Lewis and Gale, 1994): ``1 - p`` with the largest probability ``p``."""
    return 1 - class_logits(outputs, targets).softmax(1).amax(1)


def gradient_norm(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """Norm of the gradient of cross-entropy with respect to the logits: ``||softmax(z) - y||``.

    Up to a constant, it bounds the norm of the full gradient without a backward pass. Targets are
    class indices ``[batch]``, of which -100 has no gradient, or probabilities ``[batch, classes]``.
    Source: Katharopoulos and Fleuret, "Not All Samples Are Created Equal" (ICML 2018), section 3.2.

    Raises ``ValueError`` for targets of another kind or shape, and for other negative targets or
    classes beyond the last.
    """
    logits, labels = class_logits(outputs, targets), labels_of(targets)
    if not labels.is_floating_point() and labels.shape == logits.shape[:1]:
        if not labels.is_cuda:  # the check would wait for the device
            check_labels(labels, logits.shape[1])
        classes = torch.arange(logits.shape[1], device=labels.device)
        shares = (labels.unsqueeze(1) == classes).to(logits.dtype)  # -100 has none
    elif labels.is_floating_point() and labels.shape == logits.shape and bool((labels >= 0).all()):
        shares = labels.to(logits.dtype)
    else:
        raise ValueError(
            f"targets are {labels.dtype} of shape {list(labels.shape)}, but this score compares"
            f" outputs of shape {list(logits.shape)} with class indices [batch] or float"
            f" probabilities [batch, classes] of 0 or more: give such targets, or {INSTEAD}"
        )
    return (shares.sum(1, keepdim=True) * logits.softmax(1) - shares).norm(dim=1)


def named_score(name: str) -> Score:
    """The score registered by this name; raises ``ValueError`` for another one."""
    made = resolve("score", name)
    return cast(Score, made() if isinstance(made, type) else made)
