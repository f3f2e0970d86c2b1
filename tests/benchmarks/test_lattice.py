"""The lattice's report: it runs, and what is committed keeps its bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import lattice


@pytest.mark.full
def test_a_small_report_holds_every_ratio(tmp_path: Path) -> None:
    out = tmp_path / "lattice.json"
    small = ["--cells", "4", "--batch", "2", "--rounds", "2", "--loop-rounds", "2"]
    lattice.main([*small, "--out", str(out)])
    report = json.loads(out.read_text())
    ratios = {**report["at_once"]["ratios"], **report["early_stop"]["ratios"]}
    assert ratios.keys() == lattice.BOUNDS.keys()
    assert ratios["loop / at once"]["median"] > 2
    assert report["words"]["ratios"]["a sample / a batch"]["median"] > 1
    assert report["precision"]["ratios"]["fp32 / bf16"]["n"] == 2
    steps = report["early_stop"]["steps"]
    assert steps["early stop"] < steps["all steps"] / 2


@pytest.fixture
def committed() -> dict:
    return json.loads(lattice.RESULTS.read_text())


@pytest.mark.parametrize("part", lattice.BOUNDED)
def test_the_committed_ratios_keep_their_bounds(committed: dict, part: str) -> None:
    for name, ratio in committed[part]["ratios"].items():
        assert ratio["n"] >= (3 if name.startswith("loop") else 7)
        assert ratio["median"] >= lattice.BOUNDS[name], name


def test_stopping_early_hardly_changes_the_surface(committed: dict) -> None:
    case = committed["early_stop"]
    assert case["stragglers"] == pytest.approx(lattice.STRAGGLERS, abs=0.005)
    assert case["steps"]["all steps"] == case["config"]["max_steps"] == 50
    assert case["surface_error"] < lattice.ERROR
