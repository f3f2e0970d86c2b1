"""A batch for policies and scores; outputs and losses are computed on first access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.batch import Batch, as_batch, call, tensors
from astkit.gating.losses import Criterion, class_outputs, cross_entropy_rows, row_losses
from astkit.gating.selection import Selection

Forward = Callable[[nn.Module, Batch], Any]


@contextmanager
def evaluating(model: nn.Module | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run a block in eval mode without gradients; restore module modes and the RNG state.

    BatchNorm statistics do not change; modules already in eval mode stay in eval mode.
    """
    training = [] if model is None else [module for module in model.modules() if module.training]
    try:
        for module in training:  # not by eval(), which a module may override with a lasting effect
            module.training = False
        with torch.no_grad(), rng.isolated(device):
            yield
    finally:
        for module in training:
            module.training = True
        if torch.is_autocast_enabled(torch.device(device).type):
            torch.clear_autocast_cache()  # before torch 2.10, its weights have no gradients


class Scored:
    """A batch whose outputs and losses are evaluated on first access.

    Reading ``outputs`` or ``losses`` runs one forward pass of ``model`` in eval mode without
    gradients; the trainer counts its cost. `forward` does the same for a second model, and `train`
    trains one.

    Args:
        outputs: model outputs, if already known.
        targets: second argument of the criterion.
        inputs: model inputs.
        index: int64 ``[rows]``, data set indices; ``None`` if unknown.
        model: the model in training; ``None`` if unknown.
        criterion: returns one loss per row.
        run: computes the outputs of a model, in training too; default ``model(inputs)``.
        book: called as ``book(model, batch, trained)`` for each pass of a second model.

    Attributes:
        read: whether the forward pass of ``model`` was run.
        apart: whether that pass is counted by ``book``, since the batch is not the trainer's own.
    """

    def __init__(
        self,
        outputs: Any,
        targets: Any,
        inputs: Any,
        index: Tensor | None = None,
        model: nn.Module | None = None,
        *,
        criterion: Criterion = cross_entropy_rows,
        run: Forward | None = None,
        book: Callable[[nn.Module, Batch, bool], None] | None = None,
    ) -> None:
        self.targets, self.inputs, self.index, self.model = targets, inputs, index, model
        self.criterion, self.read = criterion, False
        self._outputs, self._run, self._book = outputs, run or _run, book
        self._losses: Tensor | None = None
        self._scoring = False
        self.apart = False

    @property
    def batch(self) -> Batch:
        """Index, inputs and targets."""
        return Batch(self.index, self.inputs, self.targets)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.batch.rows

    @property
    def device(self) -> torch.device:
        """Device of the inputs, or of the targets if the inputs hold no tensor, such as texts."""
        found = tensors((self.inputs, self.targets))
        return next((tensor.device for tensor in found), torch.device("cpu"))

    @property
    def outputs(self) -> Any:
        """The model's outputs."""
        if self._outputs is None:
            if self.model is None:
                raise ValueError("outputs are neither given nor computable: pass outputs or model")
            self._outputs, self.read = self._pass(self.model), True
            if self.apart and self._book is not None:
                self._book(self.model, self.batch, False)
        return self._outputs

    @property
    def losses(self) -> Tensor:
        """One loss per row, ``[rows]``."""
        if self._losses is None:
            self._losses = row_losses(self.criterion, self.outputs, self.targets).detach()
        return self._losses

    @property
    def known_losses(self) -> Tensor | None:
        """The losses if already computed, else ``None``."""
        return self._losses

    def take(self, rows: Tensor) -> Scored:
        """Subset of the rows (int64 ``[n]``), not evaluated yet."""
        index, x, y = self.batch.take(rows)
        known = (None, y, x, index, self.model)
        part = Scored(*known, criterion=self.criterion, run=self._run, book=self._book)
        part.apart = True
        return part

    def select(
        self, rows: Tensor, weight: Tensor | None = None, normaliser: float | None = None
    ) -> Selection:
        """A `Selection` of ``rows`` of the batch, on its device."""
        return Selection(
            rows.to(self.device),
            None if weight is None else weight.float().to(self.device),  # type: ignore[arg-type]
            normaliser,
            candidates=self.rows,
            rate=len(rows) / self.rows,
        )

    def forward(self, model: nn.Module) -> Any:
        """Outputs of a second model, in eval mode without gradients."""
        outputs = self._pass(self._placed(model))
        if self._book is not None:
            self._book(model, self.batch, False)
        return outputs

    def losses_of(self, model: nn.Module) -> Tensor:
        """One loss per row of a second model, ``[rows]``."""
        return row_losses(self.criterion, self.forward(model), self.targets).detach()

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        """Train a second model for one step; returns its losses before the step, ``[rows]``.

        A single row only yields its loss, since BatchNorm may be unable to train on it.
        """
        if self.rows < 2:
            return self.losses_of(model)
        self._placed(model).train()
        outputs = self._run(model, self.batch)  # in the run's precision
        losses = row_losses(self.criterion, outputs, self.targets)
        half = any(part.dtype == torch.float16 for part in tensors(outputs))
        # without a loss scale, float16 gradients would vanish
        scaler = torch.amp.GradScaler(self.device.type, init_scale=1024.0, enabled=half)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(losses.mean()).backward()
        scaler.step(optimizer)
        if self._book is not None:
            self._book(model, self.batch, True)
        return losses.detach()

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Run a block in eval mode without gradients; restore module modes and the RNG state."""
        with evaluating(self.model, self.device):
            self._scoring = True
            try:
                yield
            finally:
                self._scoring = False

    def _pass(self, model: nn.Module) -> Any:
        if self._scoring and model is self.model:
            return self._run(model, self.batch)
        with evaluating(model, self.device):
            return self._run(model, self.batch)

    def _placed(self, model: nn.Module) -> nn.Module:
        """``model``, moved to the device of the inputs."""
        device = self.device
        if any(parameter.device != device for parameter in model.parameters()):
            model.to(device)
        return model


class ScoredBatches:
    """Batches of ``loader`` as `Scored`, for ``Policy.prepare`` in a custom training loop.

    The loader must allow repeated iteration, and yield ``(index, batch)`` pairs of an `indexed`
    data set, or batches if ``indexed`` is false.
    """

    def __init__(
        self, loader: Iterable[Any], criterion: Criterion = cross_entropy_rows, indexed: bool = True
    ) -> None:
        self.loader, self.criterion, self.indexed = loader, criterion, indexed

    def __iter__(self) -> Iterator[Scored]:
        for item in self.loader:
            batch = as_batch(item[1], item[0]) if self.indexed else as_batch(item)
            yield Scored(None, batch.y, batch.x, batch.index, criterion=self.criterion)


def correctness(outputs: Any, targets: Any) -> tuple[Tensor | None, Tensor | None]:
    """Correctness and largest class probability of each row, ``[rows]`` each.

    ``(None, None)`` unless outputs are class logits and targets are integer labels.
    """
    found = class_outputs(outputs, targets)
    if found is None:
        return None, None
    logits, labels = found
    confidence, guess = logits.detach().float().softmax(1).max(1)
    return guess == labels, confidence


def _run(model: nn.Module, batch: Batch) -> Any:
    return call(model, batch.x, batch.y)
