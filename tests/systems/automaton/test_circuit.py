"""A circuit computes what its truth tables say, comes back from JSON, and is the hard automaton."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from astkit import rng
from astkit.systems.automaton.automaton import LogicCA, LogicCAConfig
from astkit.systems.automaton.circuit import FALSE, Circuit, from_automaton
from astkit.systems.automaton.tasks import game_of_life
from tests.systems.automaton import circuits
from tests.systems.automaton.circuits import Builder, drawn


def test_life_by_hand_is_life():
    wires = circuits.patches(np.random.default_rng(0), 9)
    count = wires.sum(0) - wires[4]
    wanted = (count == 3) | ((count == 2) & wires[4])
    np.testing.assert_array_equal(circuits.evaluate(circuits.life(), wires)[0], wanted)


def test_counts_and_depths():
    make = Builder(1)
    first = make.op(1, 0, 1)
    passed = make.op(3, first, 2)
    make.op(0, 0, 0)
    last = make.op(6, passed, first)
    circuit = make.done([last])
    assert (circuit.inputs, circuit.gates) == (9, 4)
    assert circuit.by_op().tolist() == [1, 1, 0, 1, 0, 0, 1, *[0] * 9]


@given(circuits.circuits())
@settings(max_examples=15, deadline=None)
def test_json_comes_back(circuit):
    again = Circuit.from_json(circuit.to_json())
    assert again.to_json() == circuit.to_json()
    for name in ("ops", "a", "b", "outputs"):
        np.testing.assert_array_equal(getattr(again, name), getattr(circuit, name))
        assert not getattr(again, name).flags.writeable


BROKEN = {
    "give a JSON object with the format": {"format": "something"},
    "unexpected keyword argument 'surplus'": {"surplus": 1},
    "channels is '1'": {"channels": "1"},
    "have 2, 2, 2 and 1 entries.* one of 2 channels": {"channels": 2},
    "boundary is 'open'": {"boundary": "open"},
    "fire_rate is nan: give a share": {"fire_rate": float("nan")},
    r"ops\[0\] is 16: give 0 to 15": {"ops": [16, 6]},
    r"a\[0\] is 9: give 0 to 8": {"a": [9, 0]},  # its own output
    r"b\[1\] is -1": {"b": [1, -1]},
    r"outputs\[0\] is 11: give -2 to 10": {"outputs": [11]},
    "ops is .*one dimension": {"ops": [[1], [2]]},
    r"a is object of shape \(\)": {"a": {"0": 1}},
}


def test_json_that_is_no_circuit_is_refused():
    make = Builder(1)
    good = json.loads(make.done([make.op(6, make.op(1, 0, 1), 2)]).to_json())
    for fault, change in BROKEN.items():
        with pytest.raises(ValueError, match=fault) as caught:
            Circuit.from_json(json.dumps({**good, **change}))
        assert "\n" not in str(caught.value)
    del good["b"]
    texts = ("", "{", "[]", "7", "null", "\xff", "[" * 100_000, b"\xff\xfe\x00", json.dumps(good))
    for text in texts:
        with pytest.raises(ValueError, match="this is not a circuit written by to_json"):
            Circuit.from_json(text)


@pytest.mark.parametrize(
    "config",
    [
        LogicCAConfig(1, 8, (8, 4, 2, 1), (10, 6, 3, 2, 1)),
        LogicCAConfig(2, 3, (8, 4, 2), (12, 8, 4, 2), boundary="zero", fire_rate=0.6),
        LogicCAConfig(3, 2, (8, 5), (20, 30, 15, 8, 4, 3), seed=5),
    ],
)
def test_the_exported_circuit_is_the_hard_automaton(config):
    model = drawn(config)
    circuit = from_automaton(model)
    assert circuit.gates == config.gates_per_cell
    assert (circuit.boundary, circuit.fire_rate) == (config.boundary, config.fire_rate)
    size = (2, config.channels, 5, 4)
    x = torch.randint(2, size, generator=rng.generator(1, "x"))
    mask = torch.ones(1, 2, 1, 5, 4, dtype=torch.bool)
    new = model(x.float(), 1, mask, hard=True).detach()
    np.testing.assert_array_equal(circuits.step(circuit, x.numpy().astype(bool)), new.numpy())
    assert 0 < new.mean() < 1


def test_a_fresh_automaton_passes_one_wire_on():
    circuit = from_automaton(LogicCA(game_of_life().config))
    assert circuit.by_op()[3] == circuit.gates == 2543
    assert FALSE not in circuit.outputs
