"""What the model in training finds in rows, by which `Aim` compares training data and target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from astkit import distributed
from astkit.datasets import BatchSource, Loader
from astkit.datasets.batch import Batch
from astkit.datasets.facts import read_alike
from astkit.gating.losses import class_outputs
from astkit.gating.scores import entropy
from astkit.gating.selection import Scored, evaluating


class ModelFeatures:
    """Features of rows of the training or the validation data in the model in training.

    Args:
        model: the model in training.
        source, validation: its training data, and the validation data.
        scorable: gives a batch that is not scored yet; its scoring pass is counted.
    """

    def __init__(
        self,
        model: nn.Module,
        source: BatchSource,
        validation: BatchSource,
        device: torch.device,
        scorable: Callable[[Batch], Scored],
    ) -> None:
        self.model, self.source, self.validation = model, source, validation
        self.device, self.scorable = device, scorable

    def __call__(self, rows: Tensor, of: str = "data") -> Tensor:
        """Features of ``rows`` (int64 ``[n]``), float32 ``[n, d]``.

        They are ``of`` the training "data" or of the "validation" data. Processes share
        the rows, and each is given the features of all of them.
        """
        processes = distributed.world()
        divided = 1 < processes <= len(rows)
        mine = rows[distributed.share(len(rows))] if divided else rows
        batches = self._read(of).batches(0, mine)
        eager = torch.compiler.set_stance("force_eager")  # compiled, it would ignore hooks
        with evaluating(self.model, self.device), eager:
            own = features_of(self.model, map(self.scorable, batches))
        return distributed.pooled(own.flatten()).view(len(rows), -1) if divided else own

    def _read(self, of: str) -> BatchSource:
        """The rows as they are compared: augmentation alone would look like a shift."""
        source = self.source if of == "data" else self.validation
        if isinstance(source, Loader) and isinstance(self.validation, Loader):
            source = source.plain()
            source.collate_fn = self.validation.collate_fn
            if of == "data":
                source.data = self._data
        return source

    @cached_property
    def _data(self) -> Any:
        """The training data, with inputs changed as those of the validation data are."""
        assert isinstance(self.source, Loader)
        assert isinstance(self.validation, Loader)
        return read_alike(self.source.data, self.validation.data)


def features_of(model: nn.Module, batches: Iterator[Scored]) -> Tensor:
    """What ``model`` finds in each row, float32 ``[rows, d + 2]`` on the CPU.

    The d inputs of its last linear layer (of a model without one, its outputs), the loss, and the
    entropy of the predicted classes in nats (0 without classes).
    """
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1:]
    seen: list[Tensor] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for module in last
    ]
    parts = []
    try:
        for batch in batches:
            seen.clear()
            losses = batch.score().losses
            hidden = seen[-1] if seen else batch.outputs
            if len(hidden) < batch.rows:  # evaluated in micro-batches
                hidden = torch.cat(seen)
            if hidden.is_complex():
                hidden = torch.view_as_real(hidden).flatten(-2)
            hidden = hidden.reshape(batch.rows, -1, hidden.shape[-1]).mean(1)  # over tokens
            classes = class_outputs(batch.outputs, batch.targets)
            unsure = torch.zeros_like(losses)
            if classes is not None:
                unsure = entropy(batch.outputs, batch.targets, None)
            columns = [hidden.float(), losses[:, None].float(), unsure[:, None].float()]
            parts.append(torch.cat(columns, 1).cpu())
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(parts)
