"""Batch loss score: per-sample scores computed from mean batch losses only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from astkit.checks import SHARE, check_number
from astkit.gating.policies.infobatch import InfoBatch
from astkit.gating.policy import PolicyCard, Visit


class BatchLossScore(InfoBatch):
    """Runs InfoBatch on ``s = alpha * s + (1 - alpha) * mean loss of the batch``.

    Example::

        Trainer(model, train, policy=BatchLossScore(0.5), epochs=4).run()

    Scores start at 0. In a custom training loop that only has this mean, pass it instead of the
    losses: ``policy.mean(loss, index)`` multiplies it by the mean weight of the batch.

    Args:
        rate: probability of keeping a sample whose score is below the mean, in (0, 1].
        delta: fraction of the epochs in which samples are dropped, in [0, 1].
        alpha: decay of the exponential moving average, in [0, 1).
    """

    card = PolicyCard(
        source="Zhou et al., Batch Loss Score (BLS), CVPR 2026",
        cost="none: skipped samples are not loaded",
        bias="that of InfoBatch; given only mean losses, the mean weight of each batch is applied",
        avoid="if per-sample losses are available: they are more informative",
    )
    unseen = 0.0

    def __init__(
        self, rate: float = 0.5, delta: float = 0.875, alpha: float = 0.7, seed: int = 0
    ) -> None:
        super().__init__(rate, delta, seed)
        self.alpha = check_number("alpha", alpha, SHARE)

    def observe(self, visit: Visit) -> None:
        assert self.losses is not None
        assert visit.index is not None
        mean = visit.losses.mean()
        if mean.isfinite():
            new = self.alpha * self.losses[visit.index] + (1 - self.alpha) * mean
            super().observe(replace(visit, losses=new))

    def mean(
        self, losses: Tensor, index: Tensor, outputs: Any = None, targets: Any = None
    ) -> Tensor:
        """The loss of a batch, 0-dim, from per-row losses or from their mean (0-dim)."""
        losses = losses.expand(len(index)) if losses.ndim == 0 else losses
        return super().mean(losses, index, outputs, targets)
