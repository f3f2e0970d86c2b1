"""Scores: one value per sample; higher means more important.

A score is any callable ``(outputs, targets, inputs) -> [batch]``. A score that needs sample
indices or the model subclasses `ContextScore`. "The original" refers to
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
"""``(outputs, targets, inputs)`` -> one number per row ``[rows]``; higher means more important."""


class Loss:
    """The loss of each row."""

    def __init__(self, criterion: Criterion = cross_entropy_rows) -> None:
        self.criterion = criterion

    def __call__(self, outputs: Any, targets: Any, inputs: Any) -> Tensor:
        return row_losses(self.criterion, outputs, targets)


class ContextScore(ABC):
    """Base class of scores that need the model or the sample indices, or that keep state.

    Override ``score``, and ``state_dict`` and ``load_state_dict`` if values depend on earlier
    batches. A score that needs a second model calls ``batch.forward(model)``, which is counted.

    Attributes:
        needs_index: whether the score keeps per-sample state, which requires indices in the data.
    """

    needs_index: bool = False

    @abstractmethod
    def score(self, batch: Scored) -> Tensor:
        """Scores ``[batch]``, NaN if undefined. Called in eval mode without gradients.

        Raises ``ValueError`` if ``batch`` lacks a required index or model.
        """

    def __call__(self, outputs: Any, targets: Any, inputs: Any) -> Tensor:
        return self.score(Scored(outputs, targets, inputs))

    def state_dict(self) -> dict[str, Any]:
        """State that determines later scores, as plain numbers and lists; may be empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore ``state``."""


def score_rows(score: Score, batch: Scored) -> Tensor:
    """Evaluate ``score``, a function or a `ContextScore`, on ``batch``: ``[batch]``."""
    if isinstance(score, ContextScore):
        return score.score(batch)
    return score(batch.outputs, batch.targets, batch.inputs)


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
    tensor = isinstance(inputs, Tensor)
    if not tensor or not inputs.is_floating_point() or inputs.shape[1:].numel() < 2:
        what = f"{inputs.dtype} {list(inputs.shape)}" if tensor else type(inputs).__name__
        raise ValueError(
            "contrast needs the inputs in one float tensor with at least two values per row, but"
            f" they are {what}: choose score='loss'"
        )
    return inputs.flatten(1).std(dim=1)


class LossAndContrast(RelativeScore):
    """The original's score: ``0.7 * half(loss) + 0.3 * half(contrast)``.

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
    """The original's older score: ``0.5 loss/max + 0.3 contrast/max + 0.2``.

    Retained as a negative example: the constant raises every score to at least 0.2, and an outlier
    compresses all other scores, so a threshold below 0.2 selects all rows. Source: the same file at
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
