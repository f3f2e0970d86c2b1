"""A notebook runs whole, or its end says why not; an interrupt ends kernels, and only them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import pytest
from filelock import FileLock

from astkit.runs import execute, sweep
from astkit.runs.execute import End
from astkit.runs.record import Record
from tests.runs import sweeping

UP = "import os, time\nfrom pathlib import Path\nPath(up).write_text(str(os.getpid()))\n"
TIDY = UP + "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    Path(up).write_text('tidy')"
STUBBORN = UP + (
    "import signal\n"
    "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
    "Path(up).write_text('stubborn')\ntime.sleep(60)"
)
WAIT = UP + "time.sleep(60)"


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path):
    """Execute a notebook of one cell on another thread; returns the thread, its end, its file."""

    def begin(code, ready=lambda text: text):
        up = tmp_path / f"{time.monotonic_ns()}"
        source = sweeping.write(up.with_suffix(".ipynb"), code, parameters="up = ''  # a file")
        ends = []

        def work():
            target = up.with_suffix(".executed.ipynb")
            ends.append(execute.execute(source, target, {"up": str(up)}))

        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: up.exists() and ready(up.read_text()))
        return thread, ends, up

    return begin


def test_what_a_cell_ends_with_is_how_the_notebook_ends(tmp_path, capfd):
    source = sweeping.write(tmp_path / "a {b}.ipynb", "print(os.getcwd(), os.environ['X'], n)")
    book = nbformat.read(source, 4)
    book.cells[0].source = "import os\nn = 1"
    book.metadata.clear()  # no kernel is named
    nbformat.write(book, source)
    (tmp_path / "fnmatch.py").write_text("raise RuntimeError('a file beside the notebook')")
    target = tmp_path / "out {b}.ipynb"
    end = execute.execute(source, target, {"n": 3}, environment={"X": "set"}, show=True)
    assert end == End("complete")
    assert capfd.readouterr().out == f"{tmp_path} set 3\n"
    assert nbformat.read(target, 4).cells[-1].outputs[0].text == f"{tmp_path} set 3\n"
    for code, status, kind in (
        ("raise SystemExit(0)", "left", None),
        ("1 / 0", "failed", "ZeroDivisionError"),
        ("import os; os._exit(3)", "failed", "DeadKernelError"),
    ):
        end = execute.execute(sweeping.write(source, "1", code), target, {})
        assert (end.status, end.error.get("type")) == (status, kind)
        if end.error:
            assert end.error["cell"] == {"number": 3, "source": code}
            assert "\x1b" not in end.error["traceback"]


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.full) for n in (2, signal.SIGHUP))],
)
def test_a_signal_ends_all_kernels_and_then_the_block(start, number):
    before = signal.getsignal(number)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def block():
        with execute.interruptible():
            running = [start(code) for code in (TIDY, WAIT)]
            os.kill(os.getpid(), number)
            for thread, ends, _ in running:
                thread.join(30)
                assert [end.status for end in ends] == ["interrupted"]
            assert running[0][2].read_text() == "tidy"  # a cell may put its things away
            assert execute.execute(Path(), Path(), {}) == End("interrupted")  # none is started

    with pytest.raises(KeyboardInterrupt):
        block()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert not execute.interrupted()
    assert signal.getsignal(number) is before


def test_an_interrupted_sweep_ends_its_kernels_and_can_be_resumed(tmp_path):
    up, root = tmp_path / "up", tmp_path / "runs"
    wait = f"from pathlib import Path\nimport time\nif seed:\n    Path({str(up)!r}).touch()\n"
    source, lines = sweeping.write(tmp_path / "n.ipynb", wait + "    time.sleep(60)"), []

    def interrupt():
        until(up.exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        sweep.run(source, {"seed": [0, 1]}, root=root, announce=lines.append)
    assert lines[1].startswith("1/2  complete  seed=0")
    assert not execute._running
    found = {record.config["seed"]: record for record in map(Record, root.glob("*_n_*"))}
    assert [found[seed].status for seed in (0, 1)] == ["complete", "incomplete"]
    for record in found.values():  # no process holds them any more
        with FileLock(record.folder / ".lock", timeout=0):
            pass


def test_a_kernel_that_does_not_end_is_killed(start, monkeypatch):
    grace = ((signal.SIGINT, 0.2), (signal.SIGTERM, 0.2), (signal.SIGKILL, 0.0))
    monkeypatch.setattr(execute, "_GRACE", grace)

    def block():
        with execute.interruptible():
            thread, ends, _ = start(STUBBORN, lambda text: text == "stubborn")
            os.kill(os.getpid(), signal.SIGINT)
            thread.join(30)
            assert [end.status for end in ends] == ["interrupted"]

    with pytest.raises(KeyboardInterrupt):
        block()
    assert not execute._running


@pytest.mark.full
def test_an_error_in_the_block_ends_the_kernels_as_well(start):
    running = []

    def block():
        with execute.interruptible():
            running.append(start(WAIT))
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        block()
    ((thread, ends, _),) = running
    thread.join(30)
    assert [end.status for end in ends] == ["interrupted"]


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with execute.interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not execute.interrupted()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.full
def test_an_interrupt_outside_of_a_block_ends_the_kernel(tmp_path):
    up = tmp_path / "up"
    source = sweeping.write(tmp_path / "n.ipynb", WAIT, parameters="up = ''  # a file")

    def interrupt():
        until(up.exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        execute.execute(source, tmp_path / "out.ipynb", {"up": str(up)})
    assert not execute._running
    pid = int(up.read_text())
    until(lambda: not Path(f"/proc/{pid}").exists(), 10)


def test_kernels_end_when_the_process_that_started_them_is_killed(tmp_path):
    up = tmp_path / "up"
    source = sweeping.write(tmp_path / "n.ipynb", WAIT, parameters="up = ''  # a file")
    code = (
        "import sys\nfrom pathlib import Path\nfrom astkit.runs.execute import execute\n"
        "source, target, up = sys.argv[1:]\nexecute(Path(source), Path(target), {'up': up})"
    )
    runner = subprocess.Popen([sys.executable, "-c", code, source, tmp_path / "out.ipynb", up])
    until(lambda: up.exists() and up.read_text())
    runner.kill()
    runner.wait()
    pid = int(up.read_text())
    until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or zombie(pid), 20)


def zombie(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
