"""Prefetching: a thread prepares the next batches during the training step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from astkit.batch import Batch, tensors

THREAD = "astkit-prefetch"
AHEAD = 2  # batches
Made = tuple[Batch | None, torch.cuda.Event | None]


def prefetched(batches: Iterator[Batch], device: torch.device | str = "cpu") -> Iterator[Batch]:
    """The same ``batches``, prepared by a thread up to `AHEAD` batches ahead.

    ``batches`` must not use the default random generators, since that would change the consumer's
    random numbers: see `Loader.keyed`. On CUDA the thread uses a separate stream, so that copies
    from pinned memory overlap with computation. Closing the iterator early waits for the current
    batch and ends the thread. An error is raised in place of its batch, with its traceback.
    """
    device = torch.device(device)
    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    if side is not None:
        # copies of the data to the device may not be complete yet
        side.wait_stream(torch.cuda.current_stream(device))

    def make() -> Made:
        with torch.cuda.stream(side):  # None leaves the stream unchanged
            batch = next(batches, None)
        return batch, None if side is None else side.record_event()

    ahead: deque[Future[Made]] = deque()
    pool = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
    try:
        # the first batch is prepared before the thread starts: workers are best started in the
        # consumer's thread, and the trainer has checked the labels by then
        batch, ready = make()
        while batch is not None:
            yield _handed_over(batch, ready, device)
            while len(ahead) < AHEAD:
                ahead.append(pool.submit(make))
            batch, ready = ahead.popleft().result()
            ahead.append(pool.submit(make))
    finally:
        for future in ahead:
            future.cancel()
        # the garbage collector may run this in the prefetching thread
        outside = not threading.current_thread().name.startswith(THREAD)
        pool.shutdown(wait=outside)  # after the current batch
        if outside and isinstance(batches, Generator):
            batches.close()


def _handed_over(batch: Batch, ready: torch.cuda.Event | None, device: torch.device) -> Batch:
    """Make the batch safe to use on the consumer's stream."""
    if ready is not None:
        stream = torch.cuda.current_stream(device)
        stream.wait_event(ready)
        for part in tensors(tuple(batch)):
            part.record_stream(stream)  # its memory is not reused before the consumer is done
    return batch
