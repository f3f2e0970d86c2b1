"""Cached losses: samples are drawn in proportion to the square root of their latest loss."""

from __future__ import annotations

import math

import torch

from astkit import rng
from astkit.gating.controllers import ABOVE_0, check_number
from astkit.gating.policies.last_loss import LastLoss, draw_weighted, labels_of_run
from astkit.gating.policy import PolicyCard, RunInfo, Selection


class CachedLoss(LastLoss):
    """Draws ``rate * N`` samples per epoch without replacement, with p proportional to sqrt(loss).

    The loss is the one recorded when the sample was last trained on; there is no scoring pass.
    Samples without a recorded loss are drawn first; ``1 / rate`` epochs cost one pass over the
    data. With ``guard``, a sample whose loss l exceeds ``c = guard * ln(classes)`` gets the weight
    ``sqrt(c) * (c / l)**2``, since a loss far above chance level suggests a wrong label.

    Args:
        guard: loss limit in units of the chance-level loss ln(classes); ``None`` disables it.
    """

    card = PolicyCard(
        source="this package",
        cost="none: skipped samples are not loaded",
        bias="towards samples with a high loss; not corrected",
        avoid="for long training on small data sets; with noisy labels, set `guard`",
    )

    def __init__(self, rate: float = 0.3, guard: float | None = None, seed: int = 0) -> None:
        self.rate, self.seed = check_number("rate", rate), seed
        self.guard = None if guard is None else check_number("guard", guard, ABOVE_0)

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
        return Selection(run.rows[draw_weighted(weight, max(1, round(self.rate * rows)), random)])
