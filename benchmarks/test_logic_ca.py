"""The automaton's reports: they are made, and what is committed agrees and has learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from astkit.systems.automaton import tasks
from astkit.systems.automaton.automaton import LogicCA
from benchmarks import logic_ca
from benchmarks import logic_ca_training as script


@pytest.mark.full
def test_a_small_report_holds_every_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logic_ca, "checkerboard", tasks.checkerboard_small)
    out = tmp_path / "logic_ca.json"
    small = ["--rounds", "3", "--batches", str(logic_ca.AT), "--board-rounds", "2"]
    logic_ca.main([*small, "--out", str(out)])
    report = json.loads(out.read_text())
    (found,), (board,) = report["life"], report["checkerboard"]
    # well below the bound: a smoke test must not hang on the machine
    assert found["ratios"]["batch"]["median"] > 2
    assert found["ratios"].keys() == board["ratios"].keys() == logic_ca.WAYS.keys() - {"loop"}
    assert max(found["difference"].values()) <= 1e-12
    assert report["updates_apart"] <= 1e-8


def test_the_committed_ways_agree_and_a_batch_of_twenty_beats_the_loop() -> None:
    committed = json.loads(logic_ca.RESULTS.read_text())
    life = {found["batch"]: found for found in committed["life"]}
    assert list(life) == logic_ca.BATCHES
    assert life[logic_ca.AT]["ratios"]["batch"]["median"] >= logic_ca.BOUND
    assert life[logic_ca.AT]["ratios"]["batch"]["n"] >= 15
    for found in [*life.values(), *committed["checkerboard"]]:
        assert found["difference"].keys() == logic_ca.WAYS.keys()
        assert max(found["difference"].values()) <= 1e-12
    assert committed["updates_apart"] <= 1e-8


@pytest.mark.full
def test_a_small_training_is_written_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "LARGE", 8)
    out = tmp_path / "report.json"
    small = ["--task", "life", "--iterations", "25", "--out", str(out)]
    script.main([*small, "--seeds", "0"])
    (first,) = json.loads(out.read_text())["life"]["runs"]
    script.main([*small, "--seeds", "0", "1"])
    runs = json.loads(out.read_text())["life"]["runs"]
    assert runs[0] == first
    assert [(run["seed"], run["iterations"]) for run in runs] == [(0, 25), (1, 25)]
    assert runs[0]["after"]["mismatches"] > 0


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
    arms = {row["arm"]: row for row in script.gated(1, 0.25, 12)}
    dense, gate, equal, random = arms.values()
    assert dense["samples_trained"] == gate["samples_scored"] == 240
    assert gate["samples_trained"] < 120
    assert gate["flops"] <= equal["flops"] <= gate["flops"] + dense["flops"] / 12
    assert random["samples_trained"] == 60
    assert random["samples_unloaded"] == 384


def test_life_and_a_checkerboard_were_learned_without_error() -> None:
    committed = json.loads(script.RESULTS.read_text())
    runs = committed["life"]["runs"]
    assert [run["seed"] for run in runs] == script.SEEDS
    for run in runs:
        assert run["first_without_error"] <= 3000
        assert run["final"]["wrong"] == 0
        assert run["after"] == {**run["after"], "side": 128, "steps": 100, "mismatches": 0}
    (run,) = [run for run in committed["checkerboard"]["runs"] if run["seed"] == 23]  # the paper's
    assert run["first_without_error"] <= 800
    assert run["final"]["accuracy"] == run["fresh"]["accuracy"] == 1.0
    assert run["after"]["accuracy"] >= 0.99
    assert run["after"]["healed"] >= 0.99
