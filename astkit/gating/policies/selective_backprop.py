"""Selective backpropagation: rows are drawn with a power of their loss percentile."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.checks import PART, check_count, check_number
from astkit.gating.policies.draws import draw_weighted
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Scored, Selection


class SelectiveBackprop(Policy):
    """Draws ``floor(rate * B)`` rows of each batch without replacement, by rank of their loss.

    Example::

        Trainer(model, train, policy=SelectiveBackprop(0.5), epochs=4).run()

    The row of rank j (0 for the lowest of B losses) is drawn with weight
    ``((j + 0.5) / B)**(1 / rate - 1)``. Between ``start`` and ``end``, every ``interrupt``-th batch
    of an epoch is trained on in full without scoring, as are all batches outside that interval. In
    a custom loop without ``policy.sampler``, it is every ``interrupt``-th batch of the run. The
    defaults are those of Composer's SelectiveBackprop.

    Args:
        start, end: fractions of training between which rows are selected.
        interrupt: interval, in batches, between batches trained on in full; 0 disables it.

    Attributes:
        progress: fraction of training completed. Updated by the `Trainer` and ``policy.sampler``
            every tenth of an epoch; in other loops, set it.
    """

    card = PolicyCard(
        source="Jiang et al., Selective-Backprop, 2019; the rank law is Composer's",
        cost="one forward pass per candidate row of the batches with selection",
        bias="towards high losses; not corrected",
        avoid="with noisy labels, or if a forward pass takes a third of a step",
    )
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
        self.rate, self.seed = check_number("rate", rate), seed
        self.start = check_number("start", start, PART)
        self.end = check_number("end", end, PART)
        self.interrupt = check_count("interrupt", interrupt, least=0)
        self.progress: float | None = None
        self.batch = self.draws = 0  # batches of this epoch, and selections of the run

    def plan(self, run: RunInfo) -> None:
        """Selects all rows; stores the progress."""
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
        order = batch.score().losses.cpu().argsort(stable=True)
        percentile = (torch.arange(batch.rows, dtype=torch.float64) + 0.5) / batch.rows
        random = rng.generator(self.seed, "selective_backprop", self.draws)
        count = max(1, int(self.rate * batch.rows + 1e-9))
        drawn = draw_weighted(percentile ** (1 / self.rate - 1), count, random)
        return batch.select(order[drawn])

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
