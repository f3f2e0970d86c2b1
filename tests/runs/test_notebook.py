"""One notebook in its run folder: what is kept, what is gone on with, and who may run it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time

import nbformat
import pytest

from astkit.runs import children, notebook, parameters
from astkit.runs.record import Record
from tests.runs import sweeping

FACTS = """\
import os, sys
from astkit.runs import record
facts = {"cwd": os.getcwd(), "python": sys.executable, "omp": os.environ["OMP_NUM_THREADS"]}
record.current().finish([{"arm": "dense", "seed": seed, "accuracy": 0.5}], facts=facts)
print("done with", names)
"""


@pytest.fixture
def toy(tmp_path):
    return parameters.read(sweeping.write(tmp_path / "toy.ipynb"))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def process(monkeypatch):
    """In place of the notebook's process: what it does to its folder, and its exit code."""
    calls = []

    def play(*acts):
        def run(command, env, **options):
            calls.append((command, env))
            return acts[min(len(calls), len(acts)) - 1](Record(env["ASTKIT_RUN"]), options)

        monkeypatch.setattr(children, "run", run)
        return calls

    return play


def good(record, options):
    return 0


def raising(record, options):
    error = {"type": "ValueError", "message": "no\n  luck", "traceback": "", "cell": {"number": 3}}
    record.write("error.json", error)
    return 1


def test_a_run_leaves_a_complete_folder(tmp_path):
    folder = tmp_path / "my {note} books"
    plan = parameters.read(sweeping.write(folder / "01 my__toy.ipynb", FACTS))
    done = notebook.run(plan, {"seed": 7, "names": "z"}, folder / "runs", threads=3)
    assert (done.status, done.error, done.executed) == ("complete", "", True)
    assert done.parameters == {"seed": 7, "names": ["z"]}
    assert done.folder.parent == folder / "runs"
    assert done.folder.name.split("_", 1)[1].startswith("01_my__toy"[:6])
    assert done.folder.name.endswith("_s7")
    record = Record(done.folder)
    assert record.config["parameters"] == {**plan.defaults, "seed": 7, "names": ["z"]}
    assert (record.config["seed"], record.config["notebook"]) == (7, "01 my__toy.ipynb")
    assert record.read("env.json")["python"]
    assert record.result["rows"] == [{"arm": "dense", "seed": 7, "accuracy": 0.5}]
    facts = {"cwd": str(folder), "python": sys.executable, "omp": "3"}
    assert record.result["facts"] == facts
    assert 0 < record.result["wall_seconds"] == done.seconds
    executed = nbformat.read(done.folder / "notebook.ipynb", 4)
    assert executed.cells[-1].outputs[0].text == "done with ['z']\n"
    assert "injected-parameters" in executed.cells[1].metadata.tags
    assert not list(folder.glob("runs/*/error.json"))


def test_a_failure_keeps_the_notebook_and_names_the_cell(toy, root):
    done = notebook.run(toy, {"rate": 0.2, "seed": 3, "fails": [0.2, 3]}, root)
    assert (done.status, done.error) == ("failed", "ValueError: seed 3 is unlucky in cell [3]")
    record = Record(done.folder)
    assert record.status == "failed"
    assert not (done.folder / "result.json").exists()
    error = record.read("error.json")
    assert (error["type"], error["message"]) == ("ValueError", "seed 3\nis unlucky")
    assert error["cell"] == {"number": 3, "source": sweeping.WORK.strip("\n") + "\n"}
    assert "\x1b" not in error["traceback"]
    assert 'raise ValueError(f"seed {seed}' in error["traceback"]
    cells = nbformat.read(done.folder / "notebook.ipynb", 4).cells
    (failed,) = [cell for cell in cells if cell.source == error["cell"]["source"]]
    assert failed.execution_count == 3
    assert failed.outputs[-1].ename == "ValueError"


