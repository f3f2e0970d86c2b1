"""Cached losses: each round is drawn by the square root of the losses of the last visits."""

from __future__ import annotations

import math

import torch

from astkit import rng
from astkit.gating.controllers import check_rate
from astkit.gating.last_loss import LastLoss, draw_weighted, labels_of_run
from astkit.gating.policy import PolicyCard
from astkit.gating.sampler import RunInfo
from astkit.gating.selection import Selection


class CachedLoss(LastLoss):
    """``rate`` of the samples each epoch, without repeats, in proportion to the root of their loss.

    The loss is that of a sample's last visit, and nothing is scored; a sample without a visit comes
    before all others. An epoch, one iteration of the loader, is a round of ``rate * N`` samples, so
    that ``1 / rate`` epochs cost one pass over the data. With ``guard``, a sample whose loss l
    exceeds ``c = guard * ln(classes)`` is drawn in proportion to ``sqrt(c) * (c / l)**2`` instead:
    a loss far above that of guessing speaks for a wrong label. Source: this kit.

    Args:
        rate: share of the samples that an epoch trains on, in (0, 1].
        guard: in units of the loss of guessing, ln(classes); ``None``: no guard.
        seed: of the draws.

    Raises ``ValueError`` for an impossible rate or guard, and in training for a guard without class
    labels.
    """

    card = PolicyCard(
        law="rate * N samples without repeats, in proportion to the square root of the last loss",
        source="this kit",
        cost="nothing: a sample that is left out is never loaded",
        bias="towards high losses, uncorrected",
        avoid="in long trainings on small data; where labels are wrong, use the guard",
    )

    def __init__(self, rate: float = 0.3, guard: float | None = None, seed: int = 0) -> None:
        if guard is not None and not guard > 0:
            raise ValueError(f"guard is {guard}: give a number above 0, such as 0.8, or None")
        self.rate, self.guard, self.seed = check_rate("rate", rate), guard, seed

    def plan(self, run: RunInfo) -> Selection:
        losses, rows = self.recall(run), len(run.rows)
        weight = losses.clamp_min(0).sqrt()
        if self.guard is not None:
            classes = int(labels_of_run(self, run).max()) + 1
            c = self.guard * math.log(max(2, classes))
            guarded = math.sqrt(c) * (c / losses).square()
            weight = torch.where(losses > c, guarded, weight)
        weight = torch.where(losses.isinf(), 1e30, weight)  # not seen yet
        random = rng.generator(run.seed, "cached_loss", run.epoch, run.round)
        drawn = draw_weighted(weight, max(1, round(self.rate * rows)), random)
        return Selection(run.rows[drawn], candidates=rows, rate=len(drawn) / rows)
