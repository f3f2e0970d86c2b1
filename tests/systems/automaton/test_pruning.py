"""Pruning changes no output on any input, and leaves no gate that could go by its rules."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings

from astkit.systems.automaton.circuit import FALSE, Circuit, compose, prune
from tests.systems.automaton import circuits
from tests.systems.automaton.circuits import TABLES, Builder


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


def test_constants_go_all_the_way():
    make = Builder(1)
    true = make.op(15, 0, 1)
    gone = make.op(8, true, 3)
    kept = make.op(7, gone, 4)
    assert prune(make.done([kept])).outputs.tolist() == [4]
    assert prune(make.done([gone])).outputs.tolist() == [FALSE]
