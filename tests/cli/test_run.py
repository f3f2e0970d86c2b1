"""`astkit run`: what it prints, what it refuses, and its exit codes."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from astkit import cli
from astkit.cli import main
from astkit.comparison import compare as comparison
from astkit.runs.record import Record
from tests.cli.refusals import refused
from tests.runs import sweeping
from tests.runs.sweeping import error, process, root, toy  # noqa: F401 (fixtures)

# ruff: noqa: F811


PACKAGE = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}


def run(toy, *options):
    return main(["run", str(toy), "--runs", str(toy.parent / "runs"), *options])


def test_notes_are_told(toy, root, process, capsys):
    process("complete")
    assert run(toy, "-p", "rate=1", "-p", "names=['z']") == 0
    sweeping.write(toy, "1")
    assert run(toy, "-p", "rate=1", "-p", "names=['z']") == 0
    said = capsys.readouterr().out.splitlines()
    (folder,) = root.iterdir()
    assert said[1] == said[3] == f"1 complete in {folder}"
    assert said[4] == "note: toy.ipynb changed since: run it with --again"


def test_other_ends_are_told(toy, root, process, capsys):
    process(error("no\nluck"), "left")
    assert run(toy) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"1/1  failed  \d.\d s  ValueError: no luck in cell \[3\]", first)
    (folder,) = root.iterdir()
    assert second == f"1 failed: see notebook.ipynb and error.json in {folder}"
    assert run(toy) == 0
    assert "1 incomplete" in (said := capsys.readouterr().out)
    assert "note: the time limit was reached" in said
    with FileLock(folder / ".lock"):
        assert run(toy) == 0
    assert "1 busy: locked by another process" in capsys.readouterr().out


ANSWER = """
from astkit import runs

nb = runs.notebook()
nb.start("quick")
nb.answer("It **does** pay.")
"""


def test_the_answer_is_said_last_and_where_it_stands(tmp_path, capsys):
    book = sweeping.write(tmp_path / "answered.ipynb", ANSWER)
    assert main(["run", str(book), "--runs", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    *_, count, empty, answer, where = capsys.readouterr().out.splitlines()
    assert count == f"1 complete in {folder}"
    assert (empty, answer, where) == ("", "It **does** pay.", f"{folder}/notebook.ipynb")
    book = sweeping.write(tmp_path / "silent.ipynb", ANSWER.rpartition("nb.answer")[0])
    assert main(["run", str(book), "--runs", str(tmp_path / "silent")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 complete in ")


def test_several_runs_are_counted_and_bad_arguments_start_none(toy, root, process, capsys):
    process("complete", error("no luck"), "complete")
    assert "no parameter 'rates'" in refused(capsys, "run", toy, "--runs", root, "-p", "rates=1")
    assert refused(capsys, "run", "no.ipynb").startswith("no.ipynb is no file: give the path of")
    odd = os.fsdecode(b"runs\xff")  # which papermill cannot write into a notebook
    assert "whose name is no UTF-8: name another" in refused(capsys, "run", toy, "--runs", odd)
    assert not root.exists()
    assert run(toy, "-p", "seed=0,1,2") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[3] == f"2 complete in {root}"
    assert said[4].startswith("1 failed: see notebook.ipynb and error.json in ")


def test_an_interrupt_while_the_command_is_imported_is_told_in_a_line(capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_parser", interrupted)
    assert main(["run", "toy.ipynb"]) == 130
    assert capsys.readouterr().err == "astkit: interrupted\n"


@pytest.mark.parametrize(("more", "resumes"), [([], False), (["-o", "out"], True)])
def test_only_what_resumes_is_said_to_resume(more, resumes, capsys, monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "compare", interrupted)
    assert main(["compare", *more]) == 130
    assert ("started again, it resumes" in capsys.readouterr().err) == resumes


def test_a_narrow_encoding_and_a_closed_pipe_are_no_errors(tmp_path, monkeypatch):
    run = Record.create(tmp_path, "x", {})
    run.finish([{"policy": policy, "loss": 1.0} for policy in ("größe", "b")])
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["report", str(tmp_path)]) == 0
    assert rb"gr\xf6\xdfe" in written.getvalue()
    command = [sys.executable, "-m", "astkit", "report", tmp_path]
    reader, writer = os.pipe()
    os.close(reader)
    closed = subprocess.run(command, env=PACKAGE, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (closed.returncode, closed.stderr) == (1, b"")


BARE = """
import sys
from astkit.cli import main

sys.modules |= dict.fromkeys(["filelock", "nbformat", "pandas"])
for words in ("run a", "export toy.ipynb -o out", "report", "compare"):
    try:
        main(words.split())
    except SystemExit as ended:
        assert ended.code == 2
"""


def test_an_absent_package_is_named_by_every_command(tmp_path):
    command = [sys.executable, "-c", BARE]
    done = subprocess.run(command, cwd=tmp_path, env=PACKAGE, capture_output=True, text=True)
    absent = ["nbformat", "nbformat", "pandas", "filelock"]
    said = "astkit: {} is not installed: install it, or the extra 'notebooks' of astkit (pip"
    lines = done.stderr.splitlines()
    assert [line.partition(" install -e")[0] for line in lines] == list(map(said.format, absent))
