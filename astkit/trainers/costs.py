"""FLOPs per sample, counted once per input shape; `Ledger.note` multiplies them by the rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from astkit.batch import Batch, call, map_tensors, tensors
from astkit.gating import check_labels, cross_entropy_rows, evaluating, row_losses, token_losses
from astkit.gating.losses import class_outputs, labels_of
from astkit.profiling.flops import FlopsPerSample, count_flops
from astkit.trainers.learner import Learner

Shape = tuple[tuple[int, ...], ...]


class Costs:
    """FLOPs per sample, counted once per input shape and model, before any weight changes.

    Attributes:
        settle: called before a new shape is run, to account for work that the device has queued.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._known: dict[Shape, FlopsPerSample] = {}
        self._tried: set[Shape] = set()
        self._helpers: WeakKeyDictionary[nn.Module, dict[Shape, FlopsPerSample]] = (
            WeakKeyDictionary()
        )
        self._warned: set[str] = set()
        self.settle: Callable[[], None] = lambda: None

    def of(self, batch: Batch, check_all: Callable[[int], None]) -> FlopsPerSample:
        """FLOPs per sample of ``batch``; a new shape is first run on two samples.

        ``check_all`` is called with the number of outputs and raises for labels out of range.
        Raises ``ValueError`` for invalid data or models before any weight changes.
        """
        shape = shape_of(batch)
        if shape not in self._tried:
            self.settle()  # the check waits for the device, while no clock runs
            self._try(batch, check_all)
            self._tried.add(shape)
        if shape not in self._known:
            with self.learner.saving:  # includes the recomputation of checkpointing
                self._known[shape] = self._counted(self.learner.model, batch)
        return self._known[shape]

    def of_helper(self, model: nn.Module, batch: Batch) -> FlopsPerSample:
        """FLOPs per sample of ``batch`` in a helper model of a policy."""
        known, shape = self._helpers.setdefault(model, {}), shape_of(batch)
        if shape not in known:
            known[shape] = self._counted(model, batch)
        return known[shape]

    def _try(self, batch: Batch, check_all: Callable[[int], None]) -> None:
        model, few = self.learner.model, batch.take(slice(0, 2))
        if not batch.rows:
            raise ValueError(
                "the training data contain an empty batch: remove empty batches from the loader"
            )
        with evaluating(model, self.learner.device), self.learner.autocast():
            outputs = call(model, few.x, few.y)
        found = class_outputs(outputs, few.y)
        if found is not None:
            classes = found[0].shape[1]
            self.learner.classifying = self._classifying(outputs, few.y, classes)
            if self.learner.classifying:
                check_labels(labels_of(batch.y), classes)
                check_all(classes)
        row_losses(self.learner.criterion, outputs, few.y)

    def _classifying(self, outputs: Any, targets: Any, classes: int) -> bool:
        """Whether the criterion takes the labels as classes: it fails for one beyond the last."""
        if self.learner.criterion is cross_entropy_rows:
            return True
        beyond = torch.full_like(labels_of(targets), classes)
        targets = beyond if isinstance(targets, Tensor) else {**targets, "labels": beyond}
        try:  # on the CPU, since a label out of range ends all use of a CUDA device
            row_losses(self.learner.criterion, *map_tensors(Tensor.cpu, (outputs, targets)))
        except Exception:
            return True
        return False

    def _counted(self, model: nn.Module, batch: Batch) -> FlopsPerSample:
        learner = self.learner

        def criterion(outputs: Any, targets: Any) -> Any:  # as in training, outside autocast
            with torch.autocast(learner.device.type, enabled=False):
                return token_losses(learner.criterion, outputs, targets)

        with learner.autocast():
            cost = count_flops(model, batch.x, batch.y, criterion)
        if unknown := set(cost.uncounted) - self._warned:
            self._warned |= unknown
            warnings.warn(
                f"FLOPs of {', '.join(sorted(unknown))} cannot be counted: the ledger holds a lower"
                " bound, no ratio is computed from it, and a FLOPs budget raises ValueError",
                stacklevel=2,
            )
        return cost

    def state_dict(self) -> list[Any]:
        """The counts; a resumed run reuses them, since they may depend on the weights."""
        return [[shape, asdict(cost)] for shape, cost in self._known.items()]

    def load_state_dict(self, state: list[Any]) -> None:
        """Restore the counts."""
        self._known = {shape: FlopsPerSample(**cost) for shape, cost in state}


def shape_of(batch: Batch) -> Shape:
    """Shapes of the inputs of one row."""
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors(batch.x))


CostsMaker = Callable[[Learner], Costs]
"""Factory called with the trainer's learner: a subclass of `Costs`, or a ``partial`` of one."""
