"""One notebook in its run folder: its parameters, what is kept, what is resumed, who may run it."""

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import nbformat
import papermill
import pytest
from filelock import FileLock
from nbformat.v4 import new_code_cell

import astkit
from astkit.runs import export, runner
from astkit.runs.record import Record
from tests.build import refused
from tests.notebooks.conftest import FOLDER
from tests.runs import sweeping
from tests.runs.sweeping import error, process, root, toy  # noqa: F401 (fixtures)

# ruff: noqa: F811
DEFAULTS = {"rate": 0.1, "seed": 0, "names": ["a", "b"], "mode": "plain", "root": None}
DEFAULTS |= {"live": True, "log": "", "fails": []}


@pytest.fixture
def plan(toy):
    return runner.read_notebook(toy)


def test_defaults_are_those_of_the_cell(plan, tmp_path):
    assert plan.defaults == DEFAULTS
    assert plan.path.is_absolute()
    cell = "rate: float = 0.1\nseeds = [\n  0,  # first\n  1,\n]\ncolor = '#1f77b4'\nhalf = 1 / 2"
    typed = runner.read_notebook(sweeping.write(tmp_path / "typed.ipynb", parameters=cell))
    assert typed.names == ("rate", "seeds", "color", "half")
    assert typed.defaults == {"rate": 0.1, "seeds": [0, 1]}  # code is known by its name alone
    assert [typed.check(name, 3) for name in ("color", "half")] == [3, 3]
    bare = runner.read_notebook(sweeping.write(tmp_path / "{bare}.ipynb", parameters=None))
    refused((partial(bare.check, "x", 1), "no parameter 'x': choose from those of a code cell"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebooks_of_the_project_are_read_as_their_kernel_reads_them(path):
    cells = nbformat.read(path, 4).cells
    (cell,) = (cell for cell in cells if "parameters" in cell.metadata.get("tags", []))
    values = {}
    exec(cell.source, {}, values)
    assert runner.read_notebook(path).defaults == values


def test_what_is_no_notebook_is_refused(tmp_path):
    path = tmp_path / "x.ipynb"
    with pytest.raises(FileNotFoundError, match=r"x\.ipynb"):
        runner.read_notebook(path)
    cells = '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [3]}'
    for text in ("print(1)", "{}", cells, "\xff"):
        path.write_text(text, "latin-1")
        refused((partial(runner.read_notebook, path), r"x.ipynb is not a notebook: "))
    sweeping.write(path, parameters="%env A=1\nc = 3\nsize = (1, 2)")
    plan = runner.read_notebook(path)
    assert plan.defaults == {"c": 3, "size": (1, 2)}
    assert plan.check("size", [3, 4]) == [3, 4]


def prepared(path, **parameters):
    """Inject ``parameters`` as papermill does in a run."""
    papermill.execute_notebook(path, path, parameters, prepare_only=True, progress_bar=False)


def inserted(path, source, *tags):
    """Put a cell of an earlier run below the parameters."""
    book = nbformat.read(path, 4)
    book.cells.insert(1, new_code_cell(source, metadata={"tags": list(tags)}))
    nbformat.write(book, path)


OTHERS = "rate = 0.9\nseed = 9"
EARLIER = {
    "a run": lambda path: prepared(path, rate=0.9),
    "several runs": lambda path: [
        inserted(path, OTHERS, "injected-parameters"),
        inserted(path, "mode = 'full'", "mine", "injected-parameters"),
    ],
    "a failed run": lambda path: [
        inserted(path, OTHERS, "injected-parameters"),
        inserted(path, "An Exception was encountered", "papermill-error-cell-tag"),
        prepared(path, seed=4),
    ],
}


@pytest.mark.parametrize("earlier", EARLIER)
def test_values_of_an_earlier_run_do_not_count(earlier, tmp_path, root):
    used = "import json, os\nrow = {'rate': rate, 'seed': seed, 'mode': mode}\n"
    used += "with open(os.environ['ASTKIT_RUN'] + '/result.json', 'w') as file:\n"
    used += "    json.dump({'rows': [row]}, file)"
    plan = runner.read_notebook(sweeping.write(tmp_path / "a.ipynb", used))
    EARLIER[earlier](plan.path)
    again = runner.read_notebook(plan.path)
    assert (again.defaults, again.code) == (plan.defaults, plan.code)
    record = Record(runner.run_notebook(again, {}, root).folder)
    (row,) = record.result["rows"]
    assert row == {"rate": 0.1, "seed": 0, "mode": "plain"}
    assert row.items() <= record.config["parameters"].items()
    cells = export.build_notebook(again, {"mode": "full"}).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    assert sources[1] == sweeping.PARAMETERS + "\n\n# set by astkit export\nmode = 'full'"
    assert sources[2:] == [used]


def test_a_text_becomes_literals_or_words(plan):
    for option, values in (
        ("rate=0.05, 1e-3,1", [0.05, 0.001, 1]),
        ("seed=-1,7", [-1, 7]),
        ("live=true,False", [True, False]),
        ('names=["c"],["d"]', [["c"], ["d"]]),
        ("names=[]", [[]]),
        ("fails=[0.2,3],[2]", [[0.2, 3], [2]]),
        ("mode=full,it's", ["full", "it's"]),
        ("mode= a=b [#3", ["a=b [#3"]),
        ("mode=''", [""]),
        ("mode='a,b',\"c\"", ["a,b", "c"]),
        ("root=x,null", ["x", None]),
        ("root={'a': [1, 2], 'b': 'x,y'},None,3", [{"a": [1, 2], "b": "x,y"}, None, 3]),
    ):
        (found,) = plan.values([option]).values()
        assert found == values
        assert [type(value) for value in found] == [type(value) for value in values]


def test_other_names_forms_and_types_are_refused_in_a_sentence(plan):
    typed = r"but its default in toy.ipynb is .*: give a"
    for options, sentence in (
        (["q=1"], "toy.ipynb has no parameter 'q': choose from rate, seed, names"),
        (["rate"], "-p is 'rate': give name=value"),
        (["rate=1", "rate=2"], "-p gives rate twice"),
        (["rate=0.05,,0.1"], f"rate is '', {typed}"),
        (["seed=0.5"], f"seed is 0.5, {typed}"),
        (["seed=0..4"], f"seed is '0..4', {typed}"),
        (["live=1"], f"live is 1, {typed}"),
        (["names=c"], rf"names is 'c', {typed} list, such as \['c'\]"),
        (["mode=0"], rf"mode is 0, {typed} str, such as 'plain'"),
        (["root=[a]"], r"root is '\[a\]': close its brackets, and quote its strings"),
        (["fails=[0,1"], r"fails is '\[0': close its brackets, and quote its strings"),
        (["rate=NaN"], "rate is nan, which JSON cannot keep as it is: give finite numbers"),
        (["root=[(1, 2)]"], r"root is \[\(1, 2\)\], which JSON cannot keep"),
        (["root={1: 2}"], r"root is \{1: 2\}, which JSON cannot keep"),
    ):
        refused((partial(plan.values, options), f"^{sentence}"))


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


def test_a_run_leaves_a_complete_folder(tmp_path, capfd):
    folder = tmp_path / "my {note} books"
    plan = runner.read_notebook(sweeping.write(folder / "01 my__toy.ipynb", FACTS))
    parameters = {"seed": 7, "names": ["z"]}
    done = runner.run_notebook(plan, parameters, folder / "runs", show=True)
    assert (done.status, done.error, done.executed) == ("complete", "", True)
    assert done.parameters == parameters
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
    done = runner.run_notebook(plan, {"rate": 0.2, "seed": 3, "fails": [0.2, 3]}, root)
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
    source, record = tmp_path / "a.ipynb", Record(tmp_path / "run")
    sweeping.write(source, "1", "raise SystemExit(0)")
    assert runner.execute(source, record, {}) == "left"
    sweeping.write(source, "1", "import os; os._exit(3)")
    end = runner.execute(source, record, {})
    assert (end["type"], end["cell"]) == ("DeadKernelError", None)


def test_a_complete_run_is_not_run_again_unless_asked_for(plan, root, process):
    calls = process("complete")
    first = runner.run_notebook(plan, {"seed": 1}, root)
    assert Record(first.folder).result["rows"] == []  # it wrote none of its own
    second = runner.run_notebook(plan, {"seed": 1, "rate": 0.1}, root)  # the default, said aloud
    assert len(calls) == 1
    assert (second.status, second.executed, second.note) == ("complete", False, "")
    assert (second.folder, second.seconds) == (first.folder, first.seconds)
    assert runner.run_notebook(plan, {"seed": 2}, root).folder != first.folder
    (first.folder / "checkpoint").touch()
    third = runner.run_notebook(plan, {"seed": 1}, root, again=True)
    assert (third.status, third.executed) == ("complete", True)
    assert not (third.folder / "checkpoint").exists()
    assert len(list(root.iterdir())) == 2
    assert len(calls) == 3
    changed = runner.read_notebook(sweeping.write(plan.path, "print(1)"))
    assert runner.run_notebook(changed, {"seed": 1}, root).note == (
        "toy.ipynb changed since: run it with --again"
    )
    assert runner.run_notebook(changed, {"seed": 1}, root, again=True).note == ""
    assert runner.run_notebook(changed, {"seed": 1}, root).note == ""


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
    first = runner.run_notebook(plan, {}, root)
    assert first.status == Record(first.folder).status == "failed"
    assert first.error.endswith("x ... in cell [3]")
    assert len(first.error) < 400
    runner.run_notebook(plan, {}, root)
    last = runner.run_notebook(
        runner.read_notebook(sweeping.write(plan.path, "print(1)")), {}, root
    )
    assert (last.status, last.folder, last.note) == ("complete", first.folder, "")
    assert seen == [("incomplete", {}, True)]
    assert not (first.folder / "error.json").exists()
    # the code that it was resumed with counts
    assert not runner.run_notebook(runner.read_notebook(plan.path), {}, root).note


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
            runner.run_notebook(plan, {}, root)
    else:
        done = runner.run_notebook(plan, {}, root)
        assert done.status == "incomplete"
        assert "the time limit was reached" in done.note
    (record,) = map(Record, root.iterdir())
    assert record.status == "incomplete"
    resumed = runner.run_notebook(plan, {}, root)
    assert (resumed.status, resumed.folder) == ("complete", record.folder)
    assert record.result["rows"] == []


def test_a_folder_belongs_to_one_process_at_a_time(plan, root, process):
    statuses = []

    def meanwhile(record, parameters):
        statuses.append(runner.run_notebook(plan, {}, root).status)
        return error()

    calls = process(meanwhile, "complete")
    folder = runner.run_notebook(plan, {}, root).folder
    assert statuses == ["busy"]
    with FileLock(folder / ".lock"):
        for again in (False, True):
            done = runner.run_notebook(plan, {}, root, again=again)
            assert (done.status, done.folder) == ("busy", folder)
    assert Record(folder).status == "failed"
    assert len(calls) == 1
    assert runner.run_notebook(plan, {}, root).status == "complete"


TIDY = """\
import os, time
from pathlib import Path
try:
    Path(log).write_text(str(os.getpid()))
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
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.full) for n in ("INT", "KILL"))]
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
