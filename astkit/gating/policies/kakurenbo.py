"""KAKURENBO: hides low-loss samples that are classified correctly with high confidence."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from astkit.gating.controllers import PART, SHARE, check_number
from astkit.gating.policies.last_loss import LastLoss
from astkit.gating.policy import PolicyCard, RunInfo, Selection, Visit


class Kakurenbo(LastLoss):
    """Hides low-loss samples whose latest prediction was correct and confident.

    Hidden samples belong to the fraction ``F`` of samples with the lowest latest losses, and their
    latest prediction was correct with a probability of at least ``confidence``. ``F`` is ``hidden``
    times 1, 0.8, 0.6 and 0.4 from 0, 30, 60 and 80 % of training on. While samples are hidden, the
    learning rate is multiplied by ``1 / (1 - F)``. Hidden samples are scored at the end of the
    epoch; those not scored are trained on in the next epoch. In a custom training loop, multiply
    the learning rate by ``sampler.epoch.lr_factor``, score ``sampler.epoch.score_only`` after each
    epoch and call ``policy.observe(Visit(..., trained=False))``.

    Unlike in the paper's code, probabilities are normalised over the classes, not over the batch.

    Args:
        hidden: maximum fraction of the samples to hide, in [0, 1).
        confidence: minimum probability of a confident prediction.
    """

    card = PolicyCard(
        source="Nguyen et al., KAKURENBO, NeurIPS 2023",
        cost="one forward pass per hidden sample at the end of the epoch",
        bias="away from easy samples; not corrected; the learning rate is scaled by 1 / (1 - F)",
        avoid="for short training, in which few samples are classified with high confidence",
    )
    needs_outputs = True
    state: ClassVar[tuple[str, ...]] = ("losses", "sure")
    sure: Tensor | None = None

    def __init__(self, hidden: float = 0.3, confidence: float = 0.7, seed: int = 0) -> None:
        self.hidden, self.seed = check_number("hidden", hidden, SHARE), seed
        self.confidence = check_number("confidence", confidence, PART)

    def plan(self, run: RunInfo) -> Selection:
        losses, rows = self.recall(run), len(run.rows)
        if self.sure is None:
            self.sure = torch.zeros(run.samples, dtype=torch.bool)
        share = self.hidden * (1, 0.8, 0.6, 0.4)[sum(run.progress >= p for p in (0.3, 0.6, 0.8))]
        hide = torch.zeros(rows, dtype=torch.bool)
        hide[losses.topk(int(share * rows + 1e-9), largest=False, sorted=False).indices] = True
        hide &= self.sure[run.rows]
        hidden = run.rows[hide]
        self.sure[hidden] = False  # until it is scored at the end of the round
        factor = 1 / (1 - share) if len(hidden) else 1.0
        return Selection(run.rows[~hide], score_only=hidden, lr_factor=factor)

    def observe(self, visit: Visit) -> None:
        super().observe(visit)
        if visit.correct is None or visit.confidence is None:
            raise ValueError(
                "Kakurenbo hides samples that are classified correctly, but this task has no class"
                " outputs with integer labels: choose another policy, such as 'infobatch'"
            )
        assert self.sure is not None
        self.sure[visit.index] = visit.correct & (visit.confidence >= self.confidence)
