"""`astkit run`: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import fcntl
import json
import sys

import pytest

from astkit.cli import main
from astkit.runs import children
from astkit.runs.record import Record
from tests.runs import sweeping


@pytest.fixture
def toy(tmp_path):
    return sweeping.write(tmp_path / "toy.ipynb")


@pytest.fixture
def process(monkeypatch):
    """In place of the notebook's process: its exit code, and the environments it was given."""
    seen = []

    def play(code, message="no"):
        def run(command, env, **options):
            seen.append(env)
            if code:
                Record(env["ASTKIT_RUN"]).fail(message, "ValueError")
            return code

        monkeypatch.setattr(children, "run", run)
        return seen

    return play


def run(toy, *options):
    return main(["run", str(toy), "--runs", str(toy.parent / "runs"), *options])


def refused(toy, capsys, *options):
    with pytest.raises(SystemExit) as exit_info:
        run(toy, *options)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error.removeprefix("astkit: ")


def test_a_run_shows_what_the_notebook_prints(tmp_path, capfd):
    toy = sweeping.write(tmp_path / "toy.ipynb", "print('rate', rate, 'of', names)")
    assert run(toy, "-p", "rate=1", "-p", "names=z") == 0
    printed = capfd.readouterr().out.splitlines()
    assert printed[0] == "rate 1.0 of ['z']"
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert printed[-1] == f"folder    {folder}"
    assert json.loads((folder / "config.json").read_text())["parameters"]["names"] == ["z"]


def test_a_complete_run_is_run_again_on_demand_only(toy, process, capsys):
    seen = process(0)
    assert run(toy) == 0
    assert "complete  in " in capsys.readouterr().out
    assert run(toy, "--resume") == 0
    assert "complete  before, so not run again (--again does)" in capsys.readouterr().out
    assert len(seen) == 1
    assert run(toy, "--again") == 0
    assert len({env["ASTKIT_RUN"] for env in seen}) == 2


def test_a_failure_is_one_line_and_exit_code_1(toy, process, capsys):
    process(1, "no\nluck")
    assert run(toy) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "failed    ValueError: no luck"
    assert second.startswith("folder    ")


def test_threads_reach_the_notebook(toy, process):
    seen = process(0)
    run(toy, "--threads", "3")
    assert seen[0]["OMP_NUM_THREADS"] == "3"


def test_a_changed_notebook_is_told(toy, process, capsys):
    process(0)
    run(toy)
    sweeping.write(toy, "1")
    capsys.readouterr()
    assert run(toy) == 0
    assert "note      toy.ipynb has changed since" in capsys.readouterr().out


def test_a_run_in_other_hands_is_refused(toy, process, capsys):
    process(1)
    run(toy)
    (folder,) = (path for path in (toy.parent / "runs").iterdir() if path.is_dir())
    capsys.readouterr()
    with (folder / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "is in the hands of another process" in refused(toy, capsys)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["-p", "rates=1"], "toy.ipynb has no parameter 'rates': did you mean rate"),
        (["-p", "rate=high"], "rate is 'high', but its default in toy.ipynb is 0.1: give a number"),
        (["-p", "rate=0.1,0.2"], "rate is '0.1,0.2', but its default"),
        (["-p", "rate"], "-p got 'rate': give name=value"),
        (["-p", "seed=1", "-p", "seed=2"], "-p gives seed twice"),
        (["--threads", "0"], "--threads is 0: give 1 or more"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(toy, capsys, options, sentence):
    assert refused(toy, capsys, *options).startswith(sentence)
    assert not (toy.parent / "runs").exists()


def test_an_absent_notebook_is_refused(tmp_path, capsys):
    error = refused(tmp_path / "none.ipynb", capsys)
    assert error == f"there is no notebook {tmp_path / 'none.ipynb'}\n"


def test_an_absent_package_is_named(toy, capsys, monkeypatch):
    for name in ("astkit.runs.parameters", "astkit.runs.notebook"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr("astkit.runs.parameters", raising=False)
    monkeypatch.delattr("astkit.runs.notebook", raising=False)
    monkeypatch.setitem(sys.modules, "nbformat", None)
    assert "pip install 'astkit[notebooks]'" in refused(toy, capsys)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_help_fits_and_has_examples(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) < 80
    assert f"  astkit {command} notebooks/01_baseline_vs_gated.ipynb -p " in text
