"""RHO-Loss: selects the rows with the largest reducible holdout loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from astkit.checks import check_number
from astkit.gating.policies.given import check_cost, check_length, check_values
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Scored, Selection


class Rho(Policy):
    """Selects the top fraction ``rate`` of each batch by loss minus holdout loss.

    Example::

        losses = torch.rand(256)  # of each row, by a model that was not trained on it
        Trainer(model, train, policy=Rho(losses, rate=0.1, cost=0.0), epochs=4).run()

    Args:
        holdout_losses: ``[samples]``, the loss of each sample under a model that was not trained
            on it, such as one trained on the other half of the data. Where one is not finite, the
            difference is 0.
        cost: FLOPs that computing them took; without it, a comparison gives no verdict.
    """

    card = PolicyCard(
        source="Mindermann et al., RHO-Loss, ICML 2022",
        cost="one forward pass per candidate row; before training, that of the holdout losses",
        bias="towards samples that are learnable and not yet learnt; not corrected",
        avoid="for short training, if the holdout losses cost as much as they save",
    )
    needs_index = True

    def __init__(self, holdout_losses: Any, rate: float = 0.1, cost: float | None = None) -> None:
        self.holdout_losses = check_values("holdout_losses", holdout_losses)
        self.rate, self.cost = check_number("rate", rate), check_cost(cost)

    def check(self, run: RunInfo) -> None:
        check_length("holdout_losses", self.holdout_losses, run.samples)

    def choose(self, batch: Scored) -> Selection:
        assert batch.index is not None
        index, known = batch.index.cpu(), len(self.holdout_losses)
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < known:
            raise ValueError(
                f"holdout_losses has {known} numbers, but a batch holds the rows {int(index.min())}"
                f" to {int(index.max())}: give one a row, in the order of the data set"
            )
        excess = excess_losses(batch.score().losses.cpu(), self.holdout_losses[index])
        return batch.select(excess.topk(max(1, round(self.rate * batch.rows))).indices)


def excess_losses(losses: Tensor, held: Tensor) -> Tensor:
    """Losses minus holdout losses, ``[rows]``; 0 where these are not finite."""
    return torch.where(held.isfinite(), losses - held, 0.0)
