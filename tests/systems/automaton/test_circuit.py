"""A circuit: JSON, pruning that computes the same, and 64 cells a word or one by one."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.systems.automaton.automaton import LogicCA, LogicCAConfig
from astkit.systems.automaton.circuit import (
    FALSE,
    Circuit,
    PackedCircuit,
    compose,
    from_automaton,
    prune,
)
from astkit.systems.automaton.tasks import checkerboard_small, fire_masks, game_of_life
from tests.systems.automaton import circuits
from tests.systems.automaton.circuits import TABLES, Builder


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


def test_a_fresh_automaton_passes_one_wire_on():
    circuit = from_automaton(LogicCA(game_of_life().config))
    assert circuit.by_op()[3] == circuit.gates == 2543
    assert FALSE not in circuit.outputs


def equal(one: Circuit, other: Circuit) -> None:
    wires = circuits.patches(np.random.default_rng(0), one.inputs)
    np.testing.assert_array_equal(circuits.evaluate(one, wires), circuits.evaluate(other, wires))


def test_ops_of_ops():
    for op, of_a, of_b in itertools.product(range(16), repeat=3):
        composed = TABLES[op][2 * TABLES[of_a] + TABLES[of_b]]
        assert TABLES[compose(op, of_a, of_b)].tolist() == composed.tolist()


@given(circuits.circuits(gates=60))
@settings(max_examples=40, deadline=None)
def test_pruned_equals_unpruned_and_every_gate_left_is_needed(circuit):
    pruned = prune(circuit)
    equal(circuit, pruned)
    assert pruned.gates <= circuit.gates
    assert prune(pruned).to_json() == pruned.to_json()
    assert pruned.boundary == circuit.boundary
    gates = list(zip(pruned.ops.tolist(), pruned.a.tolist(), pruned.b.tolist(), strict=True))
    read = {wire for _, a, b in gates for wire in (a, b)} | set(pruned.outputs.tolist())
    assert set(range(pruned.inputs, pruned.inputs + pruned.gates)) <= read
    for op, a, b in gates:
        assert (op == 12) if a == b else (op in (1, 2, 4, 6, 7))
    twins = [(frozenset((a, b)), op if a < b else compose(op, 5, 3)) for op, a, b in gates]
    assert len(set(twins)) == len(twins)


def test_an_output_and_its_negation_share_a_gate_and_a_not():
    make = Builder(3)
    gate = make.op(1, 0, 10)
    twin = make.op(14, 10, 0)
    circuit = make.done([gate, twin, make.op(10, 5, twin)])
    pruned = prune(circuit)
    equal(circuit, pruned)
    assert pruned.ops.tolist() == [1, 12]
    assert pruned.outputs.tolist() == [27, 28, 27]


def bits(*shape: int, key: int | str = 0) -> torch.Tensor:
    return torch.rand(shape, generator=rng.generator("bits", key)) < 0.5


@given(
    circuits.circuits(),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([1, 2, 7, 31, 64, 65, 129]),
    st.booleans(),
    st.integers(0, 2**20),
)
@settings(max_examples=20, deadline=None)
def test_packed_equals_cell_by_cell(circuit, batch, height, width, asynchronous, key):
    x = bits(batch, circuit.channels, height, width, key=key)
    masks = bits(2, batch, 1, height, width, key=key + 1) if asynchronous else None
    packed = PackedCircuit(circuit)
    states = packed.trajectory(x, 2, masks)
    wanted = [x.numpy()]
    for step in range(2):
        mask = None if masks is None else masks[step].numpy()
        wanted.append(circuits.step(circuit, wanted[-1], mask))
    np.testing.assert_array_equal(states.numpy(), np.stack(wanted))
    assert torch.equal(packed.rollout(x, 2, masks), states[-1])


SMALL = checkerboard_small().config


@pytest.mark.parametrize(
    "config",
    [
        dataclasses.replace(SMALL, boundary="periodic"),
        dataclasses.replace(SMALL, fire_rate=0.6),
        LogicCAConfig(3, 2, (8, 5), (20, 30, 15, 8, 4, 3), seed=5),
    ],
)
def test_the_exported_circuit_is_the_hard_automaton(config):
    model = circuits.drawn(config, seed=3)
    size, steps = (20, config.channels, 12, 19), 6
    x, masks = bits(*size), None
    if config.fire_rate < 1:
        masks = fire_masks(config.fire_rate, (steps, 1, *size[2:]), range(20), 0, 0)
    hard = model(x.float(), steps, masks, hard=True)
    assert 0.1 < hard.mean() < 0.9
    assert len(torch.unique(hard, dim=0)) == 20  # every grid came to a state of its own
    circuit = from_automaton(model)
    assert circuit.gates == config.gates_per_cell
    assert torch.equal(PackedCircuit(circuit).rollout(x, steps, masks), hard.bool())


@pytest.mark.parametrize("rows", [1, 3])
def test_cells_that_die_are_dead_in_all_channels(rows):
    model, x = circuits.drawn(SMALL, seed=3), bits(3, SMALL.channels, 9, 7).float()
    alive = bits(5, rows, 1, 9, 7, key="alive")
    wanted = x
    for living in alive:
        wanted = model(wanted, 1, hard=True) * living
    packed = PackedCircuit(from_automaton(model))
    assert torch.equal(packed.rollout(x, 5, alive=alive), wanted.bool())
    assert not torch.equal(packed.rollout(x, 5), wanted.bool())


def test_wrong_inputs_are_refused():
    circuit = circuits.Builder(1).done([4])
    grid, mask = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 1, 4, 4)
    for x, steps, masks, message in (
        (torch.zeros(1, 2, 4, 4), 1, None, r"x has shape \[1, 2, 4, 4\]: give \[batch, 1,"),
        (grid + 0.5, 1, None, "x contains values other than 0 and 1"),
        (grid, 2, mask, r"masks has .* give \[2, 1, 1, 4"),
        (grid, 1, 2 * mask, "masks contains values other"),
    ):
        with pytest.raises(ValueError, match=message):
            PackedCircuit(circuit).rollout(x, steps, masks)
    for shape in ((2, 1, 1, 4, 4), (1, 2, 1, 4, 4), (1, 1, 1, 1, 1), (1, 4)):
        with pytest.raises(ValueError, match=r"alive has .* give \[1, 1, 1, 4, 4\] for all"):
            PackedCircuit(circuit).rollout(grid, 1, alive=torch.ones(shape))
    slow = dataclasses.replace(circuit, fire_rate=0.6)
    with pytest.raises(ValueError, match=r"fire rate is 0.6: draw them"):
        PackedCircuit(slow).rollout(grid, 1)
