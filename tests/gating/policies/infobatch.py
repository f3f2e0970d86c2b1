"""InfoBatch: rows of low loss are dropped at random, and those that stay weigh more."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from astkit import rng
from astkit.gating import Policy, PolicyCard, RunInfo, Selection, Visit


class InfoBatch(Policy):
    """Drops rows whose last loss is below the mean, each with probability ``r``.

    The others of them weigh ``1 / (1 - r)``, so that the expected gradient is that of all rows.
    Rows without a loss yet are kept. From ``progress >= delta`` on, everything is trained on.
    Source: Qin et al., "InfoBatch", ICLR 2024.

    Args:
        r: probability of dropping a row below the mean, in [0, 1).
        delta: share of training that drops rows.
        seed: of the draws.
    """

    card = PolicyCard(
        law="rows with a last loss below the mean are dropped with probability r",
        source="Qin et al., InfoBatch, ICLR 2024",
        cost="nothing: a row that is left out is never loaded",
        bias="none: rows that stay although below the mean weigh 1 / (1 - r)",
        avoid="in trainings of few epochs: the first one only collects losses",
    )
    needs_index = True
    state = ("losses",)

    def __init__(self, r: float = 0.5, delta: float = 0.875, seed: int = 0) -> None:
        self.r, self.delta, self.seed = r, delta, seed
        self.losses: Tensor | None = None

    def plan(self, run: RunInfo) -> Selection | None:
        if self.losses is None:
            self.losses = torch.full((run.samples,), math.inf)
        if run.progress >= self.delta:
            return None
        known = self.losses[run.rows]
        low = known < known[known.isfinite()].mean()  # never where nothing is known: a mean of NaN
        kept = ~low | (rng.uniform(run.rows, run.seed, "drop", run.epoch, run.round) >= self.r)
        weight = torch.where(low[kept], 1 / (1 - self.r), 1.0)
        rows = len(run.rows)
        return Selection(run.rows[kept], weight, normaliser=rows, candidates=rows)

    def observe(self, visit: Visit) -> None:
        assert self.losses is not None
        assert visit.index is not None
        self.losses[visit.index] = visit.losses
