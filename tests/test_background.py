"""Background jobs: in order, none lost, none waited for, and no error swallowed."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.background import BackgroundError, BackgroundWriter

PATIENCE = 30.0  # seconds after which a wait that should have ended has failed


class Disk:
    """A disk that takes nothing until it is let go."""

    def __init__(self):
        self.ready, self.busy, self.written = threading.Event(), threading.Event(), []

    def write(self, item):
        self.busy.set()
        assert self.ready.wait(PATIENCE)
        self.written.append(item)


@pytest.fixture
def disk():
    disk = Disk()
    yield disk
    disk.ready.set()


@pytest.fixture
def writer(disk):
    writer = BackgroundWriter()
    yield writer
    disk.ready.set()
    with suppress(BackgroundError):
        writer.flush()


def occupy(writer, disk, item="first"):
    """Have the thread hang in a job, so that what is put next must wait."""
    writer.put(lambda: disk.write(item))
    assert disk.busy.wait(PATIENCE)


def fail():
    raise OSError(28, "No space left on device")


def have_failed(writer, what="a background job"):
    """Put a job that fails, and return when the writer knows."""
    hold, known = threading.Event(), threading.Event()
    writer.put(hold.wait)
    writer.put(fail, what)
    writer.put(known.set)
    hold.set()
    assert known.wait(PATIENCE)


@pytest.mark.parametrize("daemon", [False, True])
def test_jobs_run_in_order_in_one_thread_that_ends_with_the_writer(daemon):
    writer, seen = BackgroundWriter(daemon), []

    def job(owner, number):
        seen.append((owner, number, threading.current_thread()))

    def put_many(writer, owner):
        for number in range(300):
            writer.put(partial(job, owner, number))

    putting = [threading.Thread(target=put_many, args=(writer, owner)) for owner in "ab"]
    for thread in putting:
        thread.start()
    for thread in putting:
        thread.join(PATIENCE)
    writer.flush()
    for wanted in "ab":
        assert [number for owner, number, _ in seen if owner == wanted] == list(range(300))
    (thread,) = {thread for _, _, thread in seen}
    assert thread is not threading.current_thread()
    del writer
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_put_returns_while_a_job_hangs(writer, disk):
    occupy(writer, disk)
    for number in range(200):
        writer.put(lambda number=number: disk.write(number))
    assert disk.written == []  # nothing has moved, and we are here
    disk.ready.set()
    writer.flush()
    assert disk.written == ["first", *range(200)]


def test_the_newest_job_of_a_key_replaces_the_unstarted_one_and_goes_last(writer, disk):
    occupy(writer, disk)
    for number in range(50):
        writer.put(lambda number=number: disk.write(f"checkpoint {number}"), key="checkpoint")
        if number == 20:
            writer.put(lambda: disk.write("metrics"))
    disk.ready.set()
    writer.flush()
    assert disk.written == ["first", "metrics", "checkpoint 49"]


def test_a_replaced_job_is_freed_while_the_disk_hangs(writer, disk):
    occupy(writer, disk)
    jobs = [lambda: None for _ in range(3)]
    alive = [weakref.ref(job) for job in jobs]
    while jobs:
        writer.put(jobs.pop(0), key="checkpoint")
    assert [reference() is None for reference in alive] == [True, True, False]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=30))
def test_with_any_keys_the_last_of_each_and_all_without_one_are_done(keys):
    done, writer = [], BackgroundWriter()
    for number, key in enumerate(keys):
        writer.put(lambda number=number: done.append(number), key=key)
    writer.flush()
    must = {number for number, key in enumerate(keys) if not key or key not in keys[number + 1 :]}
    assert done == sorted(done)
    assert must <= set(done)
    assert len(done) == len(set(done))


@pytest.mark.parametrize("later", ["put", "flush"])
def test_an_error_is_raised_once_by_what_comes_next(later):
    writer = BackgroundWriter()
    done = []
    have_failed(writer, "writing metrics")
    act = {"put": lambda: writer.put(lambda: done.append(1)), "flush": writer.flush}
    sentence = (
        r"writing metrics failed in the background \(OSError: \[Errno 28\] No space left on device"
        r"\): fix the cause, then resume the run"
    )
    with pytest.raises(BackgroundError, match=sentence) as caught:
        act[later]()
    assert isinstance(caught.value.__cause__, OSError)
    writer.flush()  # not a second time
    assert done == ([1] if later == "put" else [])  # the job whose put raised was accepted


def test_later_jobs_run_after_a_failure_and_later_failures_are_noted():
    writer, done = BackgroundWriter(), []
    with pytest.raises(BackgroundError, match="first failed") as caught:  # noqa: PT012
        with suppress(BackgroundError):  # the first put after the failure may raise already
            hold = threading.Event()
            writer.put(hold.wait)
            writer.put(fail, "first")
            writer.put(fail, "second")
            writer.put(lambda: done.append(1))
            hold.set()
        writer.flush()
    assert done == [1]
    assert caught.value.__notes__ == [
        "second failed as well (OSError: [Errno 28] No space left on device)"
    ]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(3)])
def test_even_a_job_that_wants_to_exit_is_heard_of(writer, error):
    def leave():
        raise error

    with pytest.raises(BackgroundError, match=f"a job failed .*{type(error).__name__}: 3"):  # noqa: PT012
        writer.put(leave, "a job")
        writer.flush()


def test_flush_gives_up_in_time_and_loses_nothing(writer, disk):
    occupy(writer, disk)
    writer.put(lambda: disk.write("second"))
    assert writer.flush(0.01) is False
    disk.ready.set()
    assert writer.flush(PATIENCE) is True
    assert disk.written == ["first", "second"]


SCRIPT = """
import signal, sys, threading, time
from pathlib import Path
from astkit.background import BackgroundWriter

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" starts with it ignored
out, end = Path(sys.argv[1]), sys.argv[2]
writer = BackgroundWriter(daemon="daemon" in end)

