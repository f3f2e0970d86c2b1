"""`astkit sweep`: its table, what it prints for other schedulers, and its exit codes."""

from __future__ import annotations

import pytest

from astkit.cli import main
from astkit.runs import sweep
from astkit.runs.notebook import Outcome
from tests.cli.refusals import refused
from tests.runs import sweeping

SEEDS = ["-p", "seed=0..2", "-p", "rate=0.1,0.25"]


@pytest.fixture
def toy(tmp_path):
    return sweeping.write(tmp_path / "toy.ipynb")


@pytest.fixture
def outcome(monkeypatch, tmp_path):
    """In place of running anything: what becomes of each run."""
    calls = []

    def play(of=lambda given: {}):
        def run(path, values, jobs, **options):
            calls.append((path, values, jobs, options))
            given = [
                {"seed": seed, "rate": rate} for seed in values["seed"] for rate in (0.1, 0.25)
            ]
            return [
                Outcome(**{"parameters": row, "status": "complete", "seconds": 1.25} | of(row))
                for row in given
            ]

        monkeypatch.setattr(sweep, "run", run)
        return calls

    return play


def run(toy, *options):
    return main(["sweep", str(toy), "--runs", str(toy.parent / "runs"), *options])


def test_options_reach_the_sweep(toy, outcome):
    calls = outcome()
    assert run(toy, *SEEDS, "--jobs", "3", "--threads", "2") == 0
    ((path, values, jobs, others),) = calls
    assert (path, jobs) == (toy, 3)
    assert values == {"seed": [0, 1, 2], "rate": [0.1, 0.25]}
    others.pop("announce")
    assert others == {"root": toy.parent / "runs", "threads": 2}


def test_the_table_has_a_line_a_run(toy, outcome, capsys, tmp_path):
    failed = {"status": "failed", "error": "ValueError: no luck", "folder": tmp_path / "it"}
    busy = {"status": "busy", "seconds": None}
    outcome(lambda row: failed if row["seed"] == 1 else busy if row["seed"] == 2 else {})
    assert run(toy, *SEEDS) == 1
    lines = capsys.readouterr().out.strip().splitlines()
    assert [" ".join(line.split()) for line in lines[:7]] == [
        "seed rate status seconds error",
        "0 0.10 complete 1.2",
        "0 0.25 complete 1.2",
        "1 0.10 failed 1.2 ValueError: no luck",
        "1 0.25 failed 1.2 ValueError: no luck",
        "2 0.10 busy",
        "2 0.25 busy",
    ]
    assert lines[7:] == [
        "",
        "2 complete",
        f"2 failed: see notebook.ipynb and error.json in {tmp_path / 'it'}",
        "2 busy: locked by another process",
    ]


def test_without_a_failure_the_exit_code_is_0(toy, outcome, capsys):
    outcome(lambda row: {"note": "toy.ipynb has changed since"})
    assert run(toy, *SEEDS) == 0
    assert capsys.readouterr().out.endswith("6 complete\nnote: toy.ipynb has changed since\n")


def test_runs_that_did_not_reach_their_end_are_counted(toy, outcome, capsys):
    outcome(lambda row: {"status": "incomplete"} if row["seed"] else {})
    assert run(toy, *SEEDS) == 0
    assert capsys.readouterr().out.endswith("2 complete\n4 incomplete\n")


def test_a_failure_without_a_folder_names_none(toy, outcome, capsys):
    outcome(lambda row: {"status": "failed", "error": "OSError: no space"})
    assert run(toy, *SEEDS) == 1
    said = capsys.readouterr().out
    assert said.endswith("6 failed\n")
    assert "None" not in said


def test_an_interrupt_is_exit_code_130(toy, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run", interrupted)
    assert run(toy, *SEEDS) == 130
    assert "started again, it resumes" in capsys.readouterr().err


def test_print_runs_nothing(toy, capsys, monkeypatch):
    assert run(toy, "-p", "seed=0..1", "-p", "mode='a b',c", "--print") == 0
    tail = f"--runs {toy.parent / 'runs'}"
    assert capsys.readouterr().out.splitlines() == [
        f"astkit run {toy} -p seed={seed} -p {mode} {tail}"
        for seed in (0, 1)
        for mode in ("'mode=a b'", "mode=c")
    ]
    assert not (toy.parent / "runs").exists()
    monkeypatch.setattr(sweep, "commands", lambda *arguments, **options: [])
    assert run(toy, "-p", "seed=0", "--print") == 0
    assert capsys.readouterr().out == ""  # a line would be a command to a scheduler


def test_bad_arguments_are_refused_before_anything_starts(toy, capsys):
    runs = toy.parent / "runs"
    for options, sentence in (
        (["-p", "sede=0..3"], "toy.ipynb has no parameter 'sede': did you mean seed"),
        (["-p", "seed=0.5"], "seed is 0.5, but its default"),
        (["-p", "seed=3..0"], "seed is 3..0: give the smaller number first"),
        (["-p", "seed=1,,2"], "seed is '', but its default"),
        (["-p", "seed=1,1"], "seed contains 1 twice"),
        (["-p", "names=[a,b"], "names is '[a,b': close its brackets"),
        (["--jobs", "0"], "jobs is 0: give 1 or more"),
        (["--threads", "0"], "threads is 0: give 1 or more"),
        (["-p", "seed=0..9999999999"], "seed is 0..9999999999: give at most 100,000 values"),
    ):
        assert refused(capsys, "sweep", toy, "--runs", runs, *options).startswith(sentence)
    assert not runs.exists()
