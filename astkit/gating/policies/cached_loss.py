"""Cached losses: samples are drawn in proportion to the square root of their latest loss."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.checks import check_number
from astkit.gating.policies.draws import draw_weighted
from astkit.gating.policies.last_loss import LastLoss
from astkit.gating.policy import PolicyCard, RunInfo, Selection


class CachedLoss(LastLoss):
    """Draws ``rate * N`` samples per epoch without replacement, with p proportional to sqrt(loss).

    Example::

        Trainer(model, train, policy=CachedLoss(0.3), epochs=4).run()

    The loss is the one recorded when the sample was last trained on; there is no scoring pass.
    Samples without a recorded loss are drawn first; ``1 / rate`` epochs cost one pass over the
    data.
    """

    card = PolicyCard(
        source="this package",
        cost="none: skipped samples are not loaded",
        bias="towards samples with a high loss; not corrected",
        avoid="for long training on small data sets, and with noisy labels",
    )

    def __init__(self, rate: float = 0.3, seed: int = 0) -> None:
        self.rate, self.seed = check_number("rate", rate), seed

    def plan(self, run: RunInfo) -> Selection:
        losses, rows = self.recall(run), len(run.rows)
        weight = losses.clamp_min(0).sqrt()
        weight = torch.where(losses.isinf(), 1e30, weight)  # not seen yet
        random = rng.generator(run.seed, "cached_loss", run.epoch, run.round)
        return Selection(run.rows[draw_weighted(weight, max(1, round(self.rate * rows)), random)])
