"""InfoBatch: drops low-loss samples at random and rescales the remaining ones."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.checks import PART, check_number
from astkit.gating.policies.last_loss import LastLoss, ending
from astkit.gating.policy import PolicyCard, RunInfo, Selection


class InfoBatch(LastLoss):
    """Drops samples whose latest loss is below the mean, each but with probability ``rate``.

    Example::

        Trainer(model, train, policy=InfoBatch(0.5), epochs=4).run()

    The remaining ones are weighted by ``1 / rate``, so that the expected gradient is that of all
    samples. A sample without a recorded loss is kept and excluded from the mean. From epoch
    ``floor(delta * epochs)`` on, all samples are used with weight 1. The weighted losses of an
    epoch are divided by all N samples, in the code of the paper by those that remain.

    Args:
        rate: probability of keeping a sample whose loss is below the mean, in (0, 1].
        delta: fraction of the epochs in which samples are dropped, in [0, 1].
    """

    card = PolicyCard(
        source="Qin et al., InfoBatch, ICLR 2024",
        cost="none: skipped samples are not loaded",
        bias="none: remaining samples below the mean are weighted by 1 / rate; divided by all N"
        " samples, which with SGD gives smaller steps than the paper's code",
        avoid="for few epochs: the first one drops no samples",
    )

    def __init__(self, rate: float = 0.5, delta: float = 0.875, seed: int = 0) -> None:
        self.rate, self.delta = check_number("rate", rate), check_number("delta", delta, PART)
        self.seed = seed

    def expected_rows(self, samples: int) -> int:
        """``samples``: how many have a loss below the mean is not known."""
        return samples

    def plan(self, run: RunInfo) -> Selection | None:
        known = self.recall(run).double()  # a mean of equal float32 numbers may be above them
        if ending(run, self.rounds, self.delta):
            return None
        low = known < known[known.isfinite()].mean()  # if none is known, the mean is NaN
        kept, key = ~low, (run.seed, "infobatch", run.epoch, run.round)
        kept[low] = rng.uniform(run.rows[low], *key) >= 1 - self.rate
        weight = torch.where(low[kept], 1 / self.rate, 1.0)
        return Selection(run.rows[kept], weight, normaliser=len(run.rows))
