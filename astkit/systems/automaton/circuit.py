"""Circuit of two-input gates that updates one cell: the function of a hard automaton.

A gate's op is its truth table for (a, b) = 00, 01, 10, 11 read as a 4-bit number, 0 to 15. A
circuit comes from an automaton or from JSON, is pruned, and runs on grids of bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astkit import files
from astkit.systems.automaton.automaton import (
    CENTRE,
    Boundary,
    LogicCA,
    check_grid,
    check_rollout,
)

Ints = NDArray[np.int64]
Bits = NDArray[np.bool_]

PATCH = 9
"""Cells of a neighbourhood, row by row."""

FALSE, TRUE = -1, -2
"""Wire of a constant output: constant v is ~v."""

FORMAT = "astkit.systems.automaton.circuit 2"

Gate = tuple[int, int, int]
"""Op and its two nodes, when pruning: 0 is the constant FALSE, then the inputs, then the gates.

A literal is 2 * node + negated, as in AIGER (Biere, 2007)."""

_A, _B, _NOT_A = 3, 5, 12

# for each op of a pruned circuit its operations and where they read: inputs a and b, or the output
_OPERATIONS: dict[int, tuple[tuple[np.ufunc, str], ...]] = {
    1: ((np.bitwise_and, "ab"),),
    2: ((np.invert, "b"), (np.bitwise_and, "oa")),
    4: ((np.invert, "a"), (np.bitwise_and, "ob")),
    6: ((np.bitwise_xor, "ab"),),
    7: ((np.bitwise_or, "ab"),),
    12: ((np.invert, "a"),),
}


@dataclass(frozen=True, eq=False)
class Circuit:
    """One cell's update: from the neighbourhoods of all channels to the cell's new channels.

    Wires are numbered: first the 9 * ``channels`` inputs, wire ``9 * c + f`` being channel c of
    the neighbour at patch position f (dy = f // 3 - 1, dx = f % 3 - 1); then the gates in order.
    The arrays are copied to int64 and read-only.

    Args:
        channels: number of channels C of a cell's state.
        ops: [G], each 0 to 15.
        a, b: [G], input wires of each gate, with smaller numbers than its own.
        outputs: [C], the wire of each new channel, or `FALSE` or `TRUE`.
        boundary: "periodic", or "zero" for zero padding.
        fire_rate: share of cells updated per step, in (0, 1]; 1 is synchronous.

    Raises ``ValueError`` for an invalid circuit.
    """

    channels: int
    ops: Ints
    a: Ints
    b: Ints
    outputs: Ints
    boundary: Boundary = "periodic"
    fire_rate: float = 1.0

    def __post_init__(self) -> None:
        check_grid(self.boundary, self.fire_rate)
        if type(self.channels) is not int or self.channels < 1:
            raise ValueError(f"channels is {self.channels!r}: give a whole number of 1 or more")
        for name in ("ops", "a", "b", "outputs"):
            object.__setattr__(self, name, _integers(name, getattr(self, name)))
        lengths = [len(each) for each in (self.ops, self.a, self.b, self.outputs)]
        if lengths != [self.gates, self.gates, self.gates, self.channels]:
            raise ValueError(
                "ops, a, b and outputs have {}, {}, {} and {} entries:".format(*lengths)
                + f" give one per gate, and one of {self.channels} channels per output"
            )
        own = self.inputs + np.arange(self.gates)
        limits = {"ops": (0, np.full(self.gates, 16)), "a": (0, own), "b": (0, own)}
        limits["outputs"] = (TRUE, np.full(self.channels, self.inputs + self.gates))
        for name, (low, end) in limits.items():
            values = getattr(self, name)
            for at in np.flatnonzero((values < low) | (values >= end))[:1]:
                raise ValueError(f"{name}[{at}] is {values[at]}: give {low} to {end[at] - 1}")

    @property
    def inputs(self) -> int:
        """Number of input wires, 9 per channel."""
        return PATCH * self.channels

    @property
    def gates(self) -> int:
        """Number of gates."""
        return len(self.ops)

    def by_op(self) -> Ints:
        """Number of gates of each op: [16]."""
        return np.bincount(self.ops, minlength=16)

    def to_json(self) -> str:
        """The circuit as one JSON object."""
        return json.dumps({"format": FORMAT, **vars(self)}, default=np.ndarray.tolist)

    @classmethod
    def from_json(cls, text: str | bytes) -> Circuit:
        """The circuit that `to_json` wrote; ``ValueError`` for anything else."""
        try:
            content = json.loads(text)
            if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
                raise ValueError(f"give a JSON object with the format {FORMAT!r}")
            return cls(**content)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"this is not a circuit written by to_json: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_json` to ``path``, atomically; returns the path."""
        return files.write_atomic(path, self.to_json() + "\n")


def from_automaton(model: LogicCA) -> Circuit:
    """The circuit of the hard ``model``, gate by gate, not pruned.

    It has ``model.config.gates_per_cell`` gates: perception channel by channel, then the update
    network, layer by layer.
    """
    config, layers = model.config, list[tuple[Ints, Ints, Ints]]()

    def layer(a: Ints, b: Ints, logits: Tensor) -> Ints:
        """Add a gate for each element of ``a``; returns its wires, in the shape of ``a``."""
        first = PATCH * config.channels + sum(ops.size for ops, _, _ in layers)
        layers.append((logits.detach().argmax(-1).cpu().numpy().ravel(), a.ravel(), b.ravel()))
        return first + np.arange(a.size).reshape(a.shape)

    seen = []
    for channel in range(config.channels):
        wires = np.repeat(PATCH * channel + np.arange(PATCH)[:, None], config.kernels, axis=1)
        for table, logits in zip(model.kernel_wires, model.kernel_logits, strict=True):
            a, b = table.cpu().numpy()
            wires = layer(wires[a], wires[b], logits)  # [gates, kernels]
        seen.append(wires.reshape(-1))
    below = np.concatenate([PATCH * np.arange(config.channels) + CENTRE, *seen])
    for table, logits in zip(model.update_wires, model.update_logits, strict=True):
        a, b = table.cpu().numpy()
        below = layer(below[a], below[b], logits)
    ops, a, b = (np.concatenate(parts) for parts in zip(*layers, strict=True))
    return Circuit(config.channels, ops, a, b, below, config.boundary, config.fire_rate)


def prune(circuit: Circuit) -> Circuit:
    """An equivalent circuit without redundant gates.

    In one pass, in order: a gate of a constant or of one wire twice becomes a constant, a wire or
    its negation; negations are merged into the truth tables of the gates that read them; a gate
    that equals one computed earlier, or its negation, becomes that gate. Then gates that no output
    needs are removed. The remaining gates depend on both inputs and give 0 where these are 0,
    except a NOT (op 12, both inputs the same wire) for each negated output.
    """
    known: dict[Gate, int] = {}  # the node of each gate
    literals = [2 * node for node in range(1, circuit.inputs + 1)]
    for op, a, b in zip(circuit.ops.tolist(), circuit.a.tolist(), circuit.b.tolist(), strict=True):
        literals.append(_literal(op, literals[a], literals[b], known, circuit.inputs + 1))
    ends = [~wire if wire < 0 else literals[wire] for wire in circuit.outputs.tolist()]
    needed = {end >> 1 for end in ends}
    for (_, p, q), node in reversed(known.items()):
        needed |= {p, q} if node in needed else set()
    wires = {node: node - 1 for node in range(1, circuit.inputs + 1)}
    gates: list[Gate] = []
    for (op, p, q), node in known.items():
        if node in needed:
            wires[node] = circuit.inputs + len(gates)
            gates.append((op, wires[p], wires[q]))
    outputs = {0: FALSE, 1: TRUE}
    for end in ends:
        if end not in outputs:
            outputs[end] = wires[end >> 1]
            if end & 1:
                outputs[end] = circuit.inputs + len(gates)
                gates.append((_NOT_A, wires[end >> 1], wires[end >> 1]))
    ops, a, b = np.array(gates, np.int64).reshape(-1, 3).T
    return replace(circuit, ops=ops, a=a, b=b, outputs=np.array([outputs[end] for end in ends]))


def compose(op: int, of_a: int, of_b: int) -> int:
    """The op that computes ``op`` of two ops of the same inputs: ``op(of_a(p, q), of_b(p, q))``."""
    return sum((op >> 3 - 2 * (of_a >> i & 1) - (of_b >> i & 1) & 1) << i for i in range(4))


def _literal(op: int, x: int, y: int, known: dict[Gate, int], first: int) -> int:
    """The literal that equals a gate of the literals ``x`` and ``y``.

    A new node is numbered from ``first`` on, and normalised to give 0 where both inputs are 0.
    """
    op, p, q = compose(op, _A ^ 15 * (x & 1), _B ^ 15 * (y & 1)), x >> 1, y >> 1
    f00, f01, f10, f11 = (op >> shift & 1 for shift in (3, 2, 1, 0))
    if p == q:
        return _unary(p, f00, f11)
    if p == 0 or (f00, f01) == (f10, f11):
        return _unary(q, f00, f01)
    if q == 0 or (f00, f10) == (f01, f11):
        return _unary(p, f00, f10)
    op = 15 - op if f00 else op
    gate = (op, p, q) if p < q else (compose(op, _B, _A), q, p)
    return 2 * known.setdefault(gate, first + len(known)) + f00


def _unary(node: int, at_0: int, at_1: int) -> int:
    return at_0 if at_0 == at_1 else 2 * node + at_0


class PackedCircuit:
    """Runs ``circuit``, pruned, on grids of bits, 64 cells per word; equal to the hard rollout."""

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = prune(circuit)

    def trajectory(
        self, x: Tensor, steps: int, masks: Tensor | None = None, *, alive: Tensor | None = None
    ) -> Tensor:
        """All states from ``x`` on: bool [steps + 1, B, C, H, W] on the CPU.

        Args:
            x: initial state, [B, C, H, W], values 0 or 1.
            steps: number of steps.
            masks: [steps, B, 1, H, W], values 0 or 1: a cell is updated in step t if
                ``masks[t]`` is 1. Required if the circuit's fire rate is below 1.
            alive: [steps, 1 or B, 1, H, W], values 0 or 1: all channels of a cell become 0 after
                step t if ``alive[t]`` is 0.

        Raises ``ValueError`` for another shape, a value other than 0 and 1, or missing masks.
        """
        check_rollout(x, self.circuit.channels, steps, masks, self.circuit.fire_rate)
        if alive is None:
            alive = torch.ones(steps, 1, 1, *x.shape[2:])
        shapes = [[steps, rows, 1, *x.shape[2:]] for rows in (1, len(x))]
        if list(alive.shape) not in shapes:
            raise ValueError(
                f"alive has shape {list(alive.shape)}: give {shapes[0]} for all samples, or"
                f" {shapes[1]}"
            )
        states, living = [_bits("x", x)], _bits("alive", alive)
        fires = [True] * steps if masks is None else _bits("masks", masks)
        step = self._stepper(states[0].shape)
        for fire, kept in zip(fires, living, strict=True):
            states.append(np.where(fire, step(states[-1]), states[-1]) & kept)
        return torch.from_numpy(np.stack(states))

    def rollout(
        self, x: Tensor, steps: int, masks: Tensor | None = None, *, alive: Tensor | None = None
    ) -> Tensor:
        """The state after ``steps`` steps: bool [B, C, H, W]. See `trajectory`."""
        return self.trajectory(x, steps, masks, alive=alive)[-1]

    def _stepper(self, shape: tuple[int, ...]) -> Callable[[Bits], Bits]:
        """A function from state to state, [B, C, H, W], with preallocated words of each wire."""
        circuit = self.circuit
        batch, channels, height, width = shape
        cells = batch * height * width
        wires = np.zeros((circuit.inputs + circuit.gates + 2, -(-cells // 64)), np.uint64)
        wires[-2] = ~np.uint64(0)  # the last two are TRUE and FALSE, wires -2 and -1
        calls: list[tuple[np.ufunc, tuple[Any, ...]]] = []
        for gate, op in enumerate(circuit.ops.tolist()):
            out = wires[circuit.inputs + gate]
            words = {"a": wires[circuit.a[gate]], "b": wires[circuit.b[gate]], "o": out}
            for function, read in _OPERATIONS[op]:
                calls.append((function, (*(words[name] for name in read), out)))
        mode: Any = "wrap" if circuit.boundary == "periodic" else "constant"

        def step(state: Bits) -> Bits:
            wide = np.pad(state, [(0, 0), (0, 0), (1, 1), (1, 1)], mode)
            near = [wide[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            rows = np.stack(near).transpose(2, 0, 1, 3, 4).reshape(PATCH * channels, cells)
            octets = np.packbits(rows, axis=-1, bitorder="little")
            wires.view(np.uint8)[: circuit.inputs, : octets.shape[1]] = octets
            for function, arguments in calls:
                function(*arguments)
            new = wires[circuit.outputs].view(np.uint8)
            bits = np.unpackbits(new, axis=-1, count=cells, bitorder="little").view(bool)
            return np.ascontiguousarray(bits.reshape(channels, batch, height, width).swapaxes(0, 1))

        return step


def _bits(name: str, values: Tensor) -> Bits:
    array = values.detach().cpu().numpy()
    bits: Bits = array.astype(bool)
    if not np.array_equal(array, bits):
        raise ValueError(f"{name} contains values other than 0 and 1: round them first")
    return bits


def _integers(name: str, values: Any) -> Ints:
    # an empty list would become an array of floats
    array = np.array(values, None if np.size(values) else np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}: give whole numbers in one dimension"
        )
    array = array.astype(np.int64)
    array.setflags(write=False)
    return array
