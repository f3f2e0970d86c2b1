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
    """The loss of each row."""

    def __init__(self, criterion: Criterion = cross_entropy_rows) -> None:
        self.criterion = criterion

    def __call__(self, outputs: Any, targets: Any, inputs: Any) -> Tensor:
        return row_losses(self.criterion, outputs, targets)


class ContextScore(ABC):
    """A score that needs the model or the samples' indices, or that has a state.

    Override ``score``; ``settled`` to learn from decisions; the two methods for the state where
    values depend on earlier batches.

    Attributes:
        extra_forwards: forward passes a sample beyond the model's own; the trainers count them.
        needs_index: whether the score remembers samples, so that data must provide indices.
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
        """Called after a decision: of the samples ``index [batch]``, rows ``chosen`` train."""

    def state_dict(self) -> dict[str, Any]:
        """What later scores depend on, as plain numbers and lists; empty if nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Continue from ``state``."""


def score_rows(score: Score, batch: Scored) -> Tensor:
    """``score`` of ``batch``, ``[batch]``, whichever kind of score it is."""
    if isinstance(score, ContextScore):
        return score.score(batch)
    return score(batch.outputs, batch.targets, batch.inputs)


class RelativeScore(ContextScore):
    """A score that compares features of a row with a reference computed from the whole batch.

    Sample-by-sample training, which has no batch, uses a running reference instead.
    """

    @abstractmethod
    def features(self, batch: Scored) -> Tensor:
        """Raw features, ``[batch, features]``; each row's depend on that row alone."""

    @abstractmethod
    def reference(self, features: Tensor) -> Tensor:
        """What a batch's features are compared with, ``[features]``."""

    @abstractmethod
    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        """Scores ``[batch]`` from features and reference; NaN where a feature is not finite."""

    @abstractmethod
    def running(self, reference: Tensor, count: int, features: Tensor) -> Tensor:
        """The reference of ``count`` rows, updated with a row's ``features [1, features]``."""

    def score(self, batch: Scored) -> Tensor:
        features = self.features(batch)
        finite = features[features.isfinite().all(1)]  # one NaN would spoil the score of every row
        return self.combine(features, self.reference(finite if len(finite) else features))


class MeanRelative(RelativeScore):
    """A score that compares features with their mean, of the batch or of the rows before."""

    def reference(self, features: Tensor) -> Tensor:
        return features.mean(0)

    def running(self, reference: Tensor, count: int, features: Tensor) -> Tensor:
        return reference + (features[0] - reference) / (count + 1)


def finite_only(scores: Tensor, features: Tensor) -> Tensor:
    """``scores [batch]``, NaN where a feature is not finite."""
    return scores.masked_fill(~features.isfinite().all(1), math.nan)


def contrast(outputs: Any, targets: Any, inputs: Any) -> Tensor:
    """The standard deviation (unbiased) over all values of each row of ``inputs [batch, ...]``.

    It does not depend on the model, so alone it always chooses the same samples: use it in
    combinations. Source: the input term of the original's ``_compute_batch_significance``.

    Raises ``ValueError`` unless the inputs are one float tensor with at least two values a row.
    """
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs[0].numel() < 2:
        tensor = isinstance(inputs, Tensor)
        what = f"{inputs.dtype} {list(inputs.shape)}" if tensor else type(inputs).__name__
        raise ValueError(
            "contrast needs the inputs in one float tensor with at least two values a row, but"
            f" they are {what}: choose score='loss'"
        )
    return inputs.flatten(1).std(dim=1)


class LossAndContrast(MeanRelative):
    """The original's rule: ``0.7 * half(loss) + 0.3 * half(contrast)``.

    ``half(v) = clamp(v / (batch mean of v + 1e-6), 0, 2) / 2``; contrast as in `contrast`. Source:
    ``_compute_batch_significance``.
    """

    weights: tuple[float, float] = (0.7, 0.3)

    def __init__(self, criterion: Criterion = cross_entropy_rows) -> None:
        self.criterion = criterion

    def features(self, batch: Scored) -> Tensor:
        losses = row_losses(self.criterion, batch.outputs, batch.targets)
        contrasts = contrast(batch.outputs, batch.targets, batch.inputs)
        return torch.stack([losses, contrasts.to(losses.dtype)], dim=1)

    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        half = (features / (reference + 1e-6)).clamp(0, 2) / 2
        return finite_only(half @ half.new_tensor(self.weights), features)


class LossContrastConstant(LossAndContrast):
    """The original's older rule, kept as a warning: ``0.5 loss/max + 0.3 contrast/max + 0.2``.

    The constant lifts every score to 0.2 or more, and one outlier in the batch compresses all other
    scores, so a threshold that starts below that admits everything. Source: the same file at
    32ff988.
    """

    weights = (0.5, 0.3)

    def reference(self, features: Tensor) -> Tensor:
        return features.amax(0)

    def running(self, reference: Tensor, count: int, features: Tensor) -> Tensor:
        return torch.maximum(reference, features[0])

    def combine(self, features: Tensor, reference: Tensor) -> Tensor:
        share = features / (reference + 1e-6)
        return finite_only(share @ share.new_tensor(self.weights) + 0.2, features)
