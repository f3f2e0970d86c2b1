"""Selective backpropagation: high losses of a batch are drawn by a power of their rank."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.gating.controllers import check_rate
from astkit.gating.helper_models import choice
from astkit.gating.last_loss import check_count, check_share, draw_weighted
from astkit.gating.policy import Cost, Policy, PolicyCard
from astkit.gating.sampler import RunInfo
from astkit.gating.scored import Scored
from astkit.gating.selection import Selection


class SelectiveBackprop(Policy):
    """``floor(rate * B)`` rows of each batch, drawn without repeats by the rank of their loss.

    The row at rank j of B, counted from 0 and from the lowest loss, is drawn in proportion to
    ``((j + 0.5) / B)**(1 / rate - 1)``. Between ``start`` and ``end`` of training every
    ``interrupt``-th batch of an epoch, and outside of them every batch, is trained on whole and not
    scored. Sources: Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers"
    (2019), in the form of Composer's SelectiveBackprop, whose settings are the defaults.

    Args:
        rate: share of a batch to train on, in (0, 1].
        start, end: shares of training between which rows are selected.
        interrupt: every how many batches one is trained on whole; 0 for none.
        seed: of the draws.

    Attributes:
        progress: share of training that is over. The `Trainer` and ``policy.sampler`` keep it up to
            date, tenth by tenth of an epoch; in another loop, set it.

    Raises ``ValueError`` for impossible arguments, and in training where ``progress`` is not known.
    """

    card = PolicyCard(
        law="floor(rate * B) rows of a batch by rank of loss, p ~ percentile**(1 / rate - 1)",
        source="Jiang et al., Selective-Backprop, 2019; the rank law is Composer's",
        cost="one forward pass a candidate row of a batch that is selected from",
        bias="towards high losses, uncorrected",
        avoid="where labels are wrong, or a forward pass is a third of a step",
    )
    cost = Cost(1.0)
    rounds = 10
    state = ("progress", "batch", "draws")

    def __init__(
        self,
        rate: float = 0.5,
        start: float = 0.5,
        end: float = 0.9,
        interrupt: int = 2,
        seed: int = 0,
    ) -> None:
        self.rate, self.seed = check_rate("rate", rate), seed
        self.start = check_share("start", start, whole=True)
        self.end = check_share("end", end, whole=True)
        self.interrupt = check_count("interrupt", interrupt, least=0)
        self.progress: float | None = None
        self.batch = self.draws = 0  # batches of this epoch, and selections of the run

    def plan(self, run: RunInfo) -> None:
        """All rows; keeps the progress."""
        self.progress = run.progress
        if run.round == 0:
            self.batch = 0

    def expected_rows(self, samples: int) -> int:
        return samples

    def choose(self, batch: Scored) -> Selection | None:
        self.batch += 1
        if not self._selecting():
            return None
        self.draws += 1
        order = batch.losses.cpu().argsort(stable=True)
        percentile = (torch.arange(batch.rows, dtype=torch.float64) + 0.5) / batch.rows
        random = rng.generator(self.seed, "selective_backprop", self.draws)
        count = max(1, int(self.rate * batch.rows))
        drawn = draw_weighted(percentile ** (1 / self.rate - 1), count, random)
        return choice(batch, order[drawn])

    def _selecting(self) -> bool:
        if self.start > 0 or self.end < 1:
            if self.progress is None:
                raise ValueError(
                    f"SelectiveBackprop selects from {self.start} to {self.end} of training, but"
                    " nothing says how far it is: set policy.progress, let the DataLoader use"
                    " sampler=policy.sampler(data, epochs=...), or give start=0, end=1"
                )
            if not self.start <= self.progress < self.end:
                return False
        return not self.interrupt or self.batch % self.interrupt != 0
