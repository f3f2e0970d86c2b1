"""Pruning changes no output on any input, and leaves no gate that could go by its rules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from astkit.logic_ca.circuit import FALSE, Circuit
from astkit.logic_ca.pruning import negate_a, negate_b, prune, swap
from tests.logic_ca import circuits
from tests.logic_ca.circuits import Builder, output

BITS = (False, True)


def equal(one: Circuit, other: Circuit) -> None:
    wires = circuits.patches(np.random.default_rng(0), one.inputs)
    np.testing.assert_array_equal(circuits.evaluate(one, wires), circuits.evaluate(other, wires))


def test_turned_and_swapped_ops():
    for op, a, b in itertools.product(range(16), BITS, BITS):
        assert output(negate_a(op), a, b) == output(op, not a, b)
        assert output(negate_b(op), a, b) == output(op, a, not b)
        assert output(swap(op), a, b) == output(op, b, a)


@given(circuits.circuits(gates=60))
@settings(max_examples=40, deadline=None)
def test_pruned_equals_unpruned_and_every_gate_left_is_needed(circuit):
    pruned = prune(circuit)
    equal(circuit, pruned)
    assert pruned.gates <= circuit.gates
    assert prune(pruned).to_json() == pruned.to_json()
    assert (pruned.boundary, pruned.meta) == (circuit.boundary, circuit.meta)
    gates = list(zip(pruned.ops.tolist(), pruned.a.tolist(), pruned.b.tolist(), strict=True))
    read = {wire for _, a, b in gates for wire in (a, b)} | set(pruned.outputs.tolist())
    assert set(range(pruned.inputs, pruned.inputs + pruned.gates)) <= read
    for op, a, b in gates:
        assert (op == 12) if a == b else (op in circuits.ACTIVE)
    twins = [(frozenset((a, b)), op if a < b else swap(op)) for op, a, b in gates]
    assert len(set(twins)) == len(twins)


@pytest.mark.parametrize("first", [0, 1, 4, 6, 9, 10, 11, 15])
def test_gates_of_the_same_two_wires_become_one(first):
    for op, second in itertools.product(range(16), (0, 1, 4, 6, 11)):
        for order in (1, -1):
            make = Builder(1)
            # the other wire is one of the two itself, or another gate of them
            pair = (make.op(first, 0, 1), second if second < 2 else make.op(second, 1, 0))
            circuit = make.done([make.op(op, *pair[::order])])
            pruned = prune(circuit)
            equal(circuit, pruned)
            assert pruned.gates <= 1  # two variables' worth of function never needs a second


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
    circuit = make.done([kept])
    assert prune(circuit).outputs.tolist() == [4]
    assert prune(make.done([gone])).outputs.tolist() == [FALSE]
