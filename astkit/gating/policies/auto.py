"""Selection that sets itself from the losses; dense training where selection does not pay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from astkit import rng
from astkit.gating.epoch import RunInfo
from astkit.gating.policies.last_loss import LastLoss, draw_weighted
from astkit.gating.policy import PolicyCard, Visit
from astkit.gating.selection import Selection

SHORT, LONG = 12.0, 24.0
"""Epochs: up to `SHORT`, high losses are preferred most; from `LONG` on, not."""
SURE, NOISE = 0.1, 0.05
"""Fraction of the samples that the estimate of wrong labels uses; smallest estimate that counts."""
POWER, LEAST = 4, 0.05
"""Exponent of the trust in a label, and the smallest trust."""


class Auto(LastLoss):
    """Weights samples by difficulty, by trust in their label and by class; needs no settings.

    Each quarter of an epoch draws N / 4 of all N samples without replacement, p proportional to
    ``loss**b * trust**POWER``, with the loss of the sample's latest training step. So an epoch has
    as many steps as in dense training. The first one uses each sample once.

    - *Difficulty*: b = 1/2 in runs of up to `SHORT` epochs, and falls linearly to 0 at `LONG`. The
      length of the run is estimated from the budget spent so far. With repeated samples it is that
      in epochs of the distinct ones.
    - *Trust*, the probability that the label is right: ``max(LEAST, 1 - e / C * exp(loss))`` for C
      classes if a fraction e of the labels is replaced by random ones. By Bayes' rule, since the
      model then gives a label the probability ``exp(-loss) = (1 - e) * q + e / C``, where q is that
      of the true label. e is estimated as the error rate on the `SURE` * N samples of highest
      confidence, times C / (C - 1); below `NOISE` it counts as 0.
    - *Class*: if the class shares of the validation data differ from those of the training data (a
      chi-squared statistic more than 5 standard deviations above its mean), each quarter has those
      of the validation data; a class with too few samples is repeated.

    Where none of the three has an effect, the samples are those of dense training. Data without
    class labels use difficulty alone. Source: this package.
    """

    card = PolicyCard(
        law="as many samples as in dense training, p proportional to sqrt(loss) times the fourth"
        " power of the probability of a right label; class shares of the validation data; long"
        " runs on clean data: all",
        source="this package",
        cost="none: skipped samples are not loaded",
        bias="towards high losses in short runs and towards trusted labels; not corrected",
        avoid="if an unbiased gradient is required",
    )
    rounds = 4
    needs_outputs = True
    needs_distinct = True
    state = ("losses", "confidence", "correct")
    confidence: Tensor | None = None
    correct: Tensor | None = None

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def expected_rows(self, samples: int) -> int:
        return samples

    def plan(self, run: RunInfo) -> Selection | None:
        self.recall(run)
        assert self.losses is not None
        known = self.losses.isfinite()
        if known.float().mean() < 0.9:
            return None
        length = (run.epoch + run.round / self.rounds) / max(run.progress, 1e-9)
        length *= run.samples / (run.distinct or run.samples)
        b = 0.5 * min(1.0, max(0.0, (LONG - length) / (LONG - SHORT)))
        weight = self.losses.clamp_min(0) ** b * self.trust(run) ** POWER
        weight[~known] = 1e30  # not seen yet: first
        shares = class_shift(run)
        if shares is None and bool((weight == 1).all()):
            return None
        random = rng.generator(run.seed, "auto", run.epoch, run.round)
        if shares is None or run.labels is None:
            drawn = draw_weighted(weight, len(run.rows), random)
            drawn = drawn[torch.randperm(len(drawn), generator=random)]
        else:
            drawn = draw_classes(weight, run.labels, shares, len(run.rows), random)
        return Selection(drawn, candidates=len(run.rows), rate=1.0)

    def trust(self, run: RunInfo) -> Tensor | float:
        """Probability that each label is right, ``[samples]``; 1 without wrong labels."""
        if run.labels is None or self.confidence is None or self.correct is None:
            return 1.0
        assert self.losses is not None
        classes = max(2, int(run.labels.max()) + 1)
        sure = self.confidence.topk(max(1, round(SURE * run.samples)), sorted=False).indices
        wrong = float((~self.correct[sure]).float().mean()) * classes / (classes - 1)
        if wrong < NOISE:
            return 1.0
        return (1 - min(1.0, wrong) / classes * self.losses.exp()).clamp(LEAST, 1.0)

    def observe(self, visit: Visit) -> None:
        super().observe(visit)
        if visit.confidence is None or visit.correct is None:
            return
        assert self.losses is not None
        assert visit.index is not None
        if self.confidence is None or self.correct is None:
            self.confidence = torch.zeros(len(self.losses))
            self.correct = torch.zeros(len(self.losses), dtype=torch.bool)
        self.confidence[visit.index] = visit.confidence.float()
        self.correct[visit.index] = visit.correct


def class_shift(run: RunInfo) -> Tensor | None:
    """Class shares of the validation data, float64 ``[classes]``, if the training data differ.

    Classes without a training sample are left out of the shares.
    """
    if run.labels is None or run.target_labels is None or not len(run.target_labels):
        return None
    train = run.labels.bincount(minlength=int(run.target_labels.max()) + 1).double()
    held = run.target_labels.bincount(minlength=len(train)).double()
    held = torch.where(train > 0, held, 0.0)
    expected = train / train.sum() * held.sum()
    present = expected > 0
    statistic = ((held - expected).square() / expected)[present].sum()
    freedom = int(present.sum()) - 1
    if freedom < 1 or statistic <= freedom + 5 * (2 * freedom) ** 0.5:
        return None
    return held / held.sum()


def draw_classes(
    weight: Tensor, labels: Tensor, shares: Tensor, count: int, random: torch.Generator
) -> Tensor:
    """``count`` positions, ``shares [classes]`` of them from each class, drawn by ``weight [n]``.

    Within a class the draw is without replacement, after all of its samples as often as they fit.
    """
    drawn: list[Any] = []
    quotas = largest_remainder(shares * count, count)
    for label, quota in enumerate(quotas.tolist()):
        places = (labels == label).nonzero().squeeze(1)
        if len(places) and quota:
            whole, rest = divmod(quota, len(places))
            drawn += [places.repeat(whole), places[draw_weighted(weight[places], rest, random)]]
    chosen = torch.cat(drawn)
    return chosen[torch.randperm(len(chosen), generator=random)]


def largest_remainder(quotas: Tensor, total: int) -> Tensor:
    """Whole numbers near ``quotas`` that add up to ``total``."""
    whole = quotas.floor()
    missing = total - int(whole.sum())
    whole[(quotas - whole).topk(missing).indices] += 1
    return whole.long()
