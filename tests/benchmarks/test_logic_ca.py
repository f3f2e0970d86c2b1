"""The report of the four ways: it runs, and what is committed keeps its bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astkit.systems.automaton.tasks import checkerboard_small
from tests.benchmarks import logic_ca


@pytest.mark.full
def test_a_small_report_holds_every_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logic_ca, "checkerboard", checkerboard_small)
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


@pytest.fixture
def committed() -> dict[str, Any]:
    return json.loads(logic_ca.RESULTS.read_text())


def test_a_batch_of_twenty_beats_the_loop(committed: dict[str, Any]) -> None:
    (at,) = [found for found in committed["life"] if found["batch"] == logic_ca.AT]
    assert at["ratios"]["batch"]["median"] >= logic_ca.BOUND
    assert at["ratios"]["batch"]["n"] >= 15


def test_the_committed_ways_agree(committed: dict[str, Any]) -> None:
    assert {found["batch"] for found in committed["life"]} == set(logic_ca.BATCHES)
    for found in [*committed["life"], *committed["checkerboard"]]:
        assert found["difference"].keys() == logic_ca.WAYS.keys()
        assert max(found["difference"].values()) <= 1e-12
    assert committed["updates_apart"] <= 1e-8
