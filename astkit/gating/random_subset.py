"""Random subsets: the control that every other policy has to beat."""

from __future__ import annotations

import torch

from astkit import rng
from astkit.gating.controllers import check_rate
from astkit.gating.policy import Policy, PolicyCard
from astkit.gating.sampler import RunInfo
from astkit.gating.selection import Selection


class RandomSubset(Policy):
    """A random share of the data each epoch, each row as often as any other (RS2).

    The shuffled data set is cut into consecutive pieces of ``round(rate * samples)`` rows and
    reshuffled when it is used up, so a row comes back only after all others had their turn. Source:
    Okanovic et al., "Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning",
    ICLR 2024. Nothing is scored and skipped rows are never loaded.

    Args:
        rate: share of the rows that an epoch trains on, in (0, 1].
        seed: of the order.

    Raises ``ValueError`` for a rate outside (0, 1].
    """

    card = PolicyCard(
        law="consecutive pieces of rate * N rows of a shuffled order",
        source="Okanovic et al., Repeated Random Sampling (RS2), ICLR 2024",
        cost="nothing: a row that is left out is never loaded",
        bias="none: every row is drawn equally often",
        avoid="never: it is the control; alone it saves what fewer epochs save",
    )

    def __init__(self, rate: float, seed: int = 0) -> None:
        self.rate = check_rate("rate", rate)
        self.seed = seed

    def plan(self, run: RunInfo) -> Selection:
        """The next ``round(rate * samples)`` rows."""
        samples, size = run.samples, max(1, round(self.rate * run.samples))
        first, left, pieces = run.epoch * size, size, []
        while left:
            shuffle, offset = divmod(first, samples)
            order = rng.permutation(samples, self.seed, "random-subset", shuffle)
            pieces.append(order[offset : offset + left])
            first += len(pieces[-1])
            left -= len(pieces[-1])
        index = torch.cat(pieces)
        return Selection(index, candidates=samples, rate=len(index) / samples)
