"""Evaluating: of the validation data after each pass, batch by batch; of other data in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor

from astkit import rng
from astkit.batch import Batch
from astkit.datasets import BatchSource
from astkit.gating import evaluating
from astkit.profiling.flops import FlopsPerSample
from astkit.profiling.ledger import Ledger
from astkit.trainers.learner import Learner
from astkit.trainers.metrics import Metric
from astkit.trainers.state import Position
from astkit.trainers.validation import ValidationMetrics, batch_sums, validate


class Evaluator:
    """Evaluates a learner's model on the ledger's evaluation clock.

    Args:
        learner: model, criterion, precision.
        ledger: keeps what evaluation costs, which is no part of training.
        cost: FLOPs a sample of a batch.
        metrics: beside the loss, and what integer labels bring by themselves.

    Attributes:
        rows: of the validation data, those that are evaluated after each epoch; ``None`` for all.
        higher_is_better: directions of what an epoch's metrics hold.
    """

    higher_is_better: ClassVar[dict[str, bool]] = {
        "val_accuracy": True,
        "val_loss": False,
        "val_ece": False,
    }

    def __init__(
        self,
        learner: Learner,
        ledger: Ledger,
        cost: Callable[[Batch], FlopsPerSample],
        metrics: tuple[Metric, ...] = (),
    ) -> None:
        self.learner, self.ledger, self._cost, self.metrics = learner, ledger, cost, metrics
        self.rows: Tensor | None = None
        self._batches: Iterator[Batch] | None = None
        self._sums: Tensor | None = None  # of the pass so far, on the device: nothing waits for it

    def step(self, source: BatchSource, position: Position) -> bool:
        """Evaluate the next batch of ``source``; false where its pass is over."""
        with self.ledger.clock("evaluation"), self._random():
            if self._batches is None:
                self._batches = source.batches(0, self.rows, position.validated)
            batch = next(self._batches, None)
            if batch is None:
                return False
            with evaluating(self.learner.model, self.learner.device):
                sums = batch_sums(self.learner, self._booked(batch), self.metrics)
        self._sums = sums if self._sums is None else self._sums.add_(sums)
        position.validated += 1
        return True

    def found(self) -> dict[str, Any]:
        """What the pass has found, named for the record; nothing before its first batch."""
        if self._sums is None:
            return {}
        result = ValidationMetrics.from_sums(self._sums, self.metrics)
        metrics: dict[str, Any] = {"val_loss": result.loss}
        if result.accuracy is not None:
            metrics |= {"val_accuracy": result.accuracy, "val_ece": result.ece}
        metrics |= {f"val_{name}": value for name, value in result.metrics.items()}
        if self.learner.config.validation_fraction < 1 and result.accuracy_interval is not None:
            low, high = result.accuracy_interval
            metrics |= {"val_accuracy_low": low, "val_accuracy_high": high}
        return metrics

    def direction(self, metric: str) -> bool | None:
        """Whether higher is better of ``metric``; ``None`` where it does not say."""
        own = {f"val_{each.name}": each.higher_is_better for each in self.metrics}
        return own.get(metric, self.higher_is_better.get(metric))

    def end_pass(self, position: Position) -> None:
        """Forget the pass: the next one begins anew."""
        self._batches = self._sums = None
        position.validated, position.sums = 0, []

    def stop(self) -> None:
        """Release the iterator; the next batch is loaded again from its position."""
        self._batches = None

    def evaluate(self, source: BatchSource, threads: int = 1) -> dict[str, Any]:
        """The fields of `ValidationMetrics` for one pass of ``source``."""
        with self.ledger.clock("evaluation"), self._random():
            found = validate(
                self.learner, source, threads, prepare=self._booked, metrics=self.metrics
            )
        return found.to_dict()

    def save(self, position: Position) -> None:
        """Put the sums so far into ``position``, as plain numbers."""
        position.sums = [] if self._sums is None else self._sums.tolist()

    def load(self, position: Position) -> None:
        """Continue from the sums in ``position``."""
        self._batches, sums = None, position.sums
        dtype = torch.float32 if self.learner.device.type == "mps" else torch.float64
        device = self.learner.device
        self._sums = torch.tensor(sums, dtype=dtype, device=device) if sums else None

    def _booked(self, batch: Batch) -> Batch:
        """A batch to evaluate, its cost noted."""
        batch = self.learner.prepare(batch)
        self.ledger.note(self._cost(batch), evaluated=batch.rows)
        return batch

    def _random(self) -> AbstractContextManager[None]:
        """Loaders that draw from the default RNG draw the same in every evaluation."""
        return rng.isolated(self.learner.device, self.learner.config.seed, "evaluation")


EvaluatorMaker = Callable[[Learner, Ledger, Callable[[Batch], FlopsPerSample]], Evaluator]
"""Makes an evaluator from what a trainer gives it: a subclass of `Evaluator`, or a partial one."""
