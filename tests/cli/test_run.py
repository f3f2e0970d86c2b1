"""`astkit run`: what it prints, what it refuses, and its exit codes."""

import os
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from astkit import cli
from astkit.cli import main
from tests.cli.refusals import refused
from tests.runs import sweeping
from tests.runs.sweeping import error, process, root, toy  # noqa: F401 (fixtures)

# ruff: noqa: F811


PACKAGE = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}


def run(toy, *options):
    return main(["run", str(toy), "--runs", str(toy.parent / "runs"), *options])


def test_a_complete_run_is_run_again_on_demand_only(toy, root, process, capsys):
    seen = process("complete")
    assert run(toy, "-p", "rate=1", "-p", "names=z") == 0
    assert seen[0][0] == {"rate": 1.0, "names": ["z"]}
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("complete  in ")
    (folder,) = root.iterdir()
    assert second == f"folder    {folder}"
    sweeping.write(toy, "1")
    assert run(toy, "-p", "rate=1", "-p", "names=z") == 0
    said = capsys.readouterr().out
    assert "complete  before, so not run again (--again does)" in said
    assert "note      toy.ipynb has changed since" in said
    assert len(seen) == 1
    assert run(toy, "-p", "rate=1", "-p", "names=z", "--again") == 0
    assert len(seen) == 2


def test_other_ends_are_told(toy, root, process, capsys):
    process(error("no\nluck"), "left")
    assert run(toy) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "failed    ValueError: no luck in cell [3]"
    assert second.startswith("folder    ")
    assert run(toy) == 0
    assert "incomplete  in" in (said := capsys.readouterr().out)
    assert "the time limit was reached" in said
    (folder,) = root.iterdir()
    with FileLock(folder / ".lock"):
        assert "is locked by another process" in refused(capsys, "run", toy, "--runs", root)


def test_bad_arguments_are_refused_before_anything_starts(toy, root, capsys):
    for options, sentence in (
        (["-p", "rates=1"], "toy.ipynb has no parameter 'rates': choose from"),
        (["-p", "rate=high"], "rate is 'high', but its default in toy.ipynb is 0.1: give a value"),
    ):
        assert refused(capsys, "run", toy, "--runs", root, *options).startswith(sentence)
    absent = toy.with_name("none.ipynb")
    assert refused(capsys, "run", absent) == f"there is no notebook {absent}\n"
    assert not root.exists()


def test_an_interrupt_while_the_command_is_imported_is_told_in_a_line(capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_parser", interrupted)
    assert main(["run", "toy.ipynb"]) == 130
    assert capsys.readouterr().err == "astkit: interrupted; started again, it resumes\n"


BARE = """
import sys
from astkit.cli import main

sys.modules |= dict.fromkeys(["filelock", "nbformat", "pandas"])
for words in ("run a", "sweep a", "export toy.ipynb -o out", "report", "compare"):
    try:
        main(words.split())
    except SystemExit as ended:
        assert ended.code == 2
"""


def test_an_absent_package_is_named_by_every_command(tmp_path):
    command = [sys.executable, "-c", BARE]
    done = subprocess.run(command, cwd=tmp_path, env=PACKAGE, capture_output=True, text=True)
    absent = ["nbformat", "nbformat", "nbformat", "pandas", "filelock"]
    said = "astkit: {} is not installed: install it, or the extra 'notebooks' of astkit (pip"
    lines = done.stderr.splitlines()
    assert [line.partition(" install -e")[0] for line in lines] == list(map(said.format, absent))
