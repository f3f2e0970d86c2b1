"""A fixed part of the data, by scores that were computed before training."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from astkit.checks import check_choice, check_number
from astkit.gating.policies.given import check_cost, check_finite, check_length, check_values
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection

Keep = Literal["highest", "lowest", "middle"]


class Subset(Policy):
    """Trains on the fraction ``rate`` of samples with the highest, lowest or middle scores.

    Example::

        scores = torch.rand(256)  # one a row
        Trainer(model, train, policy=Subset(scores, rate=0.5, cost=0.0), epochs=4).run()

    Args:
        scores: one number a sample, ``[samples]``, such as EL2N or how often it was forgotten.
        keep: "highest", "lowest" or "middle".
        cost: FLOPs that computing the scores took; without it, a comparison gives no verdict.
    """

    card = PolicyCard(
        source="such as Paul, Ganguli and Dziugaite, Deep Learning on a Data Diet, NeurIPS 2021",
        cost="that of the scores, before training; skipped samples are not loaded",
        bias="towards the kept scores, in all epochs; not corrected",
        avoid="if the scores say nothing of the target, or a shorter run on all samples costs less",
    )

    def __init__(
        self, scores: Any, rate: float, keep: Keep = "highest", cost: float | None = None
    ) -> None:
        self.scores = check_finite("scores", check_values("scores", scores))
        self.rate, self.cost = check_number("rate", rate), check_cost(cost)
        check_choice("keep", keep, get_args(Keep))
        self.keep = keep

    def plan(self, run: RunInfo) -> Selection:
        check_length("scores", self.scores, run.samples)
        return Selection(run.rows[keep_mask(self.scores, self.rate, self.keep)[run.rows]])


def keep_mask(scores: Tensor, rate: float, keep: Keep) -> Tensor:
    """Whether each sample is among the fraction ``rate`` to keep, bool ``[samples]``.

    Of equal scores, the samples that come first count as lower.
    """
    samples, count = len(scores), max(1, round(rate * len(scores)))
    first = {"lowest": 0, "middle": (samples - count) // 2, "highest": samples - count}[keep]
    mask = torch.zeros(samples, dtype=torch.bool)
    mask[scores.argsort(stable=True)[first : first + count]] = True
    return mask
