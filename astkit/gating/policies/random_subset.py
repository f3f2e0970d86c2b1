"""Random subsets: the baseline for all other policies."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.checks import check_number
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection


class RandomSubset(Policy):
    """Trains on a random fraction of the data per epoch, without replacement across epochs (RS2).

    Example::

        Trainer(model, train, policy=RandomSubset(0.25), epochs=4).run()

    The shuffled data set is split into consecutive parts of ``round(rate * samples)`` rows and
    reshuffled once exhausted, so a row repeats only after all others were drawn.
    """

    card = PolicyCard(
        source="Okanovic et al., Repeated Random Sampling (RS2), ICLR 2024",
        cost="none: skipped samples are not loaded",
        bias="none: every row is drawn equally often",
        avoid="as a speed-up: it saves as much as training for fewer epochs",
    )

    def __init__(self, rate: float, seed: int = 0) -> None:
        self.rate, self.seed = check_number("rate", rate), seed

    def plan(self, run: RunInfo) -> Selection:
        samples, size = run.samples, max(1, round(self.rate * run.samples))
        first, left, pieces = run.epoch * size, size, []
        while left:
            shuffle, offset = divmod(first, samples)
            order = rng.permutation(samples, self.seed, "random-subset", shuffle)
            pieces.append(order[offset : offset + left])
            first += len(pieces[-1])
            left -= len(pieces[-1])
        return Selection(torch.cat(pieces))
