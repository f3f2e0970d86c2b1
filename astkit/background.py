"""Background jobs that must not delay a training step, run in order in one thread.

Jobs write files or draw; training never waits for their results. A thread does not survive
``os.fork``, so a writer rejects jobs from any process except its own.
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
    """Runs jobs in the order of ``put``, in one thread.

    ``put`` returns immediately while fewer than ``limit`` jobs are queued, and blocks otherwise, to
    bound memory. A queued job is replaced by a newer one with the same ``key``, which is appended
    to the queue: for example, only the newest checkpoint is written.

    An exception in a job is raised once, as a `BackgroundError`, by the next ``put``, ``flush`` or
    ``close``; later jobs still run. All accepted jobs run: by ``close``, and after a
    ``KeyboardInterrupt`` or without ``close``, before the interpreter exits. Jobs must not use the
    writer. Raises ``ValueError`` for a job put after ``close`` or in a forked process.
    """

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self._jobs: OrderedDict[Hashable, tuple[str, Job]] = OrderedDict()
        self._failed: list[tuple[str, BaseException]] = []
        self._changed = threading.Condition()
        # the interpreter joins the executor's thread at exit, after the last job
        self._pool = ThreadPoolExecutor(1, "astkit-background")
        self._process = os.getpid()
        self._closed = False

    def put(self, job: Job, what: str = "a background job", key: Hashable = None) -> None:
        """Queue ``job``; ``what`` names it in error messages.

        Raises `BackgroundError` if an earlier job has failed; ``job`` is queued nevertheless.
        """
        self._check_process()
        if self._closed:
            raise ValueError(f"{what} was put into a closed writer: create a new BackgroundWriter")
        key = object() if key is None else key
        with self._changed:
            fresh = key not in self._jobs
            if fresh:
                self._changed.wait_for(lambda: len(self._jobs) < self.limit)
            self._jobs[key] = (what, job)
            self._jobs.move_to_end(key)
            failed = bool(self._failed)  # before this job can fail
        if fresh:
            self._pool.submit(self._run_next)
        if failed:
            self._raise_failed()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all accepted jobs are done, for at most ``timeout`` seconds.

        Raises ``TimeoutError`` if they are not, and `BackgroundError` if one has failed.
        """
        self._check_process()
        if not self._closed:
            try:
                self._pool.submit(self._run_all).result(timeout)
            except Unfinished:
                raise TimeoutError(
                    f"{len(self._jobs)} background jobs are unfinished after {timeout} seconds: the"
                    " disk or the front end is slow or hangs; increase timeout or check it"
                ) from None
        self._raise_failed()

    def close(self) -> None:
        """Run the queued jobs, then end the thread; raises `BackgroundError` as ``flush`` does."""
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
        while self._jobs:  # an interrupted put may leave a queued job without a submission
            self._run_next()

    def _run_next(self) -> None:
        with self._changed:
            if not self._jobs:
                return
            _, (what, job) = self._jobs.popitem(last=False)
            self._changed.notify_all()
        try:
            job()
        except BaseException as error:  # SystemExit is also raised in the training thread
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
                " create one in the process that writes"
            )


class Coalesced(Generic[T]):
    """Items processed in batches by a `BackgroundWriter`: many items, one queued job.

    Waking a thread delays the caller longer than writing a short line, so ``consume`` is
    called at most once in ``pause`` seconds, in the thread of ``writer``, with all items so far, in
    order. Call ``hand_over`` at the end. ``what`` names the job in errors; ``put`` blocks while
    more than ``limit`` items are queued.
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
        """Queue ``item``. Raises the errors of ``BackgroundWriter.put``; the item is kept."""
        self._items.append(item)
        full = len(self._items) > self.limit
        if full or time.perf_counter() - self._last >= self.pause:
            self.hand_over()
        if full:
            self.writer.flush()

    def hand_over(self) -> None:
        """Queue processing of all items so far. Raises the errors of ``BackgroundWriter.put``."""
        self._last = time.perf_counter()
        self.writer.put(self.drain, self.what, key=self)

    def drain(self) -> None:
        """Process all items so far; runs as a job of the writer."""
        items = [self._items.popleft() for _ in range(len(self._items))]
        if items:
            self.consume(items)
