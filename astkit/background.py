"""Jobs that must not delay a training step, run one after another in a thread.

Jobs write files or draw; training never waits for a result of theirs. A thread does not survive
``os.fork``, so a writer refuses jobs from any process but the one that made it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Unfinished
from typing import Generic, TypeVar

Job = Callable[[], object]
T = TypeVar("T")


class BackgroundError(RuntimeError):
    """A background job failed; the message names it and the cause."""


class BackgroundWriter:
    """Runs jobs in the order of ``put``, in one thread beside the training thread.

    ``put`` returns at once while fewer than ``limit`` jobs wait, and waits otherwise, so that
    memory stays bounded. A waiting job is replaced by a newer one of the same ``key``, which goes
    to the end of the queue: of checkpoints only the newest matters.

    An exception in a job is raised as a `BackgroundError` by the next ``put``, ``flush`` or
    ``close``, once; later jobs still run. All accepted jobs run: by ``close``, and after a
    ``KeyboardInterrupt`` or without ``close``, before the interpreter ends. Jobs must not call the
    writer. Raises ``ValueError`` for a job put after ``close`` or in a forked process.
    """

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self._jobs: OrderedDict[Hashable, tuple[str, Job]] = OrderedDict()
        self._failed: list[tuple[str, BaseException]] = []
        self._changed = threading.Condition()
        # the interpreter joins the executor's thread before it ends, after the last job
        self._pool = ThreadPoolExecutor(1, "astkit-background")
        self._process = os.getpid()
        self._closed = False

    def put(self, job: Job, what: str = "a background job", key: Hashable = None) -> None:
        """Accept ``job``; ``what`` names it in an error.

        Raises `BackgroundError` when an earlier job has failed; ``job`` is accepted all the same.
        """
        self._check_process()
        if self._closed:
            raise ValueError(f"{what} was put into a closed writer: make a new BackgroundWriter")
        key = object() if key is None else key
        with self._changed:
            fresh = key not in self._jobs
            if fresh:
                self._changed.wait_for(lambda: len(self._jobs) < self.limit)
            self._jobs[key] = (what, job)
            self._jobs.move_to_end(key)
            failed = bool(self._failed)  # before this job can have added to it
        if fresh:
            self._pool.submit(self._run_next)
        if failed:
            self._raise_failed()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all accepted jobs are done, for at most ``timeout`` seconds.

        Raises ``TimeoutError`` when they are not, and `BackgroundError` when one has failed.
        """
        self._check_process()
        if not self._closed:
            try:
                self._pool.submit(self._run_all).result(timeout)
            except Unfinished:
                raise TimeoutError(
                    f"{len(self._jobs)} background jobs still wait after {timeout} seconds: the"
                    " disk or the front end is slow or hangs; wait longer or check it"
                ) from None
        self._raise_failed()

    def close(self) -> None:
        """Run the accepted jobs, then end the thread; raises `BackgroundError` as ``flush``."""
        self._check_process()
        if not self._closed:
            self._pool.submit(self._run_all)
            self._closed = True
        self._pool.shutdown()
        self._raise_failed()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run_all(self) -> None:
        while self._jobs:  # an interrupted put has left a job that nothing was submitted for
            self._run_next()

    def _run_next(self) -> None:
        with self._changed:
            if not self._jobs:
                return
            _, (what, job) = self._jobs.popitem(last=False)
            self._changed.notify_all()
        try:
            job()
        except BaseException as error:  # SystemExit too is raised in the training thread
            with self._changed:
                self._failed.append((what, error))

    def _raise_failed(self) -> None:
        with self._changed:
            failed, self._failed = self._failed, []
        if not failed:
            return
        what, error = failed[0]
        raised = BackgroundError(
            f"{what} failed in the background ({type(error).__name__}: {error}): fix the cause,"
            " then resume the run"
        )
        for other, reason in failed[1:]:
            raised.add_note(f"{other} failed as well ({type(reason).__name__}: {reason})")
        raise raised from error

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ValueError(
                "a BackgroundWriter was used in a forked process, where its thread does not exist:"
                " make one in the process that writes"
            )


class Coalesced(Generic[T]):
    """Items that a `BackgroundWriter` consumes together: many items, one waiting job.

    Waking a thread delays the caller longer than a short line takes to write, so ``consume`` is
    called at most once in ``pause`` seconds, in the thread of ``writer``, with all items so far, in
    order. Call ``hand_over`` at the end. ``what`` names the job in an error; ``put`` waits while
    more than ``limit`` items do.
    """

    def __init__(
        self,
        writer: BackgroundWriter,
        consume: Callable[[list[T]], object],
        what: str,
        pause: float = 0.2,
        limit: int = 100_000,
    ) -> None:
        self.writer, self.consume, self.what = writer, consume, what
        self.pause, self.limit = pause, limit
        self._items: deque[T] = deque()
        self._last = -math.inf

    def put(self, item: T) -> None:
        """Have ``item`` consumed. Raises what ``BackgroundWriter.put`` raises; keeps the item."""
        self._items.append(item)
        full = len(self._items) > self.limit
        if full or time.perf_counter() - self._last >= self.pause:
            self.hand_over()
        if full:
            self.writer.flush()

    def hand_over(self) -> None:
        """Have all items so far consumed. Raises what ``BackgroundWriter.put`` raises."""
        self._last = time.perf_counter()
        self.writer.put(self.drain, self.what, key=self)

    def drain(self) -> None:
        """Consume all items so far; a job of the writer."""
        items = [self._items.popleft() for _ in range(len(self._items))]
        if items:
            self.consume(items)
