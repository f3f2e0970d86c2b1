"""Pruning: an equivalent circuit without redundant gates."""

from __future__ import annotations

import dataclasses

import numpy as np

from astkit.logic_ca.circuit import FALSE, TRUE, Circuit

# A literal is 2 * node + negated, as in AIGER (Biere, 2007); node 0 is the constant FALSE.
_FALSE = 0
_A, _B, _NOT = 3, 5, 12

Gate = tuple[int, int, int]
"""Op and its two nodes."""


def prune(circuit: Circuit) -> Circuit:
    """An equivalent circuit without redundant gates.

    In one pass, in order: a gate of a constant or of one wire twice becomes a constant, a wire or
    its negation; negations are merged into the truth tables of the gates that read them; a gate
    that equals a function of the same two wires computed earlier, or its negation, becomes that
    gate. Then gates that no output needs are removed. The remaining gates depend on both inputs,
    except a NOT (op 12, both inputs the same wire) where an output is the negation of an input, or
    of a gate that is an output itself.
    """
    nodes = _Nodes(circuit.inputs)
    literals = [2 * node for node in range(1, circuit.inputs + 1)]
    for op, a, b in zip(circuit.ops.tolist(), circuit.a.tolist(), circuit.b.tolist(), strict=True):
        literals.append(nodes.literal(op, literals[a], literals[b]))
    outputs = [~w if w < 0 else literals[w] for w in circuit.outputs.tolist()]
    return _written(circuit, nodes.gates, outputs)


def negate_a(op: int) -> int:
    """The op that maps (not a, b) as ``op`` maps (a, b)."""
    return (op >> 2 | op << 2) & 15


def negate_b(op: int) -> int:
    """The op that maps (a, not b) as ``op`` maps (a, b)."""
    return (op & 0b0101) << 1 | (op & 0b1010) >> 1


def swap(op: int) -> int:
    """The op that maps (b, a) as ``op`` maps (a, b)."""
    return op & 0b1001 | (op & 0b0010) << 1 | (op & 0b0100) >> 1


class _Nodes:
    """Distinct gates over other nodes, normalised to give 0 where both inputs are 0."""

    def __init__(self, inputs: int) -> None:
        self.gates: dict[int, Gate] = {}
        self._first = inputs + 1
        self._known: dict[Gate, int] = {}

    def literal(self, op: int, x: int, y: int) -> int:
        """The literal that equals a gate of the literals ``x`` and ``y``."""
        op = negate_a(op) if x & 1 else op
        op = negate_b(op) if y & 1 else op
        op, p, q = self._over_one_pair(op, x >> 1, y >> 1)
        f00, f01, f10, f11 = (op >> shift & 1 for shift in (3, 2, 1, 0))
        if p == q:
            return _unary(p, f00, f11)
        if p == _FALSE or (f00, f01) == (f10, f11):
            return _unary(q, f00, f01)
        if q == _FALSE or (f00, f10) == (f01, f11):
            return _unary(p, f00, f10)
        gate = (15 - op if f00 else op, p, q)
        if p > q:
            gate = (swap(gate[0]), q, p)
        node = self._known.setdefault(gate, self._first + len(self._known))
        self.gates[node] = gate
        return 2 * node + f00

    def _over_one_pair(self, op: int, x: int, y: int) -> Gate:
        """The same gate over two nodes of which ``x`` and ``y`` are both functions, if any."""
        for p, q in dict.fromkeys(self.gates[n][1:] for n in (x, y) if n in self.gates):
            of_x, of_y = self._table(x, p, q), self._table(y, p, q)
            if of_x is not None and of_y is not None:
                return _composed(op, of_x, of_y), p, q
        return op, x, y

    def _table(self, node: int, p: int, q: int) -> int | None:
        if node in (p, q):
            return _A if node == p else _B
        op, *pair = self.gates.get(node, (0, 0, 0))
        return op if pair == [p, q] else None


def _composed(op: int, of_a: int, of_b: int) -> int:
    """The composition of ``op`` with the ops ``of_a`` and ``of_b`` of the same two inputs."""
    return sum((op >> 3 - 2 * (of_a >> i & 1) - (of_b >> i & 1) & 1) << i for i in range(4))


def _unary(node: int, at_0: int, at_1: int) -> int:
    return at_0 if at_0 == at_1 else 2 * node + at_0


def _written(circuit: Circuit, gates: dict[int, Gate], outputs: list[int]) -> Circuit:
    """The circuit of the nodes that ``outputs`` (literals) depend on."""
    flipped = {o >> 1 for o in outputs if o & 1} - {o >> 1 for o in outputs if not o & 1}
    flipped -= set(range(circuit.inputs + 1))  # an input cannot be flipped where it is made
    needed = {o >> 1 for o in outputs}
    for node, (_, x, y) in reversed(gates.items()):
        if node in needed:
            needed |= {x, y}
    wire = {node: node - 1 for node in range(1, circuit.inputs + 1)}
    kept: list[Gate] = []
    for node, (op, x, y) in gates.items():
        if node in needed:
            op = negate_a(op) if x in flipped else op
            op = negate_b(op) if y in flipped else op
            wire[node] = circuit.inputs + len(kept)
            kept.append((15 - op if node in flipped else op, wire[x], wire[y]))
    ends = {0: FALSE, 1: TRUE}
    for literal in outputs:
        if literal not in ends:
            node = literal >> 1
            ends[literal] = wire[node]
            if literal & 1 and node not in flipped:
                ends[literal] = circuit.inputs + len(kept)
                kept.append((_NOT, wire[node], wire[node]))
    ops, a, b = np.array(kept, np.int64).reshape(-1, 3).T
    ended = np.array([ends[literal] for literal in outputs])
    return dataclasses.replace(circuit, ops=ops, a=a, b=b, outputs=ended)
