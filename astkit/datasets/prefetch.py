"""Prefetching: the next batches are made while the present one is trained on."""

from __future__ import annotations

import copy
import threading
import warnings
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from astkit.batch import Batch, tensors
from astkit.datasets.loaders import BatchSource, check_labels_of

THREAD = "astkit-prefetch"


class Prefetched:
    """A source of batches around ``source`` that is up to ``depth`` batches ahead of its consumer.

    One thread makes the batches, the same ones in the same order; on CUDA it works on a separate
    stream, so that copies from pinned memory overlap with computing. Closing the iterator early
    waits for the batch being made and ends the thread. An error of the source is raised in place of
    its batch, with its traceback.

    A source that may draw from torch's default generators (``source.keyed`` is false or missing: an
    ordinary loader, or a ``Loader`` whose data set computes rows in this process) would change the
    consumer's random numbers. Its batches are made in the consumer's thread, with a warning. Raises
    ``ValueError`` for an impossible ``depth`` or ``source``.
    """

    def __init__(self, source: BatchSource, depth: int = 2) -> None:
        if not isinstance(source, BatchSource):
            raise ValueError(
                f"source is a {type(source).__name__}; pass a Loader, or as_loader(...) around an "
                "ordinary loader."
            )
        if depth < 1:
            raise ValueError(f"depth is {depth}; pass 1 batch or more.")
        self.source = source
        self.depth = depth
        self.outputs: int | None = None
        if not self.keyed:
            warnings.warn(
                f"The {type(source).__name__} may draw from torch's default generators, so its "
                "batches are not prefetched by a thread; pass its data set in a "
                "Loader(num_workers=1 or more), whose workers prefetch instead.",
                stacklevel=2,
            )

    @property
    def keyed(self) -> bool:
        """Whether batches are made by a thread; see `Loader.keyed`."""
        return bool(getattr(self.source, "keyed", False))

    @property
    def device(self) -> torch.device:
        """Where the source delivers."""
        return torch.device(getattr(self.source, "device", "cpu"))

    @property
    def num_samples(self) -> int | None:
        """Samples in a full pass, ``None`` if unknown."""
        return self.source.num_samples

    def order(self, epoch: int) -> Tensor:
        """The rows of an epoch, where the source can visit chosen ones."""
        rows: Tensor = self.source.order(epoch)  # type: ignore[attr-defined]
        return rows

    def __len__(self) -> int:
        """Batches in a full pass; raises ``TypeError`` if unknown."""
        return len(self.source)

    def to(self, device: torch.device | str) -> Prefetched:
        """Have the source deliver on ``device``, where it can."""
        if hasattr(self.source, "to"):
            self.source = copy.copy(self.source).to(device)
        return self

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of pass ``epoch``; raises what the source raises."""
        batches = self.source.batches(epoch, order, start)
        return self._deliver(batches) if self.keyed else batches

    def check_labels(self, num_outputs: int) -> None:
        """Raise ``ValueError``, now or at the batch, for a label outside ``0..num_outputs-1``."""
        self.outputs = num_outputs
        self.source.check_labels(num_outputs)

    def _deliver(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        if side is not None:
            # copies of the source's data to the device may not be complete yet
            side.wait_stream(torch.cuda.current_stream(self.device))

        def make() -> _Made:
            outputs = self.outputs
            with torch.cuda.stream(side):  # None leaves the stream unchanged
                batch = next(batches, None)
            return _Made(batch, None if side is None else side.record_event(), outputs)

        ahead: deque[Future[_Made]] = deque()
        pool = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
        try:
            # the first is made here: workers are best started, and their deaths noticed, in the
            # thread of the consumer, which has nothing else to do yet
            made = make()
            while made.batch is not None:
                while len(ahead) < self.depth:
                    ahead.append(pool.submit(make))
                if made.outputs != self.outputs and self.outputs is not None:
                    check_labels_of(made.batch[1:], self.outputs, "a batch")
                yield self._hand_over(made.batch, made.ready)
                made = ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
            # the garbage collector may run this in the thread itself
            outside = not threading.current_thread().name.startswith(THREAD)
            pool.shutdown(wait=outside)  # after the batch being made
            if outside and isinstance(batches, Generator):
                batches.close()

    def _hand_over(self, batch: Batch, ready: torch.cuda.Event | None) -> Batch:
        """The batch, safe to use on the consumer's stream."""
        if ready is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(ready)
            for part in tensors(tuple(batch)):
                part.record_stream(stream)  # its memory is not reused before the consumer is done
        return batch


class _Made(NamedTuple):
    """``ready``: when the copies are done, on CUDA; ``outputs``: what labels were checked for."""

    batch: Batch | None
    ready: torch.cuda.Event | None
    outputs: int | None
