"""Validation in one go: what it finds, computed batch by batch or in threads.

Every batch gives one vector of sums on the device; the vectors are added in the order of the
batches and copied to the host once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from astkit.batch import Batch
from astkit.datasets import BatchSource
from astkit.gating import evaluating, row_losses
from astkit.gating.losses import class_outputs
from astkit.trainers.learner import Learner
from astkit.trainers.metrics import Metric
from astkit.trainers.validation_sample import wilson_interval

Prepare = Callable[[Batch], Batch]
Sums = Callable[[Batch], Tensor]
BINS = 15  # of the calibration error, as in its source
_HEAD = 2  # the sums before those of classes and bins: of losses, of rows


@dataclass(frozen=True)
class ValidationMetrics:
    """What a validation pass found.

    Attributes:
        samples: rows evaluated.
        loss: their mean loss.
        accuracy: share of right answers, in [0, 1]; like all below, None without class labels.
        accuracy_interval: its 95 % Wilson interval, see `wilson_interval`.
        class_accuracy: accuracy of each class's rows; None for a class without rows.
        ece: expected calibration error over 15 bins of equal width of the largest softmax output:
            the mean over rows of |accuracy - confidence| of the row's bin. Source: Guo et al., "On
            Calibration of Modern Neural Networks", ICML 2017.
        metrics: means of the metrics that were asked for, by name.
    """

    samples: int
    loss: float
    accuracy: float | None = None
    accuracy_interval: tuple[float, float] | None = None
    class_accuracy: tuple[float | None, ...] | None = None
    ece: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_sums(cls, sums: Tensor, metrics: tuple[Metric, ...] = ()) -> ValidationMetrics:
        """From added-up vectors of `batch_sums`; the one copy to the host."""
        values = sums.tolist()
        loss, rows = values[0], round(values[1])
        own = {m.name: value / rows for m, value in zip(metrics, values[_HEAD:], strict=False)}
        values = [*values[:_HEAD], *values[_HEAD + len(metrics) :]]
        if len(values) == _HEAD:
            return cls(rows, loss / rows, metrics=own)
        classes = torch.tensor(values[_HEAD : -3 * BINS], dtype=torch.float64).view(-1, 2).tolist()
        bins = torch.tensor(values[-3 * BINS :], dtype=torch.float64).view(BINS, 3)
        right = round(sum(of_class[0] for of_class in classes))
        return cls(
            rows,
            loss / rows,
            right / rows,
            wilson_interval(right, rows),
            tuple(hits / count if count else None for hits, count in classes),
            float((bins[:, 1] - bins[:, 2]).abs().sum() / rows),
            own,
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)


def batch_sums(learner: Learner, batch: Batch, metrics: tuple[Metric, ...] = ()) -> Tensor:
    """What a batch adds to the metrics, as one vector on the device; nothing waits for it.

    float64 ``[2 + metrics + 2 classes + 45]`` (float32 on MPS, which has no float64): sum of losses
    and rows; sums of the metrics; right answers and rows of each class; rows, right answers and
    summed confidence of each bin. Without class labels ``[2 + metrics]``. In eval mode, without
    gradients; call it so.
    """
    outputs = learner.outputs(batch.x, batch.y)
    losses = row_losses(learner.criterion, outputs, batch.y)
    dtype = torch.float32 if losses.device.type == "mps" else torch.float64
    losses = losses.to(dtype)
    ones = torch.ones_like(losses)
    own = [each.rows(outputs, batch.y).to(dtype).sum() for each in metrics]
    head = torch.stack([losses.sum(), ones.sum(), *own])
    found = class_outputs(outputs, batch.y)
    if found is None:
        return head
    logits, labels = found
    right = (logits.argmax(1) == labels).to(dtype)
    confidence = logits.to(dtype).softmax(1).amax(1)
    # bin m holds (m / 15, (m + 1) / 15]
    places = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    classes = losses.new_zeros(logits.shape[1], 2)
    classes.index_add_(0, labels.long(), torch.stack([right, ones], 1))
    bins = losses.new_zeros(BINS, 3)
    bins.index_add_(0, places, torch.stack([ones, right, confidence], 1))
    return torch.cat([head, classes.flatten(), bins.flatten()])


def validate(
    learner: Learner,
    source: BatchSource,
    threads: int = 1,
    *,
    prepare: Prepare | None = None,
    metrics: tuple[Metric, ...] = (),
) -> ValidationMetrics:
    """Evaluate the model on one pass of ``source``.

    Args:
        learner: model, criterion, precision.
        source: of the batches.
        threads: batches that are evaluated beside each other on a CPU, torch's threads divided
            among them. A model that draws random numbers in eval mode needs 1.
        prepare: what is done with a batch first; by default the learner's memory format. It is
            called with one batch at a time, in their order, and may count them.
        metrics: beside the loss.

    Raises ``ValueError`` for fewer than 1 thread, or a source without a batch.
    """
    if threads < 1:
        raise ValueError(f"threads is {threads}: give 1 or more")
    of = partial(batch_sums, learner, metrics=metrics)
    total: Tensor | None = None
    with evaluating(learner.model, learner.device):
        batches = map(prepare or learner.prepare, source.batches(0))
        found = map(of, batches) if threads == 1 else _threaded(of, batches, threads)
        for sums in found:
            total = sums if total is None else total.add_(sums)
    if total is None:
        raise ValueError(
            "the validation data gave no batch: lower batch_size or leave drop_last out"
        )
    return ValidationMetrics.from_sums(total, metrics)


def _threaded(of: Sums, batches: Iterator[Batch], threads: int) -> list[Tensor]:
    """The sums of each batch, in order, computed in threads that take the next one in turn."""
    # workers of a loader are best started in this thread, by its first batch
    batches = chain(list(islice(batches, 1)), batches)
    found: dict[int, Tensor] = {}
    numbered, lock, stop = enumerate(batches), threading.Lock(), threading.Event()

    def work() -> None:
        try:
            with torch.no_grad():  # each thread has a grad mode of its own
                while not stop.is_set():
                    with lock:
                        number, batch = next(numbered, (-1, None))
                    if batch is None:
                        return
                    found[number] = of(batch)
        except BaseException:
            stop.set()  # the others need not finish the pass
            raise

    whole = torch.get_num_threads()
    # before the pool, whose threads take the number over when they begin
    torch.set_num_threads(max(1, whole // threads))
    try:
        with ThreadPoolExecutor(threads, "astkit-validation") as pool:
            running = [pool.submit(work) for _ in range(threads)]
        for future in running:
            future.result()
    finally:
        torch.set_num_threads(whole)
    return [found[number] for number in sorted(found)]
