"""KAKURENBO: samples of low loss that are classified correctly with confidence are hidden."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from astkit.gating.last_loss import LastLoss, check_share
from astkit.gating.policy import Cost, PolicyCard, Visit
from astkit.gating.sampler import RunInfo
from astkit.gating.selection import Selection


class Kakurenbo(LastLoss):
    """Leaves out samples of low loss that were last classified correctly with confidence.

    They are taken from the share ``F`` of the samples with the lowest last losses, and their last
    prediction had a probability of ``confidence`` or more. ``F`` is ``hidden`` times 1, 0.8, 0.6
    and 0.4 from 0, 30, 60 and 80 % of training on. While samples are hidden, the learning rate is
    multiplied by ``1 / (1 - F)``. Hidden samples are scored at the end of the epoch; a sample that
    was not scored is trained on in the next epoch. In a loop of your own, multiply the learning
    rate by ``sampler.lr_factor``, and after each epoch score the samples ``sampler.score_only`` and
    call ``policy.observe(Visit(..., trained=False))``.

    Source: Nguyen et al., "KAKURENBO: Adaptively Hiding Samples in Deep Neural Network Training",
    NeurIPS 2023, and its code; there, probabilities are normalised over the batch instead of over
    the classes, which is corrected here.

    Args:
        hidden: largest share of the samples to hide, in [0, 1).
        confidence: smallest probability of a prediction that counts as confident.
        seed: of the sampler's order; the policy draws nothing.

    Raises ``ValueError`` for impossible shares, and in training for a task without classes.
    """

    card = PolicyCard(
        law="of the share F of the samples with the lowest losses, those last classified correctly"
        " with probability 0.7 or more are hidden",
        source="Nguyen et al., KAKURENBO, NeurIPS 2023",
        cost="one forward pass for each hidden sample at the end of the epoch",
        bias="away from easy samples, uncorrected; the learning rate is raised by 1 / (1 - F)",
        avoid="in short trainings, where few samples are classified with confidence",
    )
    needs_outputs = True
    state: ClassVar[tuple[str, ...]] = ("losses", "sure")
    sure: Tensor | None = None

    def __init__(self, hidden: float = 0.3, confidence: float = 0.7, seed: int = 0) -> None:
        self.hidden, self.seed = check_share("hidden", hidden), seed
        self.confidence = check_share("confidence", confidence, whole=True)
        self.cost = Cost(self.hidden)

    def plan(self, run: RunInfo) -> Selection:
        losses, rows = self.recall(run), len(run.rows)
        if self.sure is None:
            self.sure = torch.zeros(run.samples, dtype=torch.bool)
        share = self.hidden * (1, 0.8, 0.6, 0.4)[sum(run.progress >= p for p in (0.3, 0.6, 0.8))]
        hide = torch.zeros(rows, dtype=torch.bool)
        hide[losses.topk(int(share * rows), largest=False, sorted=False).indices] = True
        hide &= self.sure[run.rows]
        kept, hidden = run.rows[~hide], run.rows[hide]
        self.sure[hidden] = False  # until it is scored at the end of the round
        return Selection(
            kept,
            score_only=hidden,
            lr_factor=1 / (1 - share) if len(hidden) else 1.0,
            candidates=rows,
            rate=len(kept) / rows,
        )

    def observe(self, visit: Visit) -> None:
        super().observe(visit)
        if visit.correct is None or visit.confidence is None:
            raise ValueError(
                "Kakurenbo hides samples that are classified correctly, but this task has no class"
                " outputs with integer labels: choose another policy, such as 'infobatch'"
            )
        assert self.sure is not None
        self.sure[visit.index] = visit.correct & (visit.confidence >= self.confidence)
