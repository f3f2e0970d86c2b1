"""Background jobs: in order, none lost, none waited for, and no error swallowed."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.background import BackgroundError, BackgroundWriter, Coalesced

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
    writer = BackgroundWriter(limit=4)
    yield writer
    disk.ready.set()
    with suppress(BackgroundError):
        writer.close()


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


def test_jobs_run_in_order_in_one_thread_that_is_not_this_one(writer):
    seen = []
    for number in range(100):
        writer.put(lambda number=number: seen.append((number, threading.get_ident())))
    writer.flush()
    assert [number for number, _ in seen] == list(range(100))
    assert len({thread for _, thread in seen} | {threading.get_ident()}) == 2


def test_put_returns_while_a_job_hangs(writer, disk):
    occupy(writer, disk)
    for number in range(4):
        writer.put(lambda number=number: disk.write(number))
    assert disk.written == []  # nothing has moved, and we are here
    disk.ready.set()
    writer.flush()
    assert disk.written == ["first", 0, 1, 2, 3]


def test_a_full_queue_waits_for_room_and_loses_nothing(writer, disk):
    occupy(writer, disk)

    def put_many():
        for number in range(12):
            writer.put(lambda number=number: disk.write(number))

    putting = threading.Thread(target=put_many)
    putting.start()
    putting.join(0.2)
    assert putting.is_alive()  # four wait, the fifth may not
    disk.ready.set()
    putting.join(PATIENCE)
    assert not putting.is_alive()
    writer.flush()
    assert disk.written == ["first", *range(12)]


def test_the_newest_job_of_a_key_replaces_the_unstarted_one_and_goes_last(writer, disk):
    occupy(writer, disk)
    for number in range(50):
        writer.put(lambda number=number: disk.write(f"checkpoint {number}"), key="checkpoint")
        if number == 20:
            writer.put(lambda: disk.write("metrics"))
    disk.ready.set()
    writer.flush()
    assert disk.written == ["first", "metrics", "checkpoint 49"]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=30), st.integers(1, 5))
def test_with_any_keys_the_last_of_each_and_all_without_one_are_done(keys, limit):
    done = []
    with BackgroundWriter(limit) as writer:
        for number, key in enumerate(keys):
            writer.put(lambda number=number: done.append(number), key=key)
    must = {
        number for number, key in enumerate(keys) if key is None or key not in keys[number + 1 :]
    }
    assert done == sorted(done)
    assert must <= set(done)
    assert len(done) == len(set(done))


@pytest.mark.parametrize("later", ["put", "flush", "close"])
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
        act.get(later, writer.close)()
    assert isinstance(caught.value.__cause__, OSError)
    writer.close()  # not a second time
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
        writer.close()
    assert done == [1]
    assert caught.value.__notes__ == [
        "second failed as well (OSError: [Errno 28] No space left on device)"
    ]


def test_even_a_job_that_wants_to_exit_is_heard_of():
    writer = BackgroundWriter()
    writer.put(lambda: sys.exit(3), "a job")
    with pytest.raises(BackgroundError, match="SystemExit: 3"):
        writer.close()


def test_flush_gives_up_in_time_and_loses_nothing(writer, disk):
    occupy(writer, disk)
    writer.put(lambda: disk.write("second"))
    with pytest.raises(TimeoutError, match=r"^1 background jobs are unfinished after 0.01 seconds"):
        writer.flush(0.01)
    disk.ready.set()
    writer.flush()
    assert disk.written == ["first", "second"]


def test_close_does_what_waits_and_ends_the_thread(disk):
    writer = BackgroundWriter()
    occupy(writer, disk)
    writer.put(lambda: disk.write("second"))
    threading.Timer(0.05, disk.ready.set).start()
    writer.close()
    writer.close()
    assert disk.written == ["first", "second"]
    writer.flush()  # nothing to wait for
    with pytest.raises(ValueError, match=r"metrics was put into a closed writer: create a new"):
        writer.put(fail, "metrics")


SCRIPT = """
import signal, sys, time
from pathlib import Path
from astkit.background import BackgroundWriter

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" starts with it ignored
out = Path(sys.argv[1])
writer = BackgroundWriter()

def write(number):
    time.sleep(0.02)
    with out.open("a") as file:
        file.write(f"{number}\\n")

for number in range(10):
    writer.put(lambda number=number: write(number))
print("put", flush=True)
if sys.argv[2] == "interrupt":
    time.sleep(60)
"""


@pytest.mark.parametrize("end", ["without close", "interrupt"])
def test_a_process_that_ends_without_close_still_does_its_jobs(tmp_path, end):
    out = tmp_path / "numbers"
    command = [sys.executable, "-c", SCRIPT, str(out), end]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "put\n"
    if end == "interrupt":
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert ("KeyboardInterrupt" in errors) == (end == "interrupt")
    assert out.read_text().split() == [str(number) for number in range(10)]


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
    writer.close()
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


def test_items_that_gather_are_one_job(writer, disk):
    handed = []
    lines = Coalesced(writer, handed.append, "lines")
    occupy(writer, disk)
    for number in range(10_000):  # far more than the four jobs that may wait
        lines.put(number)
    disk.ready.set()
    writer.flush()
    assert handed == [list(range(10_000))]
    lines.put("next")
    lines.hand_over()
    writer.flush()
    assert handed[1:] == [["next"]]


def test_items_put_while_others_are_consumed_are_not_forgotten():
    handed = []
    with BackgroundWriter() as writer:
        lines = Coalesced(writer, handed.extend, "lines", pause=0)
        for number in range(20_000):
            lines.put(number)
    assert handed == list(range(20_000))


def test_the_thread_is_woken_at_most_once_a_pause(monkeypatch):
    now, handed = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    with BackgroundWriter() as writer:
        lines = Coalesced(writer, handed.append, "lines", pause=0.2)
        for number in range(10):
            lines.put(number)
            writer.flush()
            now[0] += 0.0625
        assert handed == [[0], [1, 2, 3, 4], [5, 6, 7, 8]]
        lines.hand_over()
    assert handed[3:] == [[9]]


def test_a_full_buffer_waits():
    sizes = []
    with BackgroundWriter() as writer:
        lines = Coalesced(writer, lambda items: sizes.append(len(items)), "lines", limit=10)
        for number in range(1000):
            lines.put(number)
        lines.hand_over()
    assert sum(sizes) == 1000
    assert max(sizes) <= 11


def test_an_item_survives_the_error_of_another_job(writer):
    handed = []
    lines = Coalesced(writer, handed.extend, "lines", pause=0)
    have_failed(writer)
    with pytest.raises(BackgroundError):
        lines.put("first")
    lines.put("second")
    writer.flush()
    assert handed == ["first", "second"]
