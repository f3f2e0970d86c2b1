"""Selection before loading: a sampler names the rows of an epoch, and only those are loaded."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from astkit import rng
from astkit.gating.controllers import check_rate
from astkit.gating.selection import Selection, everything


class Sampler(Protocol):
    """Chooses the rows of each epoch, in the order in which they are visited."""

    def select(self, epoch: int, num_samples: int) -> Selection:
        """The rows of ``epoch`` out of ``num_samples``, with weights, as a `Selection`."""

    def observe(self, index: Tensor, losses: Tensor) -> None:
        """Told after each step the rows ``index [n]`` that were trained on, and ``losses [n]``."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that later selections depend on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""


class RandomSubset:
    """A random share of the data each epoch, each row as often as any other (RS2).

    The shuffled data set is cut into consecutive pieces of ``round(rate * num_samples)`` rows and
    reshuffled when it is used up, so a row comes back only after all others had their turn. Source:
    Okanovic et al., "Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning",
    ICLR 2024. Nothing is scored and skipped rows are never loaded.

    Raises ``ValueError`` for a rate outside (0, 1].
    """

    def __init__(self, rate: float, seed: int = 0) -> None:
        self.rate = check_rate("rate", rate)
        self.seed = seed

    def select(self, epoch: int, num_samples: int) -> Selection:
        size = max(1, round(self.rate * num_samples))
        first = epoch * size
        pieces = []
        while size:
            shuffle, offset = divmod(first, num_samples)
            order = rng.permutation(num_samples, self.seed, "random-subset", shuffle)
            pieces.append(order[offset : offset + size])
            first += len(pieces[-1])
            size -= len(pieces[-1])
        index = torch.cat(pieces)
        return everything(index, len(index) / num_samples, num_samples)

    def observe(self, index: Tensor, losses: Tensor) -> None:
        """Random selection learns nothing from losses."""

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rate, self.seed = state["rate"], state["seed"]
