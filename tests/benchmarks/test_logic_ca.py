"""The report of the four ways: it runs, and what is committed keeps its bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astkit.logic_ca.circuit import from_automaton
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.pruning import prune
from astkit.logic_ca.tasks import game_of_life
from astkit.profiling import Timings
from tests.benchmarks import logic_ca
from tests.logic_ca.circuits import drawn, life


@pytest.mark.full
def test_a_small_report_holds_every_ratio(tmp_path: Path) -> None:
    out = tmp_path / "logic_ca.json"
    small = ["--rounds", "3", "--batches", "20", "--ways", "batch", "loop", "--no-board"]
    logic_ca.main([*small, "--out", str(out)])
    (found,) = json.loads(out.read_text())["life"]
    assert found["batch"] == logic_ca.AT
    # well below the bound: a smoke test must not hang on the machine
    assert found["ratios"]["batch"]["median"] > 2
    assert max(found["difference"].values()) <= 1e-12
    assert json.loads(out.read_text())["updates_apart"] <= 1e-8


@pytest.fixture
def committed() -> dict[str, Any]:
    return json.loads(logic_ca.RESULTS.read_text())


def test_a_batch_of_twenty_beats_the_loop(committed: dict[str, Any]) -> None:
    (at,) = [found for found in committed["life"] if found["batch"] == logic_ca.AT]
    assert at["ratios"]["batch"]["median"] >= logic_ca.BOUNDS["life"]
    assert at["ratios"]["batch"]["n"] >= 15


def test_the_committed_ways_agree(committed: dict[str, Any]) -> None:
    sizes = {found["batch"] for found in committed["life"]}
    assert sizes == set(logic_ca.BATCHES)
    for found in [*committed["life"], *committed["checkerboard"]]:
        assert found["difference"].keys() == logic_ca.WAYS.keys()
        assert max(found["difference"].values()) <= 1e-12


def test_the_committed_updates_agree(committed: dict[str, Any]) -> None:
    assert committed["updates_apart"] <= 1e-8


def test_the_packed_circuit_is_fifty_times_as_fast(committed: dict[str, Any]) -> None:
    found = committed["packed"]
    assert found["bound"] == 50
    assert found["median"] >= found["bound"]
    assert found["n"] >= 5


def test_where_the_time_of_a_checkerboard_step_goes_is_told(committed: dict[str, Any]) -> None:
    (board,) = committed["checkerboard"]
    assert board["batch"] == 2
    where = committed["where"]
    assert where["ratios"].keys() == {
        "forward alone",
        "half the cells",
        "denormals kept",
        "plain gates",
    }
    assert where["ratios"]["forward alone"]["median"] > 1


@pytest.mark.full
@pytest.mark.benchmark
def test_packed_is_fifty_times_as_fast_as_soft() -> None:
    model = drawn(game_of_life().config)
    measured = logic_ca.packed_ratio(model, life(), steps=50, soft_steps=1, rounds=3)
    assert measured["gates"] == 2543
    assert measured["median"] >= measured["bound"]


def test_a_ratio_is_scaled_to_equal_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(arms: dict[str, Any], rounds: int) -> Timings:
        for run in arms.values():
            run()
        return Timings({"soft": (2.0,) * rounds, "packed": (1.0,) * rounds}, "soft")

    monkeypatch.setattr(logic_ca, "interleaved", timed)
    model = drawn(LogicCAConfig(1, 8, (8, 4, 2, 1), (10, 6, 3, 2, 1)))
    measured = logic_ca.packed_ratio(model, size=16, steps=8, soft_steps=2, rounds=3)
    assert [measured[name] for name in ("median", "low", "high")] == [8.0, 8.0, 8.0]
    assert measured["seconds"] == {"soft": 8.0, "packed": 1.0}
    assert (measured["n"], measured["soft_steps"]) == (3, 2)
    circuit = from_automaton(model)
    assert measured["gates"] == circuit.gates
    assert measured["pruned_gates"] == prune(circuit).gates > 0
