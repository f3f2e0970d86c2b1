"""The cost of a batch, counted once for each shape of input, before any weight changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from astkit.batch import Batch, call, tensors
from astkit.gating import check_labels, evaluating, row_losses
from astkit.gating.losses import class_outputs, labels_of
from astkit.profiling.flops import FlopsPerSample, count_flops
from astkit.trainers.learner import Learner

Shape = tuple[tuple[int, ...], ...]


class Costs:
    """FLOPs a sample, counted once for each shape of input and each model."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._known: dict[Shape, FlopsPerSample] = {}
        self._tried: set[Shape] = set()
        self._helpers: WeakKeyDictionary[nn.Module, dict[Shape, FlopsPerSample]] = (
            WeakKeyDictionary()
        )
        self._warned: set[str] = set()

    def of(self, batch: Batch, check_all: Callable[[int], None]) -> FlopsPerSample:
        """The cost of ``batch``'s samples; a new shape is first tried on two of them.

        ``check_all`` gets the number of outputs and refuses labels beyond them. Raises
        ``ValueError`` for what cannot work, before any weight has changed.
        """
        shape = shape_of(batch)
        if shape not in self._tried:
            self._try(batch, check_all)
            self._tried.add(shape)
        if shape not in self._known:
            with self.learner.saving:  # which computes some of the forward pass twice
                self._known[shape] = self._counted(self.learner.model, batch)
        return self._known[shape]

    def of_helper(self, model: nn.Module, batch: Batch) -> FlopsPerSample:
        """The cost of ``batch``'s samples in a policy's own model."""
        known, shape = self._helpers.setdefault(model, {}), shape_of(batch)
        if shape not in known:
            known[shape] = self._counted(model, batch)
        return known[shape]

    def _try(self, batch: Batch, check_all: Callable[[int], None]) -> None:
        model, few = self.learner.model, batch.take(slice(0, 2))
        if not batch.rows:
            raise ValueError(
                "the training data gave a batch without rows: leave empty batches out of the loader"
            )
        with evaluating(model, self.learner.device):
            outputs = call(model, few.x, few.y)
        classes = class_outputs(outputs, few.y)
        if classes is not None:
            check_labels(labels_of(batch.y), classes[0].shape[1])
            check_all(classes[0].shape[1])
        row_losses(self.learner.criterion, outputs, few.y)

    def _counted(self, model: nn.Module, batch: Batch) -> FlopsPerSample:
        cost = count_flops(model, batch.x, batch.y, self.learner.criterion)
        if unknown := set(cost.uncounted) - self._warned:
            self._warned |= unknown
            warnings.warn(
                f"FLOPs of {', '.join(sorted(unknown))} cannot be counted: the ledger holds a lower"
                " bound, no ratio is formed from it, and a budget of FLOPs is refused",
                stacklevel=2,
            )
        return cost

    def state_dict(self) -> list[Any]:
        """The counts: a resumed run takes them over, since they may depend on the weights."""
        return [[shape, asdict(cost)] for shape, cost in self._known.items()]

    def load_state_dict(self, state: list[Any]) -> None:
        """Use the counts of ``state``."""
        self._known = {shape: FlopsPerSample(**cost) for shape, cost in state}


def shape_of(batch: Batch) -> Shape:
    """The shapes of a row's inputs."""
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors(batch.x))


CostsMaker = Callable[[Learner], Costs]
"""Makes costs from a trainer's learner: a subclass of `Costs`, or a partial one."""
