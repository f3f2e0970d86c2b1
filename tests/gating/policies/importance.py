"""Importance sampling: rows are drawn as often as their losses are large, and weigh less then."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from astkit import rng
from astkit.gating import Policy, PolicyCard, RunInfo, Selection, Visit


class ImportanceSampling(Policy):
    """Draws rows with repeats, in proportion ``p`` to their last loss; weights are ``1 / (N p)``.

    Divided by the number of draws, the expected gradient is that of all N rows. A row without a
    loss yet counts as average. The draws are systematic: row i comes ``draws * p_i`` times, rounded
    up or down at random. Source: Katharopoulos and Fleuret, "Not All Samples Are Created Equal",
    ICML 2018.

    Args:
        rate: draws over candidates, above 0.
        uniform: share of ``p`` that is the same for all rows; no weight exceeds its inverse.
        seed: of the draws.
    """

    card = PolicyCard(
        law="rate * N draws with repeats, with probability proportional to the last loss",
        source="Katharopoulos and Fleuret, Not All Samples Are Created Equal, ICML 2018",
        cost="nothing: a row that is left out is never loaded",
        bias="none: draws are weighted by 1 / (N p)",
        avoid="where labels are wrong: such rows are drawn most often",
    )
    needs_index = True
    state = ("losses",)

    def __init__(self, rate: float = 0.5, uniform: float = 0.1, seed: int = 0) -> None:
        self.rate, self.uniform, self.seed = rate, uniform, seed
        self.losses: Tensor | None = None

    def plan(self, run: RunInfo) -> Selection:
        if self.losses is None:
            self.losses = torch.full((run.samples,), math.inf)
        known = self.losses[run.rows]
        seen = known.isfinite()
        mean = known[seen].double().mean()
        size = torch.where(seen, known / mean, 1.0) if mean > 0 else torch.ones(len(known))
        n, draws = len(run.rows), max(1, round(self.rate * len(run.rows)))
        p = size.double().mul_((1 - self.uniform) / size.sum()).add_(self.uniform / n)
        random = rng.generator(run.seed, "draw", run.epoch, run.round)
        ends = p.cumsum(0)
        ends = ends.mul_(draws / ends[-1]).add_(torch.rand((), generator=random)).floor_().long()
        drawn = torch.arange(n).repeat_interleave(ends.diff(prepend=ends.new_zeros(1)))
        drawn = drawn[torch.randperm(len(drawn), generator=random)]
        weight = (1 / (n * p)).float()[drawn]
        return Selection(run.rows[drawn], weight, normaliser=draws, candidates=n)

    def observe(self, visit: Visit) -> None:
        assert self.losses is not None
        assert visit.index is not None
        self.losses[visit.index] = visit.losses
