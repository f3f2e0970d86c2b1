"""InfoBatch: samples of low loss are dropped at random, and those that stay weigh more."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.gating.last_loss import LastLoss, check_share, ending
from astkit.gating.policy import PolicyCard
from astkit.gating.sampler import RunInfo
from astkit.gating.selection import Selection


class InfoBatch(LastLoss):
    """Drops samples whose last loss is below the mean, each with probability ``r``.

    Those of them that stay weigh ``1 / (1 - r)``, so that the expected gradient is that of all
    samples. A sample without a loss yet stays and is no part of the mean. From epoch
    ``floor(delta * epochs)`` on, everything is trained on with weight 1. Source: Qin et al.,
    "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning", ICLR 2024.

    Args:
        r: probability of dropping a sample whose loss is below the mean, in [0, 1).
        delta: share of the epochs that drop samples, in [0, 1].
        seed: of the draws.

    Raises ``ValueError`` for an impossible ``r`` or ``delta``.
    """

    card = PolicyCard(
        law="samples whose last loss is below the mean are dropped with probability r; the last"
        " 1 - delta of the epochs train on everything",
        source="Qin et al., InfoBatch, ICLR 2024",
        cost="nothing: a sample that is left out is never loaded",
        bias="none: samples below the mean that stay weigh 1 / (1 - r)",
        avoid="in trainings of a few epochs: the first one drops nothing",
    )

    def __init__(self, r: float = 0.5, delta: float = 0.875, seed: int = 0) -> None:
        self.r, self.delta = check_share("r", r), check_share("delta", delta, whole=True)
        self.seed = seed

    def plan(self, run: RunInfo) -> Selection | None:
        known = self.recall(run)
        if ending(run, self.rounds, self.delta):
            return None
        low = known < known[known.isfinite()].mean()  # no row where nothing is known: a mean of NaN
        kept, key = ~low, (run.seed, "infobatch", run.epoch, run.round)
        kept[low] = rng.uniform(run.rows[low], *key) >= self.r
        weight = torch.where(low[kept], 1 / (1 - self.r), 1.0)
        rows = len(run.rows)
        return Selection(run.rows[kept], weight, normaliser=rows, candidates=rows)
