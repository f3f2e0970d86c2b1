"""Children are ended by an interrupt, by force where they will not go, and no other process is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from astkit.runs import children

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time\n"
    "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
    "print('up', flush=True); time.sleep(60)"
)


@pytest.fixture
def start(tmp_path):
    """Run a child on another thread; returns the thread, its result to be, and when it is up."""

    def begin(code):
        path = tmp_path / f"{time.monotonic_ns()}"
        results = []

        def work():
            with path.open("wb") as file:
                results.append(children.run([sys.executable, "-c", code], stdout=file))

        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: path.exists() and path.read_bytes().strip() == b"up")
        return thread, results

    return begin


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.01)


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_comes_back(code):
    assert children.run([sys.executable, "-c", f"raise SystemExit({code})"]) == code


def test_a_killed_child_has_the_signal_as_its_code():
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert children.run([sys.executable, "-c", killed]) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_children_and_then_the_block(start, number):
    before = signal.getsignal(number)
    bystander = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.DEVNULL)

    def block():
        with children.interruptible():
            running = [start(SLEEP) for _ in range(2)]
            os.kill(os.getpid(), number)
            for thread, results in running:
                thread.join(30)
                assert results == [None]
            assert children.interrupted()
            assert children.run([sys.executable, "-c", "1"]) is None  # none is started any more

    with pytest.raises(KeyboardInterrupt):
        block()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert not children.interrupted()
    assert signal.getsignal(number) is before
    assert children.run([sys.executable, "-c", "1"]) == 0


def test_a_child_that_will_not_go_is_killed(start, monkeypatch):
    grace = ((signal.SIGINT, 0.2), (signal.SIGTERM, 0.2))
    monkeypatch.setattr(children, "_GRACE", grace)

    def block():
        with children.interruptible():
            thread, results = start(STUBBORN)
            os.kill(os.getpid(), signal.SIGINT)
            thread.join(30)
            assert results == [None]

    with pytest.raises(KeyboardInterrupt):
        block()
    assert not children._running


def test_a_child_may_take_its_time_to_put_things_away(start, tmp_path):
    tidy = (
        "import time\n"
        "try: print('up', flush=True); time.sleep(60)\n"
        f"except KeyboardInterrupt: time.sleep(0.3); open({str(tmp_path / 'tidy')!r}, 'w')"
    )

    def block():
        with children.interruptible():
            thread, _ = start(tidy)
            os.kill(os.getpid(), signal.SIGINT)
            thread.join(30)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert (tmp_path / "tidy").exists()


def test_an_error_in_the_block_ends_the_children_as_well(start):
    running = []

    def block():
        with children.interruptible():
            running.append(start(SLEEP))
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        block()
    ((thread, results),) = running
    thread.join(30)
    assert results == [None]


def test_without_local_children_the_interrupt_comes_at_once():
    reached = []

    def block():
        with children.interruptible(local=False):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert not reached


def test_an_ignored_signal_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with children.interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            assert children.run([sys.executable, "-c", "1"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_outside_of_a_block_ends_the_child(tmp_path):
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        children.run([sys.executable, "-c", SLEEP], stdout=subprocess.DEVNULL)
    assert not children._running


def test_other_threads_run_children_without_handlers():
    codes = []

    def work():
        with children.interruptible():
            codes.append(children.run([sys.executable, "-c", "1"]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert codes == [0]
