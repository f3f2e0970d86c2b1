"""The next batches made ready while the present one computes."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor

from astkit.batch import Batch, tensors
from astkit.datasets.loaders import BatchSource, check_labels_of


class Prefetched:
    """A source of batches around ``source`` that is up to ``depth`` batches ahead of its consumer.

    One thread makes the batches, the same ones in the same order; on CUDA it works on a stream of
    its own, so that copies from pinned memory overlap with the consumer's kernels. The thread lives
    as long as a pass: closing the iterator early waits for the batch in the making and ends it. An
    error of the source is raised where its batch was asked for, with its traceback.

    A source that may draw from torch's default generators (``source.keyed`` is false or missing: an
    ordinary loader, a ``Loader`` whose data set computes its rows in this process) would race with
    the consumer's random numbers. Its batches are made in the consumer's thread, unchanged;
    ``threaded`` tells, and a warning says what to do. Raises ``ValueError`` for an impossible
    ``depth`` or what is no source.
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
        if not self.threaded:
            warnings.warn(
                f"The {type(source).__name__} may draw from torch's default generators, so its "
                "batches are not made ahead in a thread; pass its data set in a "
                "Loader(num_workers=1 or more), whose workers fetch ahead instead.",
                stacklevel=2,
            )

    @property
    def threaded(self) -> bool:
        """Whether batches are made ahead, in a thread."""
        return bool(getattr(self.source, "keyed", False))

    @property
    def keyed(self) -> bool:
        """Whether nothing in this process draws from the default generators to make a batch."""
        return self.threaded

    @property
    def device(self) -> torch.device:
        """Where the source delivers."""
        return torch.device(getattr(self.source, "device", "cpu"))

    @property
    def num_samples(self) -> int | None:
        """Samples in a full pass, ``None`` when the source cannot tell."""
        return self.source.num_samples

    @property
    def num_classes(self) -> int | None:
        """Classes the source names, ``None`` when it names none."""
        return getattr(self.source, "num_classes", None)

    def order(self, epoch: int) -> Tensor:
        """The rows of an epoch, where the source can visit chosen ones."""
        rows: Tensor = self.source.order(epoch)  # type: ignore[attr-defined]
        return rows

    def __len__(self) -> int:
        """Batches in a full pass; raises ``TypeError`` when the source cannot tell."""
        return len(self.source)

    def to(self, device: torch.device | str) -> Prefetched:
        """Have the source deliver on ``device``, where it can. Returns itself."""
        if hasattr(self.source, "to"):
            self.source = copy.copy(self.source).to(device)
        return self

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of pass ``epoch``; raises what the source raises."""
        batches = self.source.batches(epoch, order, start)
        return self._deliver(batches) if self.threaded else batches

    def check_labels(self, num_outputs: int) -> None:
        """Raise ``ValueError``, now or at the batch, for a label outside ``0..num_outputs-1``."""
        self.outputs = num_outputs
        self.source.check_labels(num_outputs)

    def _deliver(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        # the first is made here: workers are best started, and their deaths noticed, in the thread
        # of the consumer, which has nothing else to do yet
        ahead = _Ahead(self, batches)
        try:
            made = ahead.make()
            ahead.start()
            while made is not None:
                if made.outputs != self.outputs and self.outputs is not None:
                    check_labels_of(made.batch[1:], self.outputs, "a batch")
                yield ahead.hand_over(made)
                made = ahead.take()
        finally:
            ahead.close()


class _Made(NamedTuple):
    """``ready``: when the copies are done, on CUDA; ``outputs``: what labels were checked for."""

    batch: Batch
    ready: torch.cuda.Event | None
    outputs: int | None


class _Ahead:
    """The thread of one pass and what it has made."""

    def __init__(self, source: Prefetched, batches: Iterator[Batch]) -> None:
        self._source = source
        self._batches = batches
        self._slots = threading.Semaphore(source.depth)
        self._made: SimpleQueue[_Made | BaseException | None] = SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="astkit-prefetch", daemon=True)
        self._stream: torch.cuda.Stream | None = None
        if source.device.type == "cuda":
            self._stream = torch.cuda.Stream(source.device)
            # what the source keeps on the device may still be on its way there
            self._stream.wait_stream(torch.cuda.current_stream(source.device))

    def make(self) -> _Made | None:
        """The next batch, on the side stream."""
        outputs = self._source.outputs
        with torch.cuda.stream(self._stream):  # None leaves the stream as it is
            batch = next(self._batches, None)
        if batch is None:
            return None
        return _Made(batch, None if self._stream is None else self._stream.record_event(), outputs)

    def start(self) -> None:
        """Let the thread make the rest."""
        self._thread.start()

    def take(self) -> _Made | None:
        """Wait for the next batch; raises the error that its making ended in."""
        made = self._made.get()
        self._slots.release()
        if isinstance(made, BaseException):
            raise made
        return made

    def hand_over(self, made: _Made) -> Batch:
        """The batch, safe to use on the consumer's stream."""
        if made.ready is not None:
            stream = torch.cuda.current_stream(self._source.device)
            stream.wait_event(made.ready)
            for part in tensors(tuple(made.batch)):
                part.record_stream(stream)  # its memory is not reused before the consumer is done
        return made.batch

    def close(self) -> None:
        """End the thread, after the batch that it is making."""
        self._closing = True
        self._slots.release()
        if self._thread.ident is None:
            self._close_batches()
        elif self._thread is not threading.current_thread():  # where the collector may run this
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._slots.acquire() and not self._closing:
                made = self.make()
                self._made.put(made)
                if made is None:
                    return
        except BaseException as error:  # every error is the consumer's
            self._made.put(error)
        finally:
            self._close_batches()

    def _close_batches(self) -> None:
        if isinstance(self._batches, Generator):
            self._batches.close()
