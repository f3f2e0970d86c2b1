"""`astkit sweep`: what it counts, and its exit codes."""

import pytest

from astkit.cli import main
from astkit.runs import sweep
from astkit.runs.notebook import Outcome
from tests.runs.sweeping import toy  # noqa: F401 (fixture)

# ruff: noqa: F811
SEEDS = ["-p", "seed=0,1,2", "-p", "rate=0.1,0.25"]


def run(toy, *options):
    return main(["sweep", str(toy), "--runs", str(toy.parent / "runs"), *options])


@pytest.fixture
def outcome(monkeypatch):
    """In place of running anything: what becomes of each run."""
    calls = []

    def play(of):
        def run(path, values, root, *, announce):
            calls.append((path, values, root))
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


def test_options_reach_the_sweep_and_runs_are_counted_by_status(toy, outcome, capsys, tmp_path):
    failed = {"status": "failed", "error": "ValueError: no luck", "folder": tmp_path / "it"}
    busy = {"status": "busy", "seconds": None}
    calls = outcome(lambda row: failed if row["seed"] == 1 else busy if row["seed"] == 2 else {})
    assert run(toy, *SEEDS) == 1
    values = {"seed": [0, 1, 2], "rate": [0.1, 0.25]}
    assert calls == [(toy, values, toy.parent / "runs")]
    assert capsys.readouterr().out.splitlines() == [
        "2 complete",
        f"2 failed: see notebook.ipynb and error.json in {tmp_path / 'it'}",
        "2 busy: locked by another process",
    ]


def test_without_a_failure_the_exit_code_is_0(toy, outcome, capsys):
    outcome(lambda row: {"status": "incomplete"} if row["seed"] else {"note": "it has changed"})
    assert run(toy, *SEEDS) == 0
    assert capsys.readouterr().out.endswith("2 complete\n4 incomplete\nnote: it has changed\n")
