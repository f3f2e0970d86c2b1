"""What a batch costs, counted once for each shape of input, before any weight changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch import Tensor

from astkit.datasets import Batch
from astkit.gating import evaluating, row_losses
from astkit.gating.significance import check_labels
from astkit.profiling.flops import FlopsPerSample, count_flops
from astkit.trainers.learner import Learner


class Costs:
    """FLOPs a sample, counted once for each shape of input."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._known: dict[tuple[int, ...], FlopsPerSample] = {}
        self._tried: set[tuple[int, ...]] = set()

    def of(self, batch: Batch, check_all: Callable[[int], None]) -> FlopsPerSample:
        """The cost of ``batch``'s samples; a new shape is first tried on two of them.

        ``check_all`` is told the number of outputs and refuses labels beyond them. Raises
        ``ValueError`` for what cannot work, before any weight has changed.
        """
        shape = tuple(batch.x.shape[1:])
        model, criterion = self.learner.model, self.learner.criterion
        if shape not in self._tried:
            with evaluating(model, self.learner.device):
                outputs = model(batch.x[:2])
            plain = isinstance(outputs, Tensor) and outputs.ndim == 2
            if plain and not batch.y.is_floating_point():
                check_labels(batch.y, outputs.shape[1])
                check_all(outputs.shape[1])
            row_losses(criterion, outputs, batch.y[:2])
            self._tried.add(shape)
        if shape not in self._known:
            with self.learner.saving:  # which computes some of the forward pass twice
                self._known[shape] = count_flops(model, batch.x, batch.y, criterion)
        return self._known[shape]

    def state_dict(self) -> list[Any]:
        """What was counted: a resumed run counts the same where it depends on the weights."""
        return [[list(shape), asdict(cost)] for shape, cost in self._known.items()]

    def load_state_dict(self, state: list[Any]) -> None:
        """Count what was counted in ``state`` no more."""
        self._known = {tuple(shape): FlopsPerSample(**cost) for shape, cost in state}


CostsMaker = Callable[[Learner], Costs]
"""Makes costs from a trainer's learner: a subclass of `Costs`, or a partial one."""
