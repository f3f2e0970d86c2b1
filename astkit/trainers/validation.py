"""Validation in one go: what it finds, and three ways to compute it.

The ways differ in what runs beside what and in nothing else: every batch gives one vector of sums
on the device, and the vectors are added in the order of the batches, copied to the host once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, Literal

import torch
from torch import Tensor

from astkit.batch import Batch
from astkit.datasets import BatchSource
from astkit.datasets.prefetch import Prefetched
from astkit.gating import evaluating, row_losses
from astkit.gating.losses import class_outputs
from astkit.profiling.benchmark import interleaved
from astkit.profiling.ledger import synchronizer
from astkit.trainers.learner import Learner
from astkit.trainers.metrics import Metric
from astkit.trainers.validation_sample import wilson_interval

Way = Literal["in_turn", "ahead", "threads"]
Prepare = Callable[[Batch], Batch]
Sums = Callable[[Batch], Tensor]
BINS = 15  # of the calibration error, as in its source
GAIN = 1.05  # times the speed of the plain way that another one has to have
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
    way: Way = "in_turn",
    *,
    threads: int = 2,
    prepare: Prepare | None = None,
    metrics: tuple[Metric, ...] = (),
) -> ValidationMetrics:
    """Evaluate the model on one pass of ``source``.

    Args:
        learner: model, criterion, precision.
        source: of the batches.
        way: "in_turn" loads a batch, then evaluates it; "ahead" loads the next ones in a thread
            meanwhile, see `Prefetched`; "threads" evaluates ``threads`` batches beside each other
            on a CPU, torch's threads divided among them.
        threads: of the last way.
        prepare: what is done with a batch first; by default the learner's memory format. It is
            called with one batch at a time, in their order, and may count them.
        metrics: beside the loss.

    Raises ``ValueError`` for an unknown way, fewer than 1 thread, or a source without a batch. A
    model that draws random numbers in eval mode has no defined result with "threads".
    """
    if way not in ("in_turn", "ahead", "threads"):
        raise ValueError(f"way is {way!r}: choose one of in_turn, ahead, threads")
    if threads < 1:
        raise ValueError(f"threads is {threads}: give 1 or more")
    total: Tensor | None = None
    with evaluating(learner.model, learner.device):
        prepared = prepare or learner.prepare
        for sums in _sums(
            partial(batch_sums, learner, metrics=metrics), source, way, threads, prepared
        ):
            total = sums if total is None else total.add_(sums)
    if total is None:
        raise ValueError(
            "the validation data gave no batch: lower batch_size or leave drop_last out"
        )
    return ValidationMetrics.from_sums(total, metrics)


def _sums(
    of: Sums, source: BatchSource, way: Way, threads: int, prepare: Prepare
) -> Iterable[Tensor]:
    batches = (Prefetched(source) if way == "ahead" else source).batches(0)
    if way == "threads":
        # workers of a loader are best started in this thread, by its first batch
        first = list(islice(batches, 1))
        return _threaded(of, map(prepare, chain(first, batches)), threads)
    return (of(prepare(batch)) for batch in batches)


def _threaded(of: Sums, batches: Iterator[Batch], threads: int) -> list[Tensor]:
    """The sums of each batch, in order, computed in threads that take the next one in turn."""
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


@dataclass(frozen=True)
class Choice:
    """Which way a probe chose, and why; plain values, for the record of a run.

    ``speed``: times the speed of "in_turn" for each way that was tried: (median, low, high), the
    95 % bootstrap interval over ``rounds`` interleaved rounds of ``batches`` batches.
    """

    way: Way
    threads: int
    speed: dict[str, tuple[float, float, float]]
    batches: int
    rounds: int
    reason: str


class _First:
    """The first ``count`` batches of a source."""

    def __init__(self, source: BatchSource, count: int) -> None:
        self.source, self.count, self.num_samples = source, count, source.num_samples
        self.keyed = getattr(source, "keyed", False)
        self.device = getattr(source, "device", "cpu")

    def __len__(self) -> int:
        return min(self.count, len(self.source))

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        return islice(self.source.batches(epoch, order, start), self.count)

    def check_labels(self, num_outputs: int) -> None:
        self.source.check_labels(num_outputs)


def choose(
    learner: Learner,
    source: BatchSource,
    *,
    batches: int = 8,
    rounds: int = 7,
    prepare: Prepare | None = None,
) -> Choice:
    """Try the ways on the first batches and take the fastest whose metrics are those of "in_turn".

    Another way than "in_turn" has to be 5 % faster with the whole of its interval. ``prepare`` must
    not count what it sees: leave out what books costs. A loader with a generator of its own is left
    with that generator moved. Raises what ``validate`` raises.
    """
    few = _First(source, batches)
    arms: dict[str, tuple[Way, int]] = {"in_turn": ("in_turn", 1)}
    if getattr(source, "keyed", False):  # others cannot be made ahead
        arms["ahead"] = ("ahead", 1)
    whole = torch.get_num_threads()
    if learner.device.type == "cpu":
        arms |= {f"{n} threads": ("threads", n) for n in sorted({2, whole}) if 2 <= n <= whole}
    runs = {
        name: partial(validate, learner, few, way, threads=threads, prepare=prepare)
        for name, (way, threads) in arms.items()
    }
    truth = runs["in_turn"]()
    equal = {name: run for name, run in runs.items() if _agree(run(), truth)}
    measured = interleaved(
        equal, rounds=rounds, warmup=1, baseline="in_turn", synchronize=synchronizer(learner.device)
    )
    ratios = {name: measured.ratio("in_turn", name) for name in equal if name != "in_turn"}
    faster = {name: ratio for name, ratio in ratios.items() if ratio.low > GAIN}
    best = max(faster, key=lambda name: faster[name].median, default="in_turn")
    tried = ", ".join(f"{name} {ratio}" for name, ratio in ratios.items())
    struck = sorted(runs.keys() - equal.keys())
    also = f"; other metrics, so left out: {', '.join(struck)}" if struck else ""
    return Choice(
        *arms[best],
        {name: (ratio.median, ratio.low, ratio.high) for name, ratio in ratios.items()},
        batches,
        rounds,
        f"{best} is fastest; against in_turn: {tried or 'nothing'} (n = {rounds}){also}",
    )


def _agree(found: ValidationMetrics, truth: ValidationMetrics) -> bool:
    """Same counts; sums equal to the rounding of float32, which varies with torch's threads."""
    counts = ("samples", "accuracy", "class_accuracy")
    return all(getattr(found, name) == getattr(truth, name) for name in counts) and all(
        math.isclose(a or 0.0, b or 0.0, rel_tol=1e-5, abs_tol=1e-7)
        for a, b in ((found.loss, truth.loss), (found.ece, truth.ece))
    )