def write(number):
    time.sleep(0.02)
    with out.open("a") as file:
        file.write(f"{number}\\n")

class Late:
    put, flush = writer.put, writer.flush

    def __del__(self):  # at exit, when no thread runs any more
        self.put(lambda: write(9))
        self.flush()

for number in range(9 if end == "late" else 10):
    writer.put(lambda number=number: write(number))
if "daemon" in end:
    writer.flush()
if "late" in end:
    late = Late()
if end == "daemon that hangs":
    writer.put(threading.Event().wait)
print("put", flush=True)
if end == "interrupt":
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "end", ["without flush", "interrupt", "late", "late daemon", "daemon that hangs"]
)
def test_a_process_that_ends_does_its_jobs_but_waits_for_no_daemon(tmp_path, end):
    out = tmp_path / "numbers"
    command = [sys.executable, "-c", SCRIPT, str(out), end]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "put\n"
    if end == "interrupt":
        process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert errors == "" or end == "interrupt"
    assert ("KeyboardInterrupt" in errors) == (end == "interrupt")
    assert out.read_text().split() == [str(number) for number in range(10)]


def test_an_interrupt_while_a_job_is_put_loses_nothing(writer, monkeypatch):
    def interrupted(pool, job):
        raise KeyboardInterrupt

    done = []
    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.put(lambda: done.append(1))
    assert writer.flush(PATIENCE)
    assert done == [1]


def test_an_interrupt_while_waiting_loses_nothing(writer, disk):
    occupy(writer, disk)
    writer.put(lambda: disk.write("second"))
    main = threading.main_thread().ident
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
        writer.flush(PATIENCE)
    signal.signal(signal.SIGINT, before)
    disk.ready.set()
    writer.flush()
    assert disk.written == ["first", "second"]


def _use(writer, answers):
    try:
        writer.put(print)
    except ValueError as error:
        answers.put(str(error))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_a_forked_process_is_told_to_make_its_own(writer):
    writer.put(lambda: None)  # the thread runs here, and only here
    writer.flush()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_use, args=(writer, answers))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert "used in a forked process" in answers.get()
