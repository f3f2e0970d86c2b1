"""One notebook in its run folder: its parameters, what is kept, what is resumed, who may run it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import numpy as np
import pytest
from filelock import FileLock

import astkit
from astkit.runs import notebook
from astkit.runs.record import Record
from tests.notebooks.conftest import FOLDER
from tests.runs import sweeping
from tests.runs.sweeping import error, process, root, toy  # noqa: F401 (fixtures)

# ruff: noqa: F811
DEFAULTS = {"rate": 0.1, "seed": 0, "names": ["a", "b"], "mode": "plain", "root": None}
DEFAULTS |= {"live": True, "log": "", "fails": [], "dies": [], "wait": 0.1}


@pytest.fixture
def plan(toy):
    return notebook.read(toy)


# --- parameters ------------------------------------------------------------------------------


def test_defaults_are_those_of_the_cell(plan, tmp_path):
    assert plan.defaults == DEFAULTS
    assert plan.path.is_absolute()
    cell = "import os\nrate: float | None = 0.1\na = b = 3\ncolor = '#1f77b4'\nwidth: int"
    typed = notebook.read(sweeping.write(tmp_path / "typed.ipynb", parameters=cell))
    assert typed.defaults == {"rate": 0.1, "a": 3, "b": 3, "color": "#1f77b4"}
    bare = notebook.read(sweeping.write(tmp_path / "{bare}.ipynb", parameters=None))
    with pytest.raises(
        ValueError, match="no parameter 'x': choose from those of a first code cell"
    ):
        bare.fit("x", 1)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebooks_of_the_project_are_read_as_their_kernel_reads_them(path):
    cells = (cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code")
    values = {}
    exec(next(cells).source, {}, values)
    assert notebook.read(path).defaults == values


def test_what_is_no_notebook_is_refused(tmp_path):
    path = tmp_path / "x.ipynb"
    with pytest.raises(FileNotFoundError, match="there is no notebook"):
        notebook.read(path)
    for text in ("print(1)", "{}", '{"nbformat": 4, "nbformat_minor": 5, "cells": [3]}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"x.ipynb is not a notebook: "):
            notebook.read(path)
    for parameters, sentence in (
        ("a = 1\nb = a * 2", r"parameter b of x.ipynb is 'a \* 2': give it a literal"),
        ("a = = 1", r"the parameters cell of x.ipynb is not Python \(.*\): give it assignments"),
    ):
        sweeping.write(path, parameters=parameters)
        with pytest.raises(ValueError, match=sentence):
            notebook.read(path)
    sweeping.write(path, parameters="%env A=1\na, b = 1, 2\nc = 3\nsize = (1, 2)")
    plan = notebook.read(path)
    assert plan.defaults == {"c": 3, "size": (1, 2)}
    assert plan.fit("size", [3, 4]) == (3, 4)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("rate=0.05, 1e-3,1", [0.05, 0.001, 1.0]),
        ("seed=-1,7", [-1, 7]),
        ("live=true,False", [True, False]),
        ("names=c,d", [["c"], ["d"]]),
        ("names=[]", [[]]),
        ("fails=[0.2,3],[2]", [[0.2, 3], [2]]),
        ("mode=0,it's", ["0", "it's"]),
        ("mode= a=b [#3", ["a=b [#3"]),
        ("mode=", [""]),
        ("mode='a,b',\"c\"", ["a,b", "c"]),
        ("root=x,null", ["x", None]),
        ("root={'a': [1, 2], 'b': 'x,y'},None,3", [{"a": [1, 2], "b": "x,y"}, None, 3]),
    ],
)
def test_a_text_becomes_values_of_the_type_of_the_default(plan, option, values):
    (found,) = plan.values([option]).values()
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_other_names_forms_and_types_are_refused_in_a_sentence(plan):
    typed = r"but its default in toy.ipynb is .*: give a value of that type"
    for options, sentence in (
        (["q=1"], "toy.ipynb has no parameter 'q': choose from rate, seed, names"),
        (["rate"], "-p is 'rate': give name=value"),
        (["rate=1", "rate=2"], "-p gives rate twice"),
        (["rate=0.05,,0.1"], f"rate is '', {typed}"),
        (["seed=0.5"], f"seed is 0.5, {typed}"),
        (["seed=0..4"], f"seed is '0..4', {typed}"),
        (["live=1"], f"live is 1, {typed}"),
        (["names=[1]"], rf"names is \[1\], {typed} \(list\)"),
        (["names=[a]"], r"names is '\[a\]': close its brackets, and quote its strings"),
        (["fails=[0,1"], r"fails is '\[0': close its brackets, and quote its strings"),
        (["rate=NaN"], "rate is nan, which JSON cannot keep as it is: give finite numbers"),
        (["root=[(1, 2)]"], r"root is \[\(1, 2\)\], which JSON cannot keep"),
        (["root={1: 2}"], r"root is \{1: 2\}, which JSON cannot keep"),
    ):
        with pytest.raises(ValueError, match=f"^{sentence}"):
            plan.values(options)


def test_values_from_python_have_the_same_types(plan):
    given = {"rate": np.float64(0.5), "seed": np.int64(3), "names": "c"}
    found = {**plan.defaults, **{name: plan.fit(name, value) for name, value in given.items()}}
    assert found == {**DEFAULTS, "rate": 0.5, "seed": 3, "names": ["c"]}
    assert json.loads(json.dumps(found)) == found
    with pytest.raises(ValueError, match="mode is 3, but"):
        plan.fit("mode", 3)


# --- runs ------------------------------------------------------------------------------------

FACTS = """\
import json, os, sys
import astkit
facts = {"cwd": os.getcwd(), "python": sys.executable, "run": os.environ["ASTKIT_RUN"]}
facts["astkit"] = astkit.__file__
rows = [{"arm": "dense", "seed": seed, "accuracy": 0.5}]
with open(os.environ["ASTKIT_RUN"] + "/result.json", "w") as file:
    json.dump({"rows": rows, "facts": facts}, file)
