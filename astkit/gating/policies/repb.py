"""RePB: compares losses within a batch and weights samples by their selection frequency."""

from __future__ import annotations

import torch
from torch import Tensor

from astkit import rng
from astkit.gating.controllers import SHARE, check_number
from astkit.gating.policies.last_loss import check_samples
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection, Visit


class RePB(Policy):
    """Drops samples whose loss was below the mean of its batch, each with probability ``r``.

    A sample skipped in the last epoch is selected again with probability ``1 - r``. In epoch E
    (counted from 1), a sample selected in n of the E epochs has the weight ``E / n``; the loss is
    the mean of the weighted losses of a batch.

    Reconstructed without reference code, with the paper's default window of one batch.

    Args:
        r: probability of skipping a sample that was below the mean or skipped before, in [0, 1).
    """

    card = PolicyCard(
        source="reconstructed from a summary of Zhou et al., Inconsistency Biases in Dynamic Data"
        " Pruning (RePB), ICLR 2026 (OpenReview Zw1Uw7u6Su)",
        cost="none: skipped samples are not loaded",
        bias="corrected only over many epochs: the weights estimate the inverse selection"
        " frequency of a sample",
        avoid="for few epochs: the counts are imprecise, and the first epoch drops no samples",
    )
    needs_index = True
    state = ("low", "counts")
    low: Tensor | None = None
    counts: Tensor | None = None

    def __init__(self, r: float = 0.5, seed: int = 0) -> None:
        self.r, self.seed = check_number("r", r, SHARE), seed

    def plan(self, run: RunInfo) -> Selection:
        if self.low is None or self.counts is None:
            self.low = torch.zeros(run.samples, dtype=torch.bool)  # below the mean, or skipped
            self.counts = torch.zeros(run.samples)
        check_samples(self, self.low, run)
        low, key = self.low[run.rows], (run.seed, "repb", run.epoch, run.round)
        kept = ~low
        kept[low] = rng.uniform(run.rows[low], *key) >= self.r
        self.low[run.rows] = ~kept
        rows = run.rows[kept]
        counts = self.counts[rows] + 1
        self.counts[rows] = counts
        weight = (run.epoch + 1) / counts
        return Selection(rows, weight, normaliser=max(1, len(rows)))

    def observe(self, visit: Visit) -> None:
        assert self.low is not None
        assert visit.index is not None
        losses = visit.losses.double()  # a mean of equal float32 numbers may be above them
        self.low[visit.index] = losses < losses.mean()
