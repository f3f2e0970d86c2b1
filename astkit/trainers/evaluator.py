"""Evaluation: validation data batch by batch after each epoch, other data in one pass.

Sums are accumulated on the device and copied to the host once per pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.utils.data.distributed import DistributedSampler

from astkit import distributed, rng
from astkit.batch import Batch, count_rows
from astkit.datasets import BatchSource, stratified
from astkit.datasets.foreign import parts_of
from astkit.gating import evaluating, row_losses
from astkit.gating.data_facts import class_labels
from astkit.gating.losses import class_outputs
from astkit.profiling.flops import FlopsPerSample
from astkit.profiling.ledger import Ledger
from astkit.trainers.learner import Learner
from astkit.trainers.state import Position

_EMPTY = "the validation data gave no batch: lower batch_size or disable drop_last"


@dataclass(frozen=True)
class Metric:
    """A validation metric, averaged over rows.

    Attributes:
        name: reported as ``val_<name>``.
        function: ``(outputs, targets) -> [rows]``.
        higher_is_better: direction of the metric, for comparisons; ``None`` if unknown.
    """

    name: str
    function: Callable[[Any, Any], Tensor]
    higher_is_better: bool | None = None

    def rows(self, outputs: Any, targets: Any) -> Tensor:
        """One value per row, ``[rows]``; raises ``ValueError`` for another shape."""
        values = self.function(outputs, targets)
        count = count_rows(targets)
        if not isinstance(values, Tensor) or values.shape[:1] != (count,):
            shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"the metric {self.name!r} gave {shape} for {count} rows: return one value per row,"
                " which is averaged over all rows"
            )
        return values.flatten(1).float().mean(1) if values.ndim > 1 else values


Metrics = Mapping[str, Callable[[Any, Any], Tensor]] | Sequence[Metric] | Metric | None


def as_metrics(metrics: Metrics) -> tuple[Metric, ...]:
    """`Metric` objects of functions by name; raises ``ValueError`` for anything else."""
    if isinstance(metrics, Mapping):
        metrics = [Metric(name, function) for name, function in metrics.items()]
    found: tuple[Any, ...] = (metrics,)
    if isinstance(metrics, Iterable | None):
        found = tuple(metrics or ())
    for each in found:
        if not isinstance(each, Metric):
            raise ValueError(
                f"metrics holds a {type(each).__name__}: give functions (outputs, targets) ->"
                " [rows] by name, or Metric objects"
            )
    names = [each.name for each in found]
    if taken := {name for name in names if names.count(name) > 1} | {"loss", "samples"} & {*names}:
        raise ValueError(
            f"metrics holds the name {min(taken)} twice, or one that is reported anyway: choose"
            " another"
        )
    return found


class Evaluator:
    """Evaluates a learner's model; the time is measured separately from training.

    Computes the loss, the accuracy for integer labels, and ``metrics``: `Metric` objects, or
    functions by name. ``cost``: returns FLOPs per sample of a batch. Several processes evaluate a
    share of each batch, with the buffers of process 0, and sum up their results.

    Attributes:
        rows: validation rows that are evaluated after each epoch; ``None`` for all.
    """

    def __init__(
        self,
        learner: Learner,
        ledger: Ledger,
        cost: Callable[[Batch], FlopsPerSample],
        metrics: Metrics = None,
    ) -> None:
        self.learner, self.ledger, self._cost = learner, ledger, cost
        self.metrics = as_metrics(metrics)
        self.rows: Tensor | None = None
        self._batches: Iterator[Batch] | None = None
        self._sums: Tensor | None = None  # of the current pass, on the device

    def step(self, source: BatchSource, position: Position) -> bool:
        """Evaluate the next batch of ``source``; false at the end of the pass.

        Raises ``ValueError`` if the source yields no batch.
        """
        with self._evaluation():
            if self._batches is None:
                self._check(source)
                distributed.same_buffers(self.learner.model)
                self._batches = source.batches(0, self.rows, position.validated)
            batch = next(self._batches, None)
            if batch is None:
                if not position.validated:
                    raise ValueError(_EMPTY)
                return False
            sums = self._of(batch)
        self._sums = sums if self._sums is None else self._sums.add_(sums)
        position.validated += 1
        return True

    def found(self) -> dict[str, Any]:
        """Metrics of the pass, prefixed with ``val_``; empty if there was no batch."""
        if self._sums is None:
            return {}
        found = self._means(distributed.summed(self._sums))
        del found["samples"]
        interval = found.pop("accuracy_interval")
        if found["accuracy"] is None:
            del found["accuracy"]
        elif interval is not None and self.learner.config.validation_fraction < 1:
            found["accuracy_low"], found["accuracy_high"] = interval
        return {f"val_{name}": value for name, value in found.items()}

    def end_pass(self, position: Position) -> None:
        """Clear the sums for the next pass."""
        self._batches = self._sums = None
        position.validated, position.sums = 0, []

    def stop(self) -> None:
        """Release the iterator; the next batch is loaded again from its position."""
        self._batches = None

    def evaluate(self, source: BatchSource) -> dict[str, Any]:
        """Metrics of one pass over ``source``: samples, loss, accuracy with interval, metrics.

        Raises ``ValueError`` if the source yields no batch.
        """
        total: Tensor | None = None
        self._check(source)
        with self._evaluation():
            distributed.same_buffers(self.learner.model)
            for batch in source.batches(0):
                sums = self._of(batch)
                total = sums if total is None else total.add_(sums)
        if total is None:
            raise ValueError(_EMPTY)
        return self._means(distributed.summed(total))

    def _check(self, source: BatchSource) -> None:
        parts = parts_of(getattr(source, "loader", None))
        if distributed.world() > 1 and any(isinstance(each, DistributedSampler) for each in parts):
            raise ValueError(
                "the validation data have a DistributedSampler, but the processes divide each batch"
                " themselves: pass the data set, or a DataLoader without that sampler"
            )

    def save(self, position: Position) -> None:
        """Store the current sums in ``position``, as plain numbers."""
        position.sums = [] if self._sums is None else distributed.summed(self._sums).tolist()

    def load(self, position: Position) -> None:
        """Restore the sums from ``position``."""
        self._batches, sums, device = None, position.sums, self.learner.device
        self._sums = torch.tensor(sums, dtype=_wide(device), device=device) if sums else None
        if self._sums is not None and distributed.rank() > 0:
            self._sums.zero_()  # process 0 holds those of all

    def _of(self, batch: Batch) -> Tensor:
        """Sums over the rows of a batch, ``[2 + metrics]``, for classes ``[3 + metrics]``.

        Rows, losses, metrics, correct predictions; float64 if the device supports it.
        """
        repeated = distributed.repeats(batch.rows)
        if distributed.world() > 1:
            batch = batch.take(distributed.share(batch.rows))
        learner, batch = self.learner, self._booked(batch, counted=not repeated)
        outputs = learner.outputs(batch.x, batch.y)
        values = [row_losses(learner.criterion, outputs, batch.y)]
        values += [each.rows(outputs, batch.y) for each in self.metrics]
        classes = class_outputs(outputs, batch.y) if learner.classifying else None
        if classes is not None:
            values.append(classes[0].argmax(1) == classes[1])
        dtype = _wide(values[0].device)
        sums = torch.stack([torch.ones_like(values[0]), *values]).to(dtype).sum(1)
        return torch.zeros_like(sums) if repeated else sums

    def _means(self, sums: Tensor) -> dict[str, Any]:
        rows, loss, *values = sums.tolist()
        accuracy = interval = None
        if len(values) > len(self.metrics):
            right = values.pop()
            accuracy, interval = right / rows, wilson_interval(round(right), round(rows))
        names = [each.name for each in self.metrics]
        return {
            "samples": round(rows),
            "loss": loss / rows,
            "accuracy": accuracy,
            "accuracy_interval": interval,
            **{name: value / rows for name, value in zip(names, values, strict=True)},
        }

    def _booked(self, batch: Batch, counted: bool = True) -> Batch:
        """Prepare a batch and count its cost."""
        batch = self.learner.prepare(batch)
        self.ledger.note(self._cost(batch), evaluated=batch.rows if counted else 0)
        return batch

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        """Clock, eval mode, and the same random numbers in every evaluation."""
        learner = self.learner
        with (
            self.ledger.clock("evaluation"),
            rng.isolated(learner.device, learner.config.seed, "evaluation"),
            evaluating(learner.model, learner.device),
        ):
            yield


EvaluatorMaker = Callable[[Learner, Ledger, Callable[[Batch], FlopsPerSample]], Evaluator]
"""Factory of an evaluator: a subclass of `Evaluator`, or a ``partial`` of one."""


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def wilson_interval(right: int, rows: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion, from ``right`` of ``rows``: (low, high).

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA
    22 (1927). Assumes independent draws from a large population; for a stratified part of a finite
    set it is conservative. Raises ``ValueError`` for invalid counts or levels.
    """
    if not 0 <= right <= rows or rows < 1 or not 0 < level < 1:
        raise ValueError(
            f"{right} right of {rows} rows at level {level}: give 0 <= right <= rows, at least 1"
            " row and a level between 0 and 1"
        )
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, weight = right / rows, z * z / rows
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / rows + weight / (4 * rows))
    # exactly 0 and 1 at the ends, without rounding errors
    return middle - half if right else 0.0, middle + half if right < rows else 1.0


def sampled_rows(validation: BatchSource, fraction: float) -> Tensor | None:
    """A fixed stratified sample of the rows of ``validation``, int64 ``[n]``.

    Classes are those of `class_labels`; without them, or if one would get no row, sampling is
    uniform.
    Returns ``None``, all rows, for a ``fraction`` of 1.

    Raises ``ValueError`` for a fraction outside (0, 1], an empty sample, or a source that cannot
    load selected rows.
    """
    if fraction == 1:
        return None
    validation.batches(0, torch.zeros(1, dtype=torch.int64))  # raises if rows cannot be selected
    rows = validation.num_samples or 0
    labels = class_labels(getattr(validation, "data", None), rows)
    if labels is None or (labels.unique(return_counts=True)[1] * fraction <= 0.5).any():
        labels = torch.zeros(rows, dtype=torch.int64)  # else rare classes would get no row
    index, _ = stratified(labels, fraction, 0, "fast validation")
    if len(index) == 0:
        raise ValueError(
            f"fraction {fraction} of {rows} validation rows leaves none: give a larger one"
        )
    return index
