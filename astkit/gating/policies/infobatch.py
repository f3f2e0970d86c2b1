"""InfoBatch: drops low-loss samples at random and rescales the remaining ones."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.gating.controllers import PART, SHARE, check_number
from astkit.gating.policies.last_loss import LastLoss, ending
from astkit.gating.policy import PolicyCard, RunInfo, Selection


class InfoBatch(LastLoss):
    """Drops samples whose latest loss is below the mean, each with probability ``r``.

    The remaining ones are weighted by ``1 / (1 - r)``, so that the expected gradient is that of all
    samples. A sample without a recorded loss is kept and excluded from the mean. From epoch
    ``floor(delta * epochs)`` on, all samples are used with weight 1. The weighted losses of an
    epoch are divided by all N samples, in the code of the paper by those that remain.

    Args:
        r: probability of dropping a sample whose loss is below the mean, in [0, 1).
        delta: fraction of the epochs in which samples are dropped, in [0, 1].
    """

    card = PolicyCard(
        source="Qin et al., InfoBatch, ICLR 2024",
        cost="none: skipped samples are not loaded",
        bias="none: remaining samples below the mean are weighted by 1 / (1 - r); divided by all N"
        " samples, which with SGD gives smaller steps than the paper's code",
        avoid="for few epochs: the first one drops no samples",
    )

    def __init__(self, r: float = 0.5, delta: float = 0.875, seed: int = 0) -> None:
        self.r, self.delta = check_number("r", r, SHARE), check_number("delta", delta, PART)
        self.seed = seed

    def plan(self, run: RunInfo) -> Selection | None:
        known = self.recall(run).double()  # a mean of equal float32 numbers may be above them
        if ending(run, self.rounds, self.delta):
            return None
        low = known < known[known.isfinite()].mean()  # if none is known, the mean is NaN
        kept, key = ~low, (run.seed, "infobatch", run.epoch, run.round)
        kept[low] = rng.uniform(run.rows[low], *key) >= self.r
        weight = torch.where(low[kept], 1 / (1 - self.r), 1.0)
        return Selection(run.rows[kept], weight, normaliser=len(run.rows))
