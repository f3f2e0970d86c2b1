"""Significance: one score a sample; higher means more important.

A score is any callable ``(outputs, targets, inputs) -> [batch]``; one that needs to know which
samples it sees, or the model, is a `ContextScore`. The original compared below is
oluwafemidiakhoa/adaptive-sparse-training at 3e66290, file KAGGLE_VIT_BATCHED_STANDALONE.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from astkit.gating.losses import Criterion, cross_entropy_rows, row_losses
from astkit.gating.scored import Scored

Score = Callable[[Any, Any, Any], Tensor]


class Loss:
    """The loss of each row, as it is."""

    def __init__(self, criterion: Criterion = cross_entropy_rows) -> None:
        self.criterion = criterion

    def __call__(self, outputs: Any, targets: Any, inputs: Any) -> Tensor:
        return row_losses(self.criterion, outputs, targets)


class ContextScore(ABC):
    """A score that looks beyond outputs, targets and inputs, or that remembers.

    Write ``score``. A score that learns from decisions writes ``settled`` as well, and one whose
    values depend on earlier batches the two methods for its state. It may be called like any
    other score, without index and model.

    Attributes:
        extra_forwards: forward passes that a sample's score takes beyond the model's own; the
            trainers charge them to the ledger.
        needs_index: whether the score remembers samples, so that data must say which they are.
    """

    extra_forwards: int = 0
    needs_index: bool = False

    @abstractmethod
    def score(self, batch: Scored) -> Tensor:
        """Scores ``[batch]``, NaN where there is none. Called in eval mode, without gradients.

        Raises ``ValueError`` where ``batch`` lacks the index or the model that the score needs.
        """

    def __call__(self, outputs: Any, targets: Any, inputs: Any) -> Tensor:
        return self.score(Scored(outputs, targets, inputs))

    def settled(self, index: Tensor | None, chosen: Tensor) -> None:  # noqa: B027
        """Told after a decision: the samples ``index [batch]``, of which rows ``chosen`` train."""

    def state_dict(self) -> dict[str, Any]:
        """What later scores depend on, as plain numbers and lists; empty if nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Continue from ``state``."""


def score_rows(score: Score, batch: Scored) -> Tensor:
    """``score`` of ``batch``, ``[batch]``, with the context if it is of the kind to need it."""
    if isinstance(score, ContextScore):
        return score.score(batch)
    return score(batch.outputs, batch.targets, batch.inputs)


class RelativeScore(ContextScore):
    """A score that holds features of a row against a reference taken from the whole batch.

    Split in three so that the sample-by-sample trainer, which has no batch to look at, can put a
    running reference in the place of the batch's.
    """

    @abstractmethod
    def features(self, batch: Scored) -> Tensor:
        """Raw features, ``[batch, features]``; each row's depend on that row alone."""

    @abstractmethod
    def reference(self, features: Tensor) -> Tensor:
        """What a batch's features are held against, ``[features]``."""

    @abstractmethod
    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        """Scores ``[batch]`` from features and reference; NaN where a feature is not finite."""

    @abstractmethod
    def running(self, reference: Tensor, count: int, features: Tensor) -> Tensor:
        """The reference of ``count`` rows, widened by one more row's ``features [1, features]``."""

    def score(self, batch: Scored) -> Tensor:
        features = self.features(batch)
        finite = features[features.isfinite().all(1)]  # one NaN would spoil the score of every row
        return self.combine(features, self.reference(finite if len(finite) else features))


class MeanRelative(RelativeScore):
    """A score that holds features against their mean, of the batch or of the rows before."""

    def reference(self, features: Tensor) -> Tensor:
        return features.mean(0)

    def running(self, reference: Tensor, count: int, features: Tensor) -> Tensor:
        return reference + (features[0] - reference) / (count + 1)


def finite_only(scores: Tensor, features: Tensor) -> Tensor:
    # clamping would turn an infinite loss into the best of scores
    return scores.masked_fill(~features.isfinite().all(1), math.nan)


def row_contrasts(inputs: Any) -> Tensor:
    """Standard deviation (unbiased) over all values of each row of ``inputs [batch, ...]``.

    Raises ``ValueError`` unless they are one float tensor with at least two values a row.
    """
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs[0].numel() < 2:
        tensor = isinstance(inputs, Tensor)
        what = f"{inputs.dtype} {list(inputs.shape)}" if tensor else type(inputs).__name__
        raise ValueError(
            "contrast needs the inputs in one float tensor with at least two values a row, but"
            f" they are {what}: choose score='loss'"
        )
    return inputs.flatten(1).std(dim=1)


class Contrast:
    """The standard deviation over all pixels and channels of an input.

    The model has no part in it, so alone it chooses the same samples for ever: it is meant for
    combinations. Source: the input term of the original's ``_compute_batch_significance``.
    ``criterion`` is taken as by every registered score, and not used.
    """

    def __init__(self, criterion: Criterion = cross_entropy_rows) -> None:
        pass

    def __call__(self, outputs: Any, targets: Any, inputs: Any) -> Tensor:
        return row_contrasts(inputs)


class LossAndContrast(MeanRelative):
    """The original's rule: ``0.7 * half(loss) + 0.3 * half(contrast)``.

    ``half(v) = clamp(v / (batch mean of v + 1e-6), 0, 2) / 2``; contrast as in `Contrast`. Source:
    ``_compute_batch_significance``.
    """

    def __init__(
        self,
        criterion: Criterion = cross_entropy_rows,
        loss_weight: float = 0.7,
        contrast_weight: float = 0.3,
    ) -> None:
        self.criterion = criterion
        self.loss_weight, self.contrast_weight = loss_weight, contrast_weight

    def features(self, batch: Scored) -> Tensor:
        losses = row_losses(self.criterion, batch.outputs, batch.targets)
        contrast = row_contrasts(batch.inputs)
        return torch.stack([losses, contrast.to(losses.dtype)], dim=1)

    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        half = (features / (reference + 1e-6)).clamp(0, 2) / 2
        return finite_only(half @ self._weights(half), features)

    def _weights(self, features: Tensor) -> Tensor:
        return features.new_tensor((self.loss_weight, self.contrast_weight))


class LossContrastConstant(LossAndContrast):
    """The original's older rule, kept as a warning: ``0.5 loss/max + 0.3 contrast/max + 0.2``.

    The constant lifts every score to 0.2 or more and one outlier in the batch presses all others
    together, so a threshold that starts below that admits everything. Source: the same file at
    32ff988.
    """

    def __init__(self, criterion: Criterion = cross_entropy_rows) -> None:
        super().__init__(criterion, 0.5, 0.3)

    def reference(self, features: Tensor) -> Tensor:
        return features.amax(0)

    def running(self, reference: Tensor, count: int, features: Tensor) -> Tensor:
        return torch.maximum(reference, features[0])

    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        share = features / (reference + 1e-6)
        return finite_only(share @ self._weights(share) + 0.2, features)
