"""RHO-Loss: the rows of a batch that the model could learn and has not learnt yet."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from astkit.gating import Cost, Policy, PolicyCard, Scored, Selection


class Rho(Policy):
    """The top share of each batch by loss minus the loss of a holdout model.

    The holdout model is trained before the run. Source: Mindermann et al., "Prioritized Training
    on Points that are Learnable, Worth Learning, and not yet Learnt", ICML 2022, who train it on
    data that are held out.

    Args:
        rate: share of each batch that is trained on.
        epochs: passes that train the holdout model.
        lr: AdamW's learning rate in them.
        holdout: batches to train it on, as `ScoredBatches`; by default the training data.
    """

    card = PolicyCard(
        law="the rows with the largest difference of loss and a holdout model's loss",
        source="Mindermann et al., RHO-Loss, ICML 2022",
        cost="a forward pass of the model and one of the holdout model, which is trained first",
        bias="towards rows that are learnable and not learnt, uncorrected",
        avoid="in short trainings, where the holdout model costs as much as it saves",
    )
    cost = Cost(1.0, 1.0)

    def __init__(
        self, rate: float = 0.5, epochs: int = 2, lr: float = 1e-2, holdout: Any = None
    ) -> None:
        self.rate, self.epochs, self.lr, self.holdout = rate, epochs, lr, holdout
        self._model: nn.Module | None = None
        self._saved: Mapping[str, Any] = {}

    def prepare(self, make_model: Callable[[], nn.Module], data: Any) -> None:
        self._model = make_model()
        optimizer = torch.optim.AdamW(self._model.parameters(), self.lr)
        for _ in range(self.epochs):
            for batch in data if self.holdout is None else self.holdout:
                batch.train(self._model, optimizer)

    def choose(self, batch: Scored) -> Selection:
        if self._model is None:  # resumed
            self._model = copy.deepcopy(batch.model)
            self._model.load_state_dict(self._saved)  # type: ignore[union-attr]
        excess = batch.losses - batch.losses_of(self._model)  # type: ignore[arg-type]
        best = excess.topk(max(1, round(self.rate * batch.rows))).indices
        return Selection(best, candidates=batch.rows, rate=len(best) / batch.rows)

    def state_dict(self) -> dict[str, Any]:
        weights = self._saved if self._model is None else self._model.state_dict()
        return {**super().state_dict(), "holdout": dict(weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._model, self._saved = None, state["holdout"]
