"""Background jobs, such as writing and drawing, which must not delay a training step."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

Job = Callable[[], object]


class BackgroundError(RuntimeError):
    """A background job failed; the message names it and the cause."""


class BackgroundWriter:
    """Runs jobs in the order of ``put``, in one thread.

    A queued job is replaced by a newer one with the same ``key``, which is appended to the queue:
    for example, only the newest checkpoint is written.

    An exception in a job is raised once, as a `BackgroundError`, by a later ``put`` or ``flush``;
    later jobs still run. The interpreter exits after the last job, or with ``daemon`` without
    waiting for any. Jobs must not use the writer. Raises ``ValueError`` in a forked process, in
    which the thread does not exist.
    """

    def __init__(self, daemon: bool = False) -> None:
        self._jobs: OrderedDict[object, tuple[str, Job]] = OrderedDict()
        self._failed: list[tuple[str, BaseException]] = []
        self._lock = threading.Lock()
        # the interpreter joins the executor's thread at exit, after the last job
        self._pool = _Daemon() if daemon else ThreadPoolExecutor(1, "astkit-background")
        self._daemon, self._process = daemon, os.getpid()

    def put(self, job: Job, what: str = "a background job", key: str = "") -> None:
        """Queue ``job``; ``what`` names it in error messages.

        Raises `BackgroundError` if a job has failed; ``job`` is queued nevertheless.
        """
        self._queue(job, what, key)
        self._raise_failed()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait for all jobs so far, for at most ``timeout`` seconds; whether they are done.

        Raises `BackgroundError` if one has failed.
        """
        done = threading.Event()
        self._queue(done.set, "flush", "")
        ended = done.wait(0 if sys.is_finalizing() else timeout)
        self._raise_failed()
        return ended

    def _queue(self, job: Job, what: str, key: str) -> None:
        if os.getpid() != self._process:
            raise ValueError(
                "a BackgroundWriter was used in a forked process, where its thread does not exist:"
                " create one in the process that writes"
            )
        with self._lock:
            fresh = self._jobs.pop(key, None) is None
            self._jobs[key or object()] = (what, job)
        if not sys.is_finalizing():
            if fresh:
                self._pool.submit(self._run)
        elif not self._daemon:  # no thread runs any more
            self._run()

    def _run(self) -> None:
        while True:  # all jobs: an interrupted put may leave one without a submission
            with self._lock:
                if not self._jobs:
                    return
                _, (what, job) = self._jobs.popitem(last=False)
            try:
                job()
            except BaseException as error:  # SystemExit is also raised in the training thread
                with self._lock:
                    self._failed.append((what, error))

    def _raise_failed(self) -> None:
        with self._lock:
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


class _Daemon:
    """As an executor of one thread, but the interpreter does not wait for it."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        weakref.finalize(self, self._jobs.put, None)  # ends the thread
        threading.Thread(target=self._work, args=(self._jobs,), daemon=True).start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    @staticmethod
    def _work(jobs: SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            job()
            del job  # or the writer would live as long as its thread