print("done with", names)
"""


def test_a_run_leaves_a_complete_folder(tmp_path, capfd, monkeypatch):
    other = tmp_path / "other"
    (other / "astkit").mkdir(parents=True)
    (other / "astkit" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(other))
    folder = tmp_path / "my {note} books"
    plan = notebook.read(sweeping.write(folder / "01 my__toy.ipynb", FACTS))
    parameters = {"seed": 7, "names": "z"}
    done = notebook.run(plan, parameters, folder / "runs", show=True)
    assert (done.status, done.error, done.executed) == ("complete", "", True)
    assert done.parameters == {"seed": 7, "names": ["z"]}
    assert done.folder.name.split("_", 1)[1].startswith("01_my_toy_")
    assert done.folder.name.endswith("_s7")
    assert capfd.readouterr().out == "done with ['z']\n"
    record = Record(done.folder)
    assert record.config["parameters"] == {**plan.defaults, "seed": 7, "names": ["z"]}
    assert (record.config["seed"], record.config["notebook"]) == (7, "01 my__toy.ipynb")
    assert record.read("env.json")["python"]
    assert record.result["rows"] == [{"arm": "dense", "seed": 7, "accuracy": 0.5}]
    facts = {"cwd": str(folder), "python": sys.executable, "run": str(done.folder)}
    facts["astkit"] = astkit.__file__  # the one that env.json describes
    assert record.result["facts"] == facts
    assert 0 < record.result["wall_seconds"] == done.seconds
    executed = nbformat.read(done.folder / "notebook.ipynb", 4)
    assert "injected-parameters" in executed.cells[1].metadata.tags
    names = {"config.json", "env.json", "notebook.ipynb", "result.json"}
    assert {path.name for path in done.folder.iterdir()} - {".lock"} == names


def test_a_failure_keeps_the_notebook_and_names_the_cell(plan, root):
    done = notebook.run(plan, {"rate": 0.2, "seed": 3, "fails": [0.2, 3]}, root)
    assert (done.status, done.error) == ("failed", "ValueError: seed 3 is unlucky in cell [3]")
    record = Record(done.folder)
    assert (record.status, record.result) == ("failed", {})
    error = record.read("error.json")
    assert (error["type"], error["message"]) == ("ValueError", "seed 3\nis unlucky")
    assert error["cell"] == {"number": 3, "source": sweeping.WORK}
    assert 'raise ValueError(f"seed {seed}' in error["traceback"]
    cells = nbformat.read(done.folder / "notebook.ipynb", 4).cells
    assert cells[-1].outputs[-1].ename == "ValueError"


def test_a_cell_may_end_the_notebook_or_its_kernel(tmp_path):
    source, target = tmp_path / "a.ipynb", tmp_path / "out.ipynb"
    sweeping.write(source, "1", "raise SystemExit(0)")
    assert notebook.execute(source, target, {}, environment={}) == "left"
    sweeping.write(source, "1", "import os; os._exit(3)")
    end = notebook.execute(source, target, {}, environment={})
    assert (end["type"], end["cell"]) == ("DeadKernelError", None)


def test_a_complete_run_is_not_run_again_unless_asked_for(plan, root, process):
    calls = process("complete")
    first = notebook.run(plan, {"seed": 1}, root)
    assert Record(first.folder).result["rows"] == []  # it wrote none of its own
    second = notebook.run(plan, {"seed": 1, "rate": 0.1}, root)  # the default, said aloud
    assert len(calls) == 1
    assert (second.status, second.executed, second.note) == ("complete", False, "")
    assert (second.folder, second.seconds) == (first.folder, first.seconds)
    assert notebook.run(plan, {"seed": 2}, root).folder != first.folder
    (first.folder / "checkpoint").touch()
    third = notebook.run(plan, {"seed": 1}, root, again=True)
    assert (third.status, third.executed) == ("complete", True)
    assert not (third.folder / "checkpoint").exists()
    assert len(list(root.iterdir())) == 2
    assert len(calls) == 3
    assert set(calls[0][1]) == {"ASTKIT_RUN"}  # threads are left alone
    changed = notebook.read(sweeping.write(plan.path, "print(1)"))
    assert notebook.run(changed, {"seed": 1}, root).note == (
        "toy.ipynb changed since: run it with --again"
    )
    assert notebook.run(changed, {"seed": 1}, root, again=True).note == ""
    assert notebook.run(changed, {"seed": 1}, root).note == ""


def test_a_failed_run_resumes_in_its_folder(plan, root, process):
    seen = []

    def checkpoint(record, parameters):
        (record.folder / "checkpoint").touch()
        record.finish([{"accuracy": 0.5}])  # before it fails, so it does not count
        return error("x" * 1_000_000)

    def resumed(record, parameters):
        seen.append((record.status, record.result, (record.folder / "checkpoint").exists()))
        return "complete"

    process(checkpoint, checkpoint, resumed)
    first = notebook.run(plan, {}, root)
    assert first.status == Record(first.folder).status == "failed"
    assert first.error.endswith("x ... in cell [3]")
    assert len(first.error) < 400
    notebook.run(plan, {}, root)
    last = notebook.run(notebook.read(sweeping.write(plan.path, "print(1)")), {}, root)
    assert (last.status, last.folder, last.note) == ("complete", first.folder, "")
    assert seen == [("incomplete", {}, True)]
    assert not (first.folder / "error.json").exists()
    # the code that it was resumed with counts
    assert not notebook.run(notebook.read(plan.path), {}, root).note


@pytest.mark.parametrize("end", ["left", KeyboardInterrupt])
def test_a_run_that_did_not_reach_its_end_is_incomplete_whatever_it_wrote(plan, root, process, end):
    def act(record, parameters):
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
    (record,) = map(Record, root.iterdir())
    assert record.status == "incomplete"
    resumed = notebook.run(plan, {}, root)
    assert (resumed.status, resumed.folder) == ("complete", record.folder)
    assert record.result["rows"] == []


def test_another_notebook_of_the_same_name_is_refused(plan, root, process, tmp_path):
    process("complete")
    first = notebook.run(plan, {}, root)
    (tmp_path / "b").mkdir()
    copied = plan.path.rename(tmp_path / "b" / "toy.ipynb")
    assert notebook.run(notebook.read(copied), {}, root).folder == first.folder  # only moved
    other = notebook.read(sweeping.write(copied, "print(1)"))
    (tmp_path / "toy.ipynb").write_text("there is another one")
    with pytest.raises(
        ValueError, match=r"belongs to another notebook, \.\./toy.ipynb: rename one"
    ):
        notebook.run(other, {}, root, again=True)


def test_a_run_of_another_astkit_is_noted(plan, root, process):
    process("complete")
    record = Record(notebook.run(plan, {}, root).folder)
    record.write("env.json", {**record.read("env.json"), "source": "another"})
    assert notebook.run(plan, {}, root).note == "astkit changed since: run it with --again"


def test_a_folder_belongs_to_one_process_at_a_time(plan, root, process):
    statuses = []

    def meanwhile(record, parameters):
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
    for place in ("notebook.ipynb", "fig", ".unfinished", ".lock"):
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
    [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.full) for n in ("INT", "KILL"))],
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
    (record,) = map(Record, root.iterdir())
    assert record.status == "incomplete"


def ended(pid):
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
