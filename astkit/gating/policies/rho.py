"""RHO-Loss: selects the rows with the largest reducible holdout loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.gating.controllers import check_count, check_number
from astkit.gating.policies.helper_models import by_sample, isolated, train_models
from astkit.gating.policy import Policy, PolicyCard, Scored, Selection
from astkit.gating.scores import sample_index


class Rho(Policy):
    """Selects the top fraction ``rate`` of each batch by loss minus holdout loss.

    The holdout loss is that of a model not trained on the sample. Before training, two copies of
    the model are trained, each on a random half of the data, and score the other half; losses are
    stored by index. Without a holdout loss, the difference is 0. In a custom training loop, call
    ``policy.prepare(make_model, ScoredBatches(loader))`` first. This is the paper's variant without
    additional holdout data; its holdout models are smaller and selected by validation loss.

    Args:
        epochs: training epochs of each holdout model on its half.
        lr: learning rate of AdamW for the holdout models.
    """

    card = PolicyCard(
        source="Mindermann et al., RHO-Loss, ICML 2022",
        cost="one forward pass per candidate row; before training, two models on half of the data"
        " each and one forward pass over the data",
        bias="towards samples that are learnable and not yet learnt; not corrected",
        avoid="for short training, if the holdout models cost as much as they save",
    )
    needs_index = True
    state = ("held",)

    def __init__(self, rate: float = 0.1, epochs: int = 2, lr: float = 1e-3, seed: int = 0) -> None:
        self.rate, self.epochs = check_number("rate", rate), check_count("epochs", epochs)
        self.lr, self.seed = lr, seed
        self.held: Tensor | None = None  # float32 [samples]; NaN if a sample has none

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
        self.held = by_sample(parts, self.lr)

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
        return batch.select(best)
