"""One notebook in its run folder: what is kept, what is resumed, and who may run it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from filelock import FileLock

from astkit.runs import notebook, parameters
from astkit.runs.record import Record
from tests.runs import sweeping
from tests.runs.sweeping import error, process, root, toy  # noqa: F401 (fixtures)

# ruff: noqa: F811
FACTS = """\
import json, os, sys
facts = {"cwd": os.getcwd(), "python": sys.executable, "omp": os.environ["OMP_NUM_THREADS"]}
rows = [{"arm": "dense", "seed": seed, "accuracy": 0.5}]
with open(os.environ["ASTKIT_RUN"] + "/result.json", "w") as file:
    json.dump({"rows": rows, "facts": facts}, file)
print("done with", names)
"""


@pytest.fixture
def plan(toy):
    return parameters.read(toy)


def test_a_run_leaves_a_complete_folder(tmp_path):
    folder = tmp_path / "my {note} books"
    plan = parameters.read(sweeping.write(folder / "01 my__toy.ipynb", FACTS))
    done = notebook.run(plan, {"seed": 7, "names": "z"}, folder / "runs", threads=3)
    assert (done.status, done.error, done.executed) == ("complete", "", True)
    assert done.parameters == {"seed": 7, "names": ["z"]}
    assert done.folder.parent == folder / "runs"
    assert done.folder.name.split("_", 1)[1].startswith("01_my_toy_")
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
    assert {path.name for path in done.folder.iterdir()} - {".lock"} == {
        *("config.json", "env.json", "notebook.ipynb", "result.json")
    }


def test_a_failure_keeps_the_notebook_and_names_the_cell(plan, root):
    done = notebook.run(plan, {"rate": 0.2, "seed": 3, "fails": [0.2, 3]}, root)
    assert (done.status, done.error) == ("failed", "ValueError: seed 3 is unlucky in cell [3]")
    record = Record(done.folder)
    assert record.status == "failed"
    assert not (done.folder / "result.json").exists()
    error = record.read("error.json")
    assert (error["type"], error["message"]) == ("ValueError", "seed 3\nis unlucky")
    assert error["cell"] == {"number": 3, "source": sweeping.WORK.strip("\n") + "\n"}
    assert 'raise ValueError(f"seed {seed}' in error["traceback"]
    cells = nbformat.read(done.folder / "notebook.ipynb", 4).cells
    assert cells[-1].outputs[-1].ename == "ValueError"


def test_a_complete_run_is_not_run_again_unless_asked_for(plan, root, process):
    calls = process("complete")
    first = notebook.run(plan, {"seed": 1}, root)
    assert Record(first.folder).result["rows"] == []  # it wrote none of its own
    second = notebook.run(plan, {"seed": 1, "rate": 0.1}, root)  # the default, said aloud
    assert len(calls) == 1
    assert (second.status, second.executed, second.note) == ("complete", False, "")
    assert (second.folder, second.seconds) == (first.folder, first.seconds)
    assert notebook.run(plan, {"seed": 2}, root).folder != first.folder
    third = notebook.run(plan, {"seed": 1}, root, again=True)
    assert [Record(done.folder).status for done in (first, third)] == ["stale", "complete"]
    fourth = notebook.run(plan, {"seed": 1}, root)
    assert (fourth.folder, fourth.executed) == (third.folder, False)
    assert len(calls) == 3


def test_a_changed_notebook_is_told(plan, root, process):
    process("complete")
    notebook.run(plan, {}, root)
    changed = parameters.read(sweeping.write(plan.path, "print(1)"))
    done = notebook.run(changed, {}, root)
    assert not done.executed
    assert done.note == "toy.ipynb has changed since: run it again"
    assert notebook.run(changed, {}, root, again=True).note == ""
    assert notebook.run(changed, {}, root).note == ""


def test_a_failed_run_resumes_in_its_folder(plan, root, process):
    seen = []

    def checkpoint(record, given):
        (record.folder / "checkpoint").touch()
        record.finish([{"accuracy": 0.5}])  # before it fails, so it does not count
        return error()

    def resumed(record, given):
        seen.append((record.status, record.result, (record.folder / "checkpoint").exists()))
        return "complete"

    process(checkpoint, checkpoint, resumed)
    first = notebook.run(plan, {}, root)
    assert (first.status, first.error) == ("failed", "ValueError: no luck in cell [3]")
    assert Record(first.folder).status == "failed"
    stamped = Record(first.folder).read("env.json")
    notebook.run(plan, {}, root)
    last = notebook.run(parameters.read(sweeping.write(plan.path, "print(1)")), {}, root)
    assert (last.status, last.folder, last.note) == ("complete", first.folder, "")
    assert seen == [("incomplete", {}, True)]
    assert not (first.folder / "error.json").exists()
    earlier = Record(first.folder).read("env.json")["earlier"]
    assert earlier[0] == stamped
    assert len(earlier) == 2
    assert all("earlier" not in each for each in earlier)
    # what the run was resumed with is what it is said to be made of
    assert not notebook.run(parameters.read(plan.path), {}, root).note


@pytest.mark.parametrize("end", ["left", KeyboardInterrupt])
def test_a_run_that_did_not_reach_its_end_is_incomplete_whatever_it_wrote(plan, root, process, end):
    def act(record, given):
        record.finish([{"accuracy": 0.5}])
        if end is KeyboardInterrupt:  # as where the whole process is killed
            raise end
        return end

    process(act, "complete")
    if end is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            notebook.run(plan, {}, root)
    else:
        done = notebook.run(plan, {}, root)
        assert done.status == "incomplete"
        assert "the time limit was reached" in done.note
    record = notebook.find(plan, {}, root)
    assert record.status == "incomplete"
    resumed = notebook.run(plan, {}, root)
    assert (resumed.status, resumed.folder) == ("complete", record.folder)
    assert record.status == "complete"
    assert record.result["rows"] == []


def test_threads_are_left_alone_unless_given(plan, root, process):
    calls = process("complete")
    notebook.run(plan, {"seed": 1}, root)
    notebook.run(plan, {"seed": 2}, root, threads=2)
    (_, left), (_, given) = calls
    assert set(left) == {"ASTKIT_RUN"}
    assert {given[name] for name in notebook.THREAD_VARIABLES} == {"2"}


def test_bad_parameters_leave_nothing_behind(plan, root):
    for given in ({"sede": 1}, {"seed": "one"}, {"root": float("nan")}):
        with pytest.raises(ValueError, match=r"sede|seed is 'one'|as JSON"):
            notebook.run(plan, given, root)
    assert not root.exists()


def test_a_folder_belongs_to_one_at_a_time(plan, root, process):
    statuses = []

    def meanwhile(record, given):
        statuses.append(notebook.run(plan, {}, root).status)
        return error()

    calls = process(meanwhile, "complete")
    folder = notebook.run(plan, {}, root).folder
    assert statuses == ["busy"]
    with FileLock(folder / ".lock"):
        for again in (False, True):
            done = notebook.run(plan, {}, root, again=again)
            assert (done.status, done.folder) == ("busy", folder)
    assert Record(folder).status == "failed"
    assert len(calls) == 1
    assert notebook.run(plan, {}, root).status == "complete"


def test_nothing_is_written_through_a_link(plan, root, process, tmp_path):
    process(error(), "complete")
    folder = notebook.run(plan, {}, root).folder
    outside = tmp_path / "outside"
    outside.mkdir()
    for place in ("notebook.ipynb", "fig", ".unfinished", ".lock", "../.lock"):
        link = folder / place
        link.unlink(missing_ok=True)
        link.symlink_to(outside / ("" if place == "fig" else "created"))
        with pytest.raises(ValueError, match=rf"{place} is a link, and a run would write through"):
            notebook.run(plan, {}, root)
        link.unlink()
    assert not list(outside.iterdir())
    assert notebook.run(plan, {}, root).status == "complete"
    root.rename(tmp_path / "moved")  # a link to the folder of all runs is the user's own
    root.symlink_to(tmp_path / "moved")
    assert not notebook.run(plan, {}, root).executed


def test_a_long_message_is_cut_in_the_outcome_and_kept_in_the_folder(plan, root, process):
    process(error("x" * 1_000_000))
    done = notebook.run(plan, {}, root)
    assert len(done.error) < 400
    assert done.error.endswith("x ... in cell [3]")
    assert len(Record(done.folder).read("error.json")["message"]) == 1_000_000


def test_any_stem_makes_a_folder(tmp_path, root, process):
    process("complete")
    names = {"01_toy": "01_toy", "my  toy!": "my_toy", "_x_": "x", "ä": "notebook"}
    for stem, name in names.items():
        plan = parameters.read(sweeping.write(tmp_path / f"{stem}.ipynb"))
        folder = notebook.run(plan, {}, root).folder
        assert folder.name.split("_", 1)[1].rsplit("_", 2)[0] == name
        assert notebook.find(plan, {}, root).folder == folder


def test_what_a_cell_ends_with_is_how_the_notebook_ends(tmp_path, capfd):
    source = sweeping.write(tmp_path / "a {b}.ipynb", "print(os.getcwd(), os.environ['X'], n)")
    book = nbformat.read(source, 4)
    book.cells[0].source = "import os\nn = 1"
    book.metadata.clear()  # no kernel is named
    nbformat.write(book, source)
    (tmp_path / "fnmatch.py").write_text("raise RuntimeError('a file beside the notebook')")
    target = tmp_path / "out {b}.ipynb"
    end = notebook.execute(source, target, {"n": 3}, environment={"X": "set"}, show=True)
    assert end == "complete"
    assert capfd.readouterr().out == f"{tmp_path} set 3\n"
    assert nbformat.read(target, 4).cells[-1].outputs[0].text == f"{tmp_path} set 3\n"
    sweeping.write(source, "1", "raise SystemExit(0)")
    assert notebook.execute(source, target, {}, environment={}) == "left"
    sweeping.write(source, "1", "import os; os._exit(3)")
    end = notebook.execute(source, target, {}, environment={})
    assert end["type"] == "DeadKernelError"
    assert end["cell"] == {"number": 3, "source": "import os; os._exit(3)"}


TIDY = """\
import os, time
from pathlib import Path
Path(log).write_text(str(os.getpid()))
try:
    time.sleep(60)
except KeyboardInterrupt:
    Path(log).write_text(f"tidy {os.getpid()}")
    raise
"""


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.full) for n in ("INT", "HUP", "KILL"))],
)
def test_a_signal_ends_the_kernel_and_the_run_resumes(tmp_path, number):
    number = signal.Signals[f"SIG{number}"] if isinstance(number, str) else number
    toy, log, root = sweeping.write(tmp_path / "n.ipynb", TIDY), tmp_path / "log", tmp_path / "runs"
    command = [sys.executable, "-m", "astkit", "run", toy, "-p", f"log={log}", "--runs", root]
    runner = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: log.exists() and log.read_text())
    runner.send_signal(number)
    said, killed = runner.communicate(timeout=60)[1], number == signal.SIGKILL
    assert runner.returncode == (-9 if killed else 130), said
    until(lambda: ended(int(log.read_text().split()[-1])), 20)
    assert log.read_text().startswith("tidy") is not killed  # a cell may put its things away
    assert killed or "astkit: interrupted; started again, it resumes\n" in said
    assert "Traceback" not in said
    assert notebook.find(parameters.read(toy), {"log": str(log)}, root).status == "incomplete"


def ended(pid):
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
