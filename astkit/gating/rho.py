"""RHO-Loss: the rows of a batch that the model could learn and has not learnt yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.gating.controllers import check_rate
from astkit.gating.helper_models import by_sample, choice, isolated, train_models
from astkit.gating.last_loss import check_count
from astkit.gating.policy import Cost, Policy, PolicyCard
from astkit.gating.sample_memory import sample_index
from astkit.gating.scored import Scored
from astkit.gating.selection import Selection


class Rho(Policy):
    """The top ``rate`` of each batch by loss minus holdout loss.

    A sample's holdout loss is that of a model that never saw it. Before training, two copies of the
    model are trained, each on a random half of the data, and score the other half; the losses are
    kept by index. A sample without one counts as difference 0. In a loop of your own, call
    ``policy.prepare(make_model, ScoredBatches(loader))`` first. Source: Mindermann et al.,
    "Prioritized Training on Points that are Learnable, Worth Learning, and not yet Learnt", ICML
    2022, in the form that needs no data beyond the training data. The published holdout models are
    smaller and chosen by their validation loss.

    Args:
        rate: share of each batch to train on, in (0, 1].
        epochs: passes over its half of the data that train each holdout model.
        lr: AdamW's learning rate in them.
        seed: of the halves.

    Raises ``ValueError`` for impossible arguments, and in training without holdout losses.
    """

    card = PolicyCard(
        law="the rows of a batch with the largest loss minus holdout loss",
        source="Mindermann et al., RHO-Loss, ICML 2022",
        cost="one forward pass a candidate row; before training, two models on half of the data"
        " each and one forward pass over all of it",
        bias="towards rows that are learnable and not learnt, uncorrected",
        avoid="in short trainings, where the holdout models cost as much as they save",
    )
    cost = Cost(1.0)
    needs_index = True
    state = ("held",)

    def __init__(self, rate: float = 0.1, epochs: int = 2, lr: float = 1e-3, seed: int = 0) -> None:
        self.rate, self.epochs = check_rate("rate", rate), check_count("epochs", epochs)
        self.lr, self.seed = lr, seed
        self.held: Tensor | None = None  # float32 [samples]; NaN where a sample has none

    def prepare(self, make_model: Callable[[], nn.Module], data: Any) -> None:
        def half(batch: Scored, k: int) -> Tensor:
            index = sample_index(self, batch.index, batch.rows)
            second = rng.uniform(index, self.seed, "rho") < 0.5
            return (second == bool(k)).nonzero().squeeze(1)

        with isolated(self.seed, "rho"):
            models = [make_model(), make_model()]
            train_models(models, data, self.epochs, self.lr, half)
            parts = []
            for batch in data:
                for k, model in enumerate(models):
                    part = batch.take(half(batch, 1 - k))
                    if part.rows:
                        parts.append((part.index, part.losses_of(model)))
        total, visits = by_sample(parts)
        self.held = (total / visits).float()

    def choose(self, batch: Scored) -> Selection:
        if self.held is None:
            raise ValueError(
                "Rho has no holdout losses: call policy.prepare(make_model, ScoredBatches(loader))"
                " before training"
            )
        index = sample_index(self, batch.index, batch.rows)
        known = index < len(self.held)
        held = self.held[index.clamp_max(len(self.held) - 1)].where(known, torch.nan)
        excess = (batch.losses.cpu() - held).nan_to_num(nan=0.0)
        best = excess.topk(max(1, round(self.rate * batch.rows))).indices
        return choice(batch, best)
