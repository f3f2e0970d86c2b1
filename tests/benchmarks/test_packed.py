"""The packed rollout is at least fifty times as fast as the soft one."""

from __future__ import annotations

import pytest

from astkit.logic_ca.circuit import from_automaton
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.pruning import prune
from astkit.logic_ca.tasks import game_of_life
from astkit.profiling import Timings
from tests.benchmarks import packed
from tests.logic_ca.circuits import drawn, life


@pytest.mark.full
@pytest.mark.benchmark
def test_packed_is_fifty_times_as_fast_as_soft():
    model = drawn(game_of_life().config)
    measured = packed.ratio(model, life(), steps=50, soft_steps=1, rounds=3)
    assert measured["gates"] == 2543
    assert measured["median"] >= measured["bound"]


def test_a_ratio_is_scaled_to_equal_steps(monkeypatch):
    def timed(arms, rounds):
        for run in arms.values():
            run()
        return Timings({"soft": (2.0,) * rounds, "packed": (1.0,) * rounds}, "soft")

    monkeypatch.setattr(packed, "interleaved", timed)
    model = drawn(LogicCAConfig(1, 8, (8, 4, 2, 1), (10, 6, 3, 2, 1)))
    measured = packed.ratio(model, size=16, steps=8, soft_steps=2, rounds=3)
    assert [measured[name] for name in ("median", "low", "high")] == [8.0, 8.0, 8.0]
    assert measured["seconds"] == {"soft": 8.0, "packed": 1.0}
    assert (measured["n"], measured["soft_steps"]) == (3, 2)
    circuit = from_automaton(model)
    assert measured["gates"] == circuit.gates
    assert measured["pruned_gates"] == prune(circuit).gates > 0
