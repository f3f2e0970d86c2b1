"""A batch for policies and scores; its outputs and losses are computed when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.batch import Batch, as_batch, call, tensors
from astkit.gating.losses import Criterion, class_outputs, cross_entropy_rows, row_losses

Forward = Callable[[nn.Module, Batch], Any]


@contextmanager
def evaluating(model: nn.Module | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run a block in eval mode without gradients; restore each module's own mode and the RNG.

    BatchNorm statistics stay as they are, and modules that were frozen in eval mode remain so.
    """
    modules = [] if model is None else model.modules()
    training = [module for module in modules if module.training]
    try:
        if model is not None:
            model.eval()
        with torch.no_grad(), rng.isolated(device):
            yield
    finally:
        for module in training:
            module.training = True


class Scored:
    """Rows that may be scored.

    ``outputs``, and ``losses``, ``correct`` and ``confidence``, which need them, take one forward
    pass of ``model`` when one of them is first read, in eval mode and without gradients; a trainer
    counts its cost then. `forward` and `train` do the same for a second model.

    Args:
        outputs: the model's, if known already.
        targets: what the criterion compares them with.
        inputs: what the model was given.
        index: int64 ``[rows]``, which samples of the data set these are; ``None`` if unknown.
        model: the model in training; ``None`` if unknown.
        criterion: one loss a row.
        run: computes a model's outputs in place of ``model(inputs)``.
        book: called for each pass of a second model: the model, the batch, whether it trained.

    Attributes:
        read: whether a forward pass of ``model`` was made.
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

    @property
    def batch(self) -> Batch:
        """Index, inputs and targets."""
        return Batch(self.index, self.inputs, self.targets)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.batch.rows

    @property
    def outputs(self) -> Any:
        """The model's outputs."""
        if self._outputs is None:
            if self.model is None:
                raise ValueError("outputs are neither given nor computable: pass outputs or model")
            self._outputs, self.read = self._pass(self.model), True
        return self._outputs

    @property
    def losses(self) -> Tensor:
        """One loss a row, ``[rows]``."""
        if self._losses is None:
            self._losses = row_losses(self.criterion, self.outputs, self.targets).detach()
        return self._losses

    @property
    def known_losses(self) -> Tensor | None:
        """The losses if they were computed already."""
        return self._losses

    @property
    def correct(self) -> Tensor | None:
        """Whether each row is classified right, bool ``[rows]``; ``None`` without classes."""
        return correctness(self.outputs, self.targets)[0]

    @property
    def confidence(self) -> Tensor | None:
        """The largest class probability of each row, ``[rows]``; ``None`` without classes."""
        return correctness(self.outputs, self.targets)[1]

    def take(self, rows: Tensor) -> Scored:
        """The rows ``rows`` (int64 ``[n]``), not scored yet."""
        index, x, y = self.batch.take(rows)
        hooks: dict[str, Any] = {"run": self._run, "book": self._book}
        return Scored(None, y, x, index, self.model, criterion=self.criterion, **hooks)

    def forward(self, model: nn.Module) -> Any:
        """The outputs of a second model, in eval mode and without gradients."""
        outputs = self._pass(_placed(model, self.inputs))
        if self._book is not None:
            self._book(model, self.batch, False)
        return outputs

    def losses_of(self, model: nn.Module) -> Tensor:
        """One loss a row of a second model, ``[rows]``."""
        return row_losses(self.criterion, self.forward(model), self.targets).detach()

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        """One step of a second model on the mean loss; its losses before the step, ``[rows]``."""
        _placed(model, self.inputs).train()
        losses = row_losses(self.criterion, call(model, self.inputs, self.targets), self.targets)
        optimizer.zero_grad(set_to_none=True)
        losses.mean().backward()
        optimizer.step()
        if self._book is not None:
            self._book(model, self.batch, True)
        return losses.detach()

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Run a block in eval mode, without gradients; restore the modes and the RNG afterwards."""
        with evaluating(self.model, _device(self.inputs)):
            self._scoring = True
            try:
                yield
            finally:
                self._scoring = False

    def _pass(self, model: nn.Module) -> Any:
        if self._scoring and model is self.model:
            return self._run(model, self.batch)
        with evaluating(model, _device(self.inputs)):
            return self._run(model, self.batch)


class ScoredBatches:
    """What ``loader`` yields, as `Scored` batches: for ``Policy.prepare`` in your own loop.

    Args:
        loader: of batches, or of ``(index, batch)`` pairs from an `indexed` data set; iterable
            more than once.
        criterion: one loss a row.
        indexed: whether it yields such pairs.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        criterion: Criterion = cross_entropy_rows,
        indexed: bool = True,
    ) -> None:
        self.loader, self.criterion, self.indexed = loader, criterion, indexed

    def __iter__(self) -> Iterator[Scored]:
        for item in self.loader:
            batch = as_batch(item[1], item[0]) if self.indexed else as_batch(item)
            yield Scored(None, batch.y, batch.x, batch.index, criterion=self.criterion)


def correctness(outputs: Any, targets: Any) -> tuple[Tensor | None, Tensor | None]:
    """Whether each row is classified right, and the largest class probability, ``[rows]`` each.

    ``(None, None)`` unless the outputs are class logits and the targets integer labels.
    """
    found = class_outputs(outputs, targets)
    if found is None:
        return None, None
    logits, labels = found
    confidence, guess = logits.detach().float().softmax(1).max(1)
    return guess == labels, confidence


def _run(model: nn.Module, batch: Batch) -> Any:
    return call(model, batch.x, batch.y)


def _device(inputs: Any) -> torch.device:
    return next((tensor.device for tensor in tensors(inputs)), torch.device("cpu"))


def _placed(model: nn.Module, inputs: Any) -> nn.Module:
    """``model``, moved to where the inputs are."""
    device = _device(inputs)
    if any(parameter.device != device for parameter in model.parameters()):
        model.to(device)
    return model
