"""Proxy top-k: trains on the rows with the highest losses under a small proxy model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from astkit import rng
from astkit.gating.controllers import check_count, check_number
from astkit.gating.policies.helper_models import check_finite
from astkit.gating.policy import Policy, PolicyCard, Scored, Selection


class ProxyTopK(Policy):
    """Trains on the fraction ``rate`` of each batch with the largest losses of a proxy model.

    The proxy scores each augmented batch and trains on the selected rows of one batch in ``every``.
    As published, the loss is the sum over the selected rows at the learning rate of the full batch:
    weights are 1 and the sum is divided by the batch size. There, the proxy scores with batch
    statistics, and both models share a triangular learning rate schedule; here it scores in eval
    mode and trains with AdamW at a constant learning rate.

    Args:
        proxy: a small model for the same inputs; by default a copy of the trained model, which
            costs as much as the model itself.
        every: interval, in batches, between optimizer steps of the proxy.
        lr: learning rate of AdamW for the proxy.
        seed: random seed of the proxy, for example for dropout.
    """

    state = ("batches",)
    card = PolicyCard(
        source="Keller Jordan, airbench96_faster (cifar10-airbench), 2024",
        cost="one proxy forward pass per candidate row, and 3 * rate / every for its training",
        bias="towards high losses of the proxy; not corrected; the loss is the sum over the"
        " selected rows divided by the batch size",
        avoid="with noisy labels, or if the proxy is not much smaller than the model",
    )

    def __init__(
        self,
        rate: float = 0.5,
        proxy: nn.Module | None = None,
        every: int = 4,
        lr: float = 1e-3,
        seed: int = 0,
    ) -> None:
        self.rate, self.proxy = check_number("rate", rate), proxy
        self.every = check_count("every", every)
        self.lr, self.seed = lr, seed
        self.batches = 0
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._saved: Mapping[str, Any] | None = None

    def choose(self, batch: Scored) -> Selection:
        model, optimizer = self._helper(batch)
        number, self.batches = self.batches, self.batches + 1
        losses = batch.losses_of(model)
        best = losses.topk(max(1, round(self.rate * batch.rows))).indices
        if number % self.every == 0:
            check_finite(losses, self.lr)
            with rng.isolated(batch.device, self.seed, "proxy_topk", number):
                batch.take(best).train(model, optimizer)
        return batch.select(best, normaliser=batch.rows)

    def _helper(self, batch: Scored) -> tuple[nn.Module, torch.optim.Optimizer]:
        if self._model is None or self._optimizer is None:
            source = self.proxy if self.proxy is not None else batch.model
            assert source is not None
            self._model = copy.deepcopy(source).to(batch.device)
            self._optimizer = torch.optim.AdamW(self._model.parameters(), self.lr)
            if self._saved is not None:
                self._model.load_state_dict(self._saved["model"])
                self._optimizer.load_state_dict(self._saved["optimizer"])
        return self._model, self._optimizer

    def state_dict(self) -> dict[str, Any]:
        saved = self._saved
        if self._model is not None and self._optimizer is not None:
            saved = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return {**super().state_dict(), "helper": None if saved is None else copy.deepcopy(saved)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._model, self._optimizer = None, None
        # a torch optimizer keeps the tensors that it is given
        self._saved = copy.deepcopy(state["helper"])