def test_without_a_result_of_its_own_a_run_has_no_rows(toy, root, process):
    process(good)
    done = notebook.run(toy, {}, root)
    assert Record(done.folder).result["rows"] == []
    assert Record(done.folder).status == "complete"


def test_a_complete_run_is_not_run_again(toy, root, process):
    calls = process(good)
    first = notebook.run(toy, {"seed": 1}, root)
    second = notebook.run(toy, {"seed": 1, "rate": 0.1}, root)  # the default, said aloud
    assert len(calls) == 1
    assert (second.status, second.executed, second.note) == ("complete", False, "")
    assert (second.folder, second.seconds) == (first.folder, first.seconds)
    assert notebook.run(toy, {"seed": 2}, root).folder != first.folder
    assert len(calls) == 2


def test_again_marks_the_old_run_stale(toy, root, process):
    process(good)
    first, second = (notebook.run(toy, {}, root, again=again) for again in (False, True))
    assert Record(first.folder).status == "stale"
    assert Record(second.folder).status == "complete"
    third = notebook.run(toy, {}, root)
    assert (third.folder, third.executed) == (second.folder, False)


def test_a_changed_notebook_is_told(toy, root, process):
    process(good)
    notebook.run(toy, {}, root)
    changed = parameters.read(sweeping.write(toy.path, "print(1)"))
    done = notebook.run(changed, {}, root)
    assert not done.executed
    assert done.note == "toy.ipynb has changed since: run it again to see"
    assert notebook.run(changed, {}, root, again=True).note == ""
    assert notebook.run(changed, {}, root).note == ""


def test_a_failed_run_goes_on_in_its_folder(toy, root, process):
    seen = []

    def checkpoint(record, options):
        (record.checkpoints).mkdir()
        (record.checkpoints / "1").touch()
        return raising(record, options)

    def going_on(record, options):
        seen.append((record.status, (record.checkpoints / "1").exists()))
        return 0

    process(checkpoint, going_on)
    first = notebook.run(toy, {}, root)
    assert (first.status, first.error) == ("failed", "ValueError: no luck in cell [3]")
    stamped = Record(first.folder).read("env.json")
    second = notebook.run(parameters.read(sweeping.write(toy.path, "print(1)")), {}, root)
    assert (second.status, second.folder, second.note) == ("complete", first.folder, "")
    assert seen == [("incomplete", True)]
    assert not (first.folder / "error.json").exists()
    assert Record(first.folder).read("env.json")["earlier"] == [stamped]
    # what the run went on with is what it is said to be made of
    assert not notebook.run(parameters.read(toy.path), {}, root).note


def test_three_attempts_leave_three_stamps(toy, root, process):
    process(raising)
    done = [notebook.run(toy, {}, root) for _ in range(3)][-1]
    environment = Record(done.folder).read("env.json")
    assert len(environment["earlier"]) == 2
    assert all("earlier" not in stamped for stamped in environment["earlier"])


def test_a_result_before_a_failure_does_not_count(toy, root, process):
    def finish_then_fail(record, options):
        record.finish([{"accuracy": 0.5}])
        return raising(record, options)

    process(finish_then_fail)
    done = notebook.run(toy, {}, root)
    assert done.status == Record(done.folder).status == "failed"


def test_an_interrupted_run_is_incomplete_whatever_it_wrote_on_its_way_out(toy, root, process):
    def interrupted(record, options):
        record.finish([{"accuracy": 0.5}])
        record.fail("Kernel died")
        return None

    process(interrupted)
    done = notebook.run(toy, {}, root)
    assert done.status == Record(done.folder).status == "incomplete"


