"""Base class and helpers of policies that plan from the latest loss of each sample."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from astkit.gating.epoch import RunInfo
from astkit.gating.policy import Policy, Visit, check_samples


class LastLoss(Policy):
    """Stores the latest loss of each sample, from training or scoring."""

    needs_index = True
    state: ClassVar[tuple[str, ...]] = ("losses",)
    unseen: float = math.inf  #: placeholder for samples without a finite loss so far
    losses: Tensor | None = None  #: float32 ``[samples]``, on the CPU, from the first plan on

    def recall(self, run: RunInfo) -> Tensor:
        """Latest losses of the round's candidates, ``[len(run.rows)]``.

        Raises ``ValueError`` if the size of the data set has changed.
        """
        if self.losses is None:
            self.losses = torch.full((run.samples,), self.unseen, dtype=torch.float32)
        check_samples(self, self.losses, run)
        return self.losses[run.rows]

    def observe(self, visit: Visit) -> None:
        assert self.losses is not None
        assert visit.index is not None
        losses = visit.losses.float()
        self.losses[visit.index] = torch.where(losses.isfinite(), losses, self.unseen)


def ending(run: RunInfo, rounds: int, delta: float) -> bool:
    """Whether the epoch index has reached ``floor(delta * epochs)``, estimated from progress."""
    if not run.progress:
        return delta == 0
    epochs = (run.epoch + run.round / rounds) / run.progress
    return run.epoch >= math.floor(delta * epochs + 1e-6)
