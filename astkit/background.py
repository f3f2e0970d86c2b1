"""Work that must not hold a training step: done one job after another in a thread of its own.

Jobs write files or draw; they compute nothing that training waits for. A thread does not survive
``os.fork``, so a writer refuses jobs from any process but the one that made it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Unfinished
from typing import Generic, TypeVar

Job = Callable[[], object]
T = TypeVar("T")


class BackgroundError(RuntimeError):
    """A background job failed; the message says which one and why."""


class BackgroundWriter:
    """Runs jobs in the order they were put, in one thread beside the training thread.

    ``put`` returns at once while there is room, and waits while ``limit`` jobs wait, so that memory
    stays bounded. Two ways keep the queue from filling: an unstarted job gives way to a newer one
    of the same ``key``, which goes to the end (checkpoints, of which only the newest matters), and
    `Coalesced`, whose waiting items are one job (lines of metrics).

    What a job raises is kept, and raised as a `BackgroundError` by the next ``put``, ``flush`` or
    ``close``, once; later jobs are run nevertheless. Every accepted job is run: by ``close``, and
    after a ``KeyboardInterrupt``, or without ``close``, before the interpreter ends. Jobs must not
    call the writer. Raises ``ValueError`` for a limit below 1, and for a job put after ``close`` or
    in a forked process.
    """

    def __init__(self, limit: int = 64) -> None:
        if limit < 1:
            raise ValueError(f"limit is {limit}: let at least 1 job wait")
        self.limit = limit
        self._jobs: OrderedDict[Hashable, tuple[str, Job]] = OrderedDict()
        self._failed: list[tuple[str, BaseException]] = []
        self._changed = threading.Condition()
        # the executor's thread is joined before the interpreter ends, with its queue worked off
        self._pool = ThreadPoolExecutor(1, "astkit-background")
        self._process = os.getpid()
        self._closed = False

    def put(self, job: Job, what: str = "a background job", key: Hashable = None) -> None:
        """Have ``job`` run; ``what`` names it in an error.

        Raises `BackgroundError` when an earlier job has failed; ``job`` is accepted all the same.
        """
        self._own()
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
            self._raise_kept()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all accepted jobs are done, for at most ``timeout`` seconds.

        Raises ``TimeoutError`` when they are not, and `BackgroundError` when one has failed.
        """
        self._own()
        if not self._closed:
            try:
                self._pool.submit(self._run_all).result(timeout)
            except Unfinished:
                raise TimeoutError(
                    f"background jobs did not end within {timeout} seconds, {len(self._jobs)} still"
                    " wait: the disk or the front end is slow or hangs; wait longer or look at it"
                ) from None
        self._raise_kept()

    def close(self) -> None:
        """Do what was accepted, then end the thread. Raises `BackgroundError` as ``flush`` does."""
        self._own()
        if not self._closed:
            self._pool.submit(self._run_all)
            self._closed = True
        self._pool.shutdown()
        self._raise_kept()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run_all(self) -> None:
        while self._jobs:  # a put that was interrupted has left its job without a call of its own
            self._run_next()

    def _run_next(self) -> None:
        with self._changed:
            if not self._jobs:
                return
            _, (what, job) = self._jobs.popitem(last=False)
            self._changed.notify_all()
        try:
            job()
        except BaseException as error:  # even SystemExit must reach the training thread
            with self._changed:
                self._failed.append((what, error))

    def _raise_kept(self) -> None:
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

    def _own(self) -> None:
        if os.getpid() != self._process:
            raise ValueError(
                "a BackgroundWriter was used in a forked process, where its thread does not exist:"
                " make one in the process that writes"
            )


class Coalesced(Generic[T]):
    """Items for a `BackgroundWriter` that are handed over together: many items, one waiting job.

    Waking a thread holds the one that wakes it for longer than a short line takes to write (they
    share one interpreter), so ``consume`` is called once in ``pause`` seconds at most, in the
    thread of ``writer``, with all items that have gathered, in order. Call ``hand_over`` at the
    end. ``what`` names the job in an error; ``put`` waits while more than ``limit`` items do.
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
        self._items: list[T] = []
        self._lock = threading.Lock()
        self._scheduled = False
        self._last = -math.inf

    def put(self, item: T) -> None:
        """Have ``item`` consumed. Raises what ``BackgroundWriter.put`` raises; keeps the item."""
        with self._lock:
            self._items.append(item)
        full = len(self._items) > self.limit
        if not self._scheduled and (full or time.perf_counter() - self._last >= self.pause):
            self.hand_over()
        if full:
            self.writer.flush()

    def hand_over(self) -> None:
        """Have what has gathered consumed now. Raises what ``BackgroundWriter.put`` raises."""
        try:
            self._scheduled = True
            self._last = time.perf_counter()
            self.writer.put(self.drain, self.what)
        except BaseException:  # the next item asks again: one job too many finds nothing
            self._scheduled = False
            raise

    def drain(self) -> None:
        """Consume what has gathered. The writer's job; elsewhere only while no job waits."""
        # first the flag: an item that comes too late for this job asks for the next one
        self._scheduled = False
        with self._lock:
            items, self._items = self._items, []
        if items:
            self.consume(items)
