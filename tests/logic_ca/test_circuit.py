"""A circuit computes what its truth tables say, comes back from JSON, and is the hard automaton."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from astkit import rng
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.circuit import FALSE, Circuit, from_automaton
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.tasks import game_of_life
from tests.logic_ca import circuits
from tests.logic_ca.circuits import TABLES, Builder, drawn, output


def test_an_op_is_its_truth_table_read_as_a_number():
    for op in range(16):
        table = [output(op, a, b) for a in (False, True) for b in (False, True)]
        assert TABLES[op].tolist() == table
        assert int("".join(f"{bit:d}" for bit in table), 2) == op


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
    assert (circuit.inputs, circuit.gates, circuit.active) == (9, 4, 2)
    assert dict(enumerate(circuit.by_op().tolist())) == {
        i: {0: 1, 1: 1, 3: 1, 6: 1}.get(i, 0) for i in range(16)
    }
    assert circuit.depths().tolist() == [0] * 9 + [1, 2, 1, 3]


@given(circuits.circuits())
@settings(max_examples=15, deadline=None)
def test_json_comes_back(circuit):
    again = Circuit.from_json(circuit.to_json())
    assert again.to_json() == circuit.to_json()
    for name in ("ops", "a", "b", "outputs"):
        np.testing.assert_array_equal(getattr(again, name), getattr(circuit, name))
        assert not getattr(again, name).flags.writeable


def test_a_saved_circuit_comes_back_with_how_it_was_made(tmp_path):
    circuit = dataclasses.replace(circuits.life("zero"), fire_rate=0.5, meta={"from": ["a", None]})
    again = Circuit.from_json(circuit.save(tmp_path / "new" / "life.json").read_text())
    assert again.to_json() == circuit.to_json()
    assert again.meta == {"from": ["a", None]}
    assert (again.boundary, again.fire_rate) == ("zero", 0.5)


def test_the_arrays_are_its_own():
    ops = np.array([1])
    circuit = Circuit(1, ops, np.array([0]), np.array([1]), np.array([9]))
    ops[0] = 7
    assert circuit.ops.tolist() == [1]


BROKEN = {
    "this is no circuit": {"format": "something"},
    "this is no circuit: give JSON": {"version": 2},
    "unknown keys in the circuit: surplus": {"surplus": 1},
    "channels is 0": {"channels": 0},
    "channels is True": {"channels": True},
    "channels is '1'": {"channels": "1"},
    "have 2, 2, 2 and 1 entries.* one of 2 channels": {"channels": 2},
    "boundary is 'open'": {"boundary": "open"},
    r"boundary is \[\]": {"boundary": []},
    "fire_rate is 0: give a share": {"fire_rate": 0},
    "fire_rate is nan: give a share": {"fire_rate": float("nan")},
    "fire_rate is '1'": {"fire_rate": "1"},
    r"ops\[0\] is 16: give 0 to 15": {"ops": [16, 6]},
    r"ops\[1\] is -1": {"ops": [1, -1]},
    "have 3, 2, 2 and 1 entries": {"ops": [1, 6, 6]},
    r"a\[0\] is 9: give 0 to 8": {"a": [9, 0]},  # its own output
    r"a\[0\] is 10": {"a": [10, 0]},  # a later gate
    r"b\[1\] is -1": {"b": [1, -1]},
    r"outputs\[0\] is 11: give -2 to 10": {"outputs": [11]},
    r"outputs\[0\] is -3": {"outputs": [-3]},
    "b is float64": {"b": [1, 2.0]},
    "ops is .*one dimension": {"ops": [[1], [2]]},
    "outputs is object": {"outputs": [None]},
    "ops is object": {"ops": [1, 10**30]},
    r"a is object of shape \(\)": {"a": {"0": 1}},
    "b is .* of shape": {"b": "ab"},
    "meta is": {"meta": [1]},
}


def test_json_that_is_no_circuit_is_refused():
    make = Builder(1)
    good = json.loads(make.done([make.op(6, make.op(1, 0, 1), 2)]).to_json())
    for fault, change in BROKEN.items():
        with pytest.raises(ValueError, match=fault) as caught:
            Circuit.from_json(json.dumps({**good, **change}))
        assert "\n" not in str(caught.value)
    del good["b"]
    for text in ("", "{", "[]", "7", "null", "\xff", "[" * 100_000, b"\xff\xfe\x00"):
        with pytest.raises(ValueError, match="this is no circuit"):
            Circuit.from_json(text)
    with pytest.raises(ValueError, match="missing or unknown keys in the circuit: b"):
        Circuit.from_json(json.dumps(good))


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
    assert circuit.meta["wiring_hash"] == model.wiring_hash
    assert LogicCAConfig(**circuit.meta["config"]) == config
    assert (circuit.boundary, circuit.fire_rate) == (config.boundary, config.fire_rate)
    assert Circuit.from_json(circuit.to_json()).meta == circuit.meta
    size = (2, config.channels, 5, 4)
    x = torch.randint(2, size, generator=rng.generator(1, "x"))
    mask = torch.ones(1, 2, 1, 5, 4, dtype=torch.bool)
    new = model(x.float(), 1, mask, hard=True)
    np.testing.assert_array_equal(circuits.step(circuit, x.numpy().astype(bool)), new.numpy())
    assert 0 < new.mean() < 1


def test_a_fresh_automaton_passes_one_wire_on():
    circuit = from_automaton(LogicCA(game_of_life().config))
    assert circuit.gates == 2543
    assert circuit.active == 0
    assert circuit.by_op()[3] == 2543
    assert FALSE not in circuit.outputs
