"""The lattice's reports: they are made, and what is committed keeps its bounds and has learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from astkit.systems.lattice.model import ENERGY, MOVE, EnergyFlowLattice, LatticeConfig
from benchmarks import lattice, lattice_learning


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


def test_the_committed_ratios_keep_their_bounds() -> None:
    committed = json.loads(lattice.RESULTS.read_text())
    for part in lattice.BOUNDED:
        for name, ratio in committed[part]["ratios"].items():
            assert ratio["n"] >= (3 if name.startswith("loop") else 7)
            assert ratio["median"] >= lattice.BOUNDS[name], name
    case = committed["early_stop"]
    assert case["stragglers"] == pytest.approx(lattice.STRAGGLERS, abs=0.005)
    assert case["steps"]["all steps"] == 50
    assert case["surface_error"] < lattice.ERROR


@pytest.fixture(scope="module")
def arms() -> dict[str, Any]:
    return json.loads(lattice_learning.RESULTS.read_text())["arms"]


def test_every_arm_was_measured_with_three_seeds_as_it_stands_now(arms: dict[str, Any]) -> None:
    known = {arm.name: arm for arm in (*lattice_learning.ARMS, *lattice_learning.ABLATION)}
    assert arms.keys() <= known.keys()
    for name, measured in arms.items():
        assert measured["settings"] == lattice_learning.settings_of(known[name])
        assert [row["seed"] for row in measured["rows"]] == [0, 1, 2]
        assert {row["steps"] for row in measured["rows"]} == {known[name].steps}


def test_the_lattice_learns_in_300_steps_and_the_originals_rules_do_not(arms: dict) -> None:
    for row in arms["lattice"]["rows"]:
        assert row["steps"] <= 300
        assert row["val_mrr"] >= 0.20
        assert row["val_cosine"] >= 0.27
    assert all(row["val_mrr"] < 0.05 for row in arms["negative control"]["rows"])


@pytest.mark.full
def test_the_measurement_can_be_made_again(tmp_path: Path) -> None:
    out = tmp_path / "again.json"
    names = ["bypass", "negative control", "large first displacements"]
    some = ["--seeds", "0", "--steps", "1", "--pairs", "50"]
    lattice_learning.main([*some, "--arms", *names[:1], "--out", str(out)])
    lattice_learning.main([*some, "--arms", *names[1:], "--out", str(out)])  # the first one stays
    content = json.loads(out.read_text())
    assert list(content["baselines"]) == ["train mean", "copy input", "ridge"]
    assert sum(content["pairs"].values()) == 50
    rows = {name: measured["rows"][0] for name, measured in content["arms"].items()}
    assert set(rows) == set(names)
    assert all(row["steps"] == 1 and 0 < row["val_mrr"] <= 1 for row in rows.values())
    assert len({row["val_cosine"] for row in rows.values()}) == len(rows)  # not one twice


@pytest.mark.parametrize("head", [MOVE, ENERGY])
def test_large_heads_are_drawn_as_the_other_ones_were(head: slice) -> None:
    config = LatticeConfig(dim=4, width=3, height=3, depth=3, hidden=64)
    model, small = EnergyFlowLattice(config), EnergyFlowLattice(config)
    lattice_learning.enlarge(model, head)
    after, before = model.carrier.heads.weight.detach(), small.carrier.heads.weight.detach()
    assert float(after[head].std() / before[head].std()) == pytest.approx(10, rel=0.3)
    assert float(after[head].abs().max()) <= 64**-0.5
    after[head] = before[head]
    assert torch.equal(after, before)
