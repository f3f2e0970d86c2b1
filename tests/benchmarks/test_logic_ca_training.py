"""The training report: it runs, goes on where it stopped, and what is committed has learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from astkit.systems.automaton import tasks
from astkit.systems.automaton.automaton import LogicCA
from tests.benchmarks import logic_ca_training as script


@pytest.mark.full
def test_a_small_report_is_written_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "LARGE", 8)
    out = tmp_path / "report.json"
    small = ["--task", "life", "--iterations", "25", "--out", str(out)]
    script.main([*small, "--seeds", "0"])
    first = json.loads(out.read_text())
    script.main([*small, "--seeds", "0", "1"])
    report = json.loads(out.read_text())
    assert report["life"]["runs"][0] == first["life"]["runs"][0]
    assert [run["seed"] for run in report["life"]["runs"]] == [0, 1]
    assert all(run["iterations"] == 25 for run in report["life"]["runs"])
    assert report["life"]["runs"][0]["after"]["mismatches"] > 0


def test_a_board_is_read_on_larger_grids() -> None:
    task = replace(tasks.checkerboard_small(), height=6, width=6, steps=2)
    after = script.after_board(LogicCA(task.config), task)
    assert (after["side"], after["steps"]) == (26, 8)  # 24 is where the inverse would fit
    assert 0 <= after["healed"] <= 1


def test_a_larger_board_ends_as_the_one_of_the_training_does() -> None:
    for task in (tasks.checkerboard(), tasks.checkerboard_async()):
        side = script.in_phase(64, task)
        assert side - 64 in range(4)
        large, small = (tasks.checkerboard_target(each, each) for each in (side, task.height))
        corners = (slice(None, None, side - 1),) * 2, (slice(None, None, task.height - 1),) * 2
        assert torch.equal(large[corners[0]], small[corners[1]])


def test_the_arms_of_the_gate_spend_what_they_may() -> None:
    arms = {row["arm"]: row for row in script.gated(1, 0.25, 50)}
    dense, gate, equal, random = arms.values()
    assert dense["samples_trained"] == gate["samples_scored"] == 1000
    assert gate["samples_trained"] < 500
    assert gate["flops"] <= equal["flops"] <= gate["flops"] + dense["flops"] / 50
    assert random["samples_trained"] == 240
    assert random["samples_unloaded"] == 2 * 384


@pytest.fixture
def committed() -> dict[str, Any]:
    return json.loads(script.RESULTS.read_text())


def test_life_was_learned_without_error_on_all_seeds(committed: dict[str, Any]) -> None:
    runs = committed["life"]["runs"]
    assert [run["seed"] for run in runs] == list(script.SEEDS)
    for run in runs:
        assert run["first_without_error"] <= 3000
        assert run["final"]["wrong"] == 0
        assert run["after"] == {**run["after"], "side": 128, "steps": 100, "mismatches": 0}


def test_a_checkerboard_was_learned(committed: dict[str, Any]) -> None:
    runs = {run["seed"]: run for run in committed["checkerboard"]["runs"]}
    run = runs[23]  # the paper's seed
    assert run["first_without_error"] <= 800
    assert run["final"]["accuracy"] == run["fresh"]["accuracy"] == 1.0
    assert run["after"]["accuracy"] >= 0.99
    assert run["after"]["healed"] >= 0.99