def test_a_notebook_whose_time_is_over_is_incomplete_and_goes_on(tmp_path):
    early = """
if not (kept := Path(os.environ["ASTKIT_RUN"]) / "kept").exists():
    kept.touch()
    raise SystemExit(0)
"""
    toy = sweeping.write(tmp_path / "toy.ipynb", "import os\nfrom pathlib import Path", early)
    plan = parameters.read(toy)
    first = notebook.run(plan, {}, tmp_path / "runs")
    assert (first.status, first.error, first.executed) == ("incomplete", "", True)
    assert "its time was over" in first.note
    assert Record(first.folder).status == "incomplete"
    second = notebook.run(plan, {}, tmp_path / "runs")
    assert (second.status, second.folder) == ("complete", first.folder)


def test_a_process_that_vanishes_has_failed(toy, root, process):
    def vanish(record, options):
        options["stderr"].write(b"warning\nOut of memory\n")
        return -9

    process(vanish)
    done = notebook.run(toy, {}, root)
    why = "the notebook's process ended with exit code -9: Out of memory"
    assert (done.status, done.error) == ("failed", f"ProcessError: {why}")
    assert Record(done.folder).status == "failed"


def test_threads_are_left_alone_unless_given(toy, root, process, monkeypatch):
    calls = process(good)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    notebook.run(toy, {"seed": 1}, root)
    notebook.run(toy, {"seed": 2}, root, threads=2)
    (_, left), (_, given) = calls
    assert (left["OMP_NUM_THREADS"], "MKL_NUM_THREADS" in left) == ("5", False)
    assert {given[name] for name in notebook.THREAD_VARIABLES} == {"2"}


def test_bad_parameters_leave_nothing_behind(toy, root):
    for given in ({"sede": 1}, {"seed": "one"}, {"root": float("nan")}):
        with pytest.raises(ValueError, match=r"sede|seed is 'one'|as JSON"):
            notebook.run(toy, given, root)
    assert not list(root.glob("*"))


def test_a_folder_in_other_hands_is_left_alone(toy, root, process):
    calls = process(raising)
    folder = notebook.run(toy, {}, root).folder
    with (folder / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for again in (False, True):
            done = notebook.run(toy, {}, root, again=again)
            assert (done.status, done.folder) == ("busy", folder)
    assert Record(folder).status == "failed"
    assert len(calls) == 1
    notebook.run(toy, {}, root)
    assert len(calls) == 2


def test_the_runner_holds_its_folder_while_it_runs(toy, root, process):
    statuses = []

    def meanwhile(record, options):
        statuses.append(notebook.run(toy, {}, root).status)
        return 0

    calls = process(meanwhile)
    assert notebook.run(toy, {}, root).status == "complete"
    assert statuses == ["busy"]
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("01_toy", "01_toy"),
        ("my  toy!", "my_toy"),
        ("a__b", "a_b"),
        ("_x_", "x"),
        ("ä", "notebook"),
    ],
)
def test_any_stem_makes_a_folder(tmp_path, root, process, stem, name):
    process(good)
    plan = parameters.read(sweeping.write(tmp_path / f"{stem}.ipynb"))
    folder = notebook.run(plan, {}, root).folder
    assert folder.name.split("_", 1)[1].rsplit("_", 2)[0] == name
    assert notebook.find(plan, {}, root).folder == folder


@pytest.mark.full
def test_the_notebook_keeps_its_folder_when_its_runner_is_killed(toy, root, tmp_path, process):
    log = tmp_path / "log"
    given = {"log": str(log), "wait": 60.0}
    options = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    command = [sys.executable, "-m", "astkit", "run", str(toy.path), *options, "--runs", str(root)]
    runner = subprocess.Popen(command)
    end = time.monotonic() + 100
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < end
        time.sleep(0.1)
    runner.kill()
    runner.wait()
    assert notebook.run(toy, given, root).status == "busy"
    os.kill(int(log.read_text().split()[2]), signal.SIGKILL)  # which the kernel is a child of
    process(good)
    while (done := notebook.run(toy, given, root)).status == "busy":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert done.status == "complete"
    assert len([path for path in root.iterdir() if path.is_dir()]) == 1
