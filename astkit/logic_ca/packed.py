"""A circuit run on 64 cells at once: a bit is a cell, a gate one or two operations on words.

Row y of all samples stands side by side in one string of bits, filled up to whole words. So a
neighbour above or below is the same word some words away, and costs nothing; a neighbour to the
left or right is the string moved by one bit, whatever the width, and the cells at the edge of a
sample are put right by a mask. Bits that fill up a row are never read by a cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astkit.logic_ca.circuit import FALSE, PATCH, Bits, Circuit
from astkit.logic_ca.pruning import prune

Words = NDArray[np.uint64]
Call = tuple[Callable[..., Any], tuple[Any, ...]]

_WORD = np.dtype("<u8")  # packbits in little order puts cell 0 at the lowest bit of the first byte
_BITS = 64
_AND, _OR, _XOR, _NOT = np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert


class PackedCircuit:
    """Runs a circuit, pruned, on grids of bits; equal to the hard rollout in every cell.

    ``circuit`` is the pruned circuit that is run. Not for several threads at once: the buffers
    for one shape of grid are kept from call to call.
    """

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = prune(circuit)
        self._machine: _Machine | None = None

    def rollout(
        self, x: Tensor, steps: int, masks: Tensor | None = None, *, alive: Tensor | None = None
    ) -> Tensor:
        """The state after ``steps`` steps: bool [B, C, H, W] on the CPU.

        Args:
            x: the state at first, [B, C, H, W], each value 0 or 1.
            steps: number of steps, 0 or more.
            masks: [steps, B, 1, H, W], each value 0 or 1: a cell takes its new state in step t
                only where ``masks[t]`` is 1. Needed where the circuit's fire rate is below 1.
            alive: [steps, 1 or B, 1, H, W], each value 0 or 1: all channels of a cell are 0 after
                step t where ``alive[t]`` is 0.

        Raises ``ValueError`` for another shape, a value that is no bit, a negative ``steps``, or
        masks that are missing.
        """
        return self._run(x, steps, masks, alive, every=False)[0]

    def trajectory(
        self, x: Tensor, steps: int, masks: Tensor | None = None, *, alive: Tensor | None = None
    ) -> Tensor:
        """All states from ``x`` on: bool [steps + 1, B, C, H, W]. See `rollout`."""
        return torch.stack(self._run(x, steps, masks, alive, every=True))

    def _run(
        self, x: Tensor, steps: int, masks: Tensor | None, alive: Tensor | None, every: bool
    ) -> list[Tensor]:
        if steps < 0:
            raise ValueError(f"steps is {steps}: give 0 or more")
        if x.ndim != 4 or x.shape[1] != self.circuit.channels or 0 in x.shape:
            raise ValueError(
                f"x has shape {list(x.shape)}: give [batch, {self.circuit.channels}, height,"
                " width], none of them 0"
            )
        batch, _, height, width = x.shape
        if masks is None and self.circuit.fire_rate < 1:
            raise ValueError(
                f"masks is None, but the fire rate is {self.circuit.fire_rate}: draw them with"
                " astkit.logic_ca.masks.fire_masks"
            )
        if self._machine is None or self._machine.shape != (batch, height, width):
            self._machine = _Machine(self.circuit, batch, height, width)
        machine = self._machine
        packed = None if masks is None else _pack_masks("masks", masks, steps, x)
        if alive is not None:
            if alive.ndim == 5 and alive.shape[1] == 1:
                alive = alive.expand(-1, batch, -1, -1, -1)
            living = _pack_masks("alive", alive, steps, x)
        machine.state[:] = _pack(_bits("x", x))
        states = [machine.read()] if every else []
        for step in range(steps):
            machine.step(None if packed is None else packed[step])
            if alive is not None:
                machine.state &= living[step]
            if every:
                states.append(machine.read())
        return states if every else [machine.read()]


class _Machine:
    """The buffers for one shape of grid, and a step as a list of calls on them."""

    def __init__(self, circuit: Circuit, batch: int, height: int, width: int) -> None:
        self.shape = (batch, height, width)
        words = -(-batch * width // _BITS)
        # left, own and right neighbour; rows 0 and height + 1 lie beyond the grid
        self._views = np.zeros((3, circuit.channels, height + 2, words), _WORD)
        self.state: Words = self._views[1, :, 1:-1]  # [C, H, words]
        self._new: Words = np.zeros_like(self.state)
        self._changed: Words = np.zeros_like(self.state)
        patches = [self._views[f % 3, :, f // 3 : f // 3 + height] for f in range(PATCH)]
        inputs = [patch[c].reshape(-1) for c in range(circuit.channels) for patch in patches]
        self._calls = self._look_around(circuit.boundary) + _gate_calls(
            circuit, inputs, self._new.reshape(circuit.channels, -1)
        )

    def step(self, fired: Words | None) -> None:
        """One step, of the cells alone whose bit is set in ``fired`` [H, words] where given."""
        for function, arguments in self._calls:
            function(*arguments)
        if fired is None:
            self.state[:] = self._new
        else:
            _XOR(self._new, self.state, self._changed)
            self._changed &= fired
            self.state ^= self._changed

    def read(self) -> Tensor:
        """The state, unpacked: bool [B, C, H, W]."""
        batch, height, width = self.shape
        octets = np.ascontiguousarray(self.state).view(np.uint8)
        cells = np.unpackbits(octets, axis=-1, count=batch * width, bitorder="little")
        cells = cells.reshape(-1, height, batch, width).transpose(2, 0, 1, 3)
        return torch.from_numpy(np.ascontiguousarray(cells)).bool()

    def _look_around(self, boundary: str) -> list[Call]:
        """Calls that fill the rows beyond the grid, then the left and the right neighbours."""
        left, own, right = self._views
        calls: list[Call] = []
        if boundary == "periodic":
            calls += [(np.copyto, (own[:, 0], own[:, -2])), (np.copyto, (own[:, -1], own[:, 1]))]
        batch, _, width = self.shape
        column = np.tile(np.arange(width), batch)
        spare = np.zeros(own.size, _WORD)
        for side, by, edge in ((left, -1, 0), (right, 1, width - 1)):
            row = _pack((column == edge)[None, None, None])[0, 0]
            at_edge = np.tile(row, own.size // len(row))
            flat = side.reshape(-1)
            calls += _moved(own.reshape(-1), by, flat, spare)
            calls += [(_AND, (flat, ~at_edge, flat))]
            if boundary == "periodic":
                wrapped = np.zeros_like(spare)
                calls += _moved(own.reshape(-1), -by * (width - 1), wrapped, spare)
                calls += [(_AND, (wrapped, at_edge, wrapped)), (_OR, (flat, wrapped, flat))]
        return calls


def _moved(source: Words, by: int, out: Words, spare: Words) -> list[Call]:
    """Calls after which bit p of ``out`` is bit p + by of ``source``, where there is one."""
    skip, bits = divmod(abs(by), _BITS)
    near, far = (np.right_shift, np.left_shift) if by > 0 else (np.left_shift, np.right_shift)
    if by < 0:  # the same from the other end
        source, out, spare = source[::-1], out[::-1], spare[::-1]
    kept = len(source) - skip
    calls: list[Call] = [(near, (source[skip:], np.uint64(bits), out[:kept]))]
    if bits:  # else the shift below would be by a whole word, which processors do not define
        carry, end = spare[: kept - 1], out[: kept - 1]
        calls += [(far, (source[skip + 1 :], np.uint64(_BITS - bits), carry))]
        calls += [(_OR, (end, carry, end))]
    return calls


def _gate_calls(circuit: Circuit, inputs: list[Words], new: Words) -> list[Call]:
    """Calls that compute the outputs into ``new`` [C, words], each of ``inputs`` being [words].

    A buffer is free again after its wire's last use, so that few of them are in use at once and
    stay in the cache. ``circuit`` must be pruned.
    """
    a, b, ends = circuit.a.tolist(), circuit.b.tolist(), circuit.outputs.tolist()
    last = {wire: gate for gate, pair in enumerate(zip(a, b, strict=True)) for wire in pair}
    last.update(dict.fromkeys(ends, circuit.gates))
    wires, free, calls = dict(enumerate(inputs)), list[Words](), list[Call]()
    for gate, op in enumerate(circuit.ops.tolist()):
        # taken before the inputs' buffers are given back: a gate of two calls writes in between
        out = free.pop() if free else np.empty_like(inputs[0])
        wires[circuit.inputs + gate] = out
        calls += _gate(op, wires[a[gate]], wires[b[gate]], out)
        free += [
            wires[wire]
            for wire in {a[gate], b[gate]}
            if wire >= circuit.inputs and last[wire] == gate
        ]
    for row, wire in zip(new, ends, strict=True):
        if wire < 0:
            row[:] = np.uint64(0) if wire == FALSE else ~np.uint64(0)  # nothing else writes there
        else:
            calls.append((np.copyto, (row, wires[wire])))
    return calls


def _gate(op: int, a: Words, b: Words, out: Words) -> list[Call]:
    """One or two calls for an op that needs both of its inputs, or NOT."""
    if op in _DIRECT:
        return [(_DIRECT[op], (a, b, out))]
    if op == 12:
        return [(_NOT, (a, out))]
    if 15 - op in _DIRECT:
        return [(_DIRECT[15 - op], (a, b, out)), (_NOT, (out, out))]
    function, turn_a = _ONE_TURNED[op]
    turned, other = (a, b) if turn_a else (b, a)
    return [(_NOT, (turned, out)), (function, (out, other, out))]


_DIRECT = {1: _AND, 6: _XOR, 7: _OR}
_ONE_TURNED = {2: (_AND, False), 4: (_AND, True), 11: (_OR, False), 13: (_OR, True)}


def _bits(name: str, values: Tensor) -> Bits:
    array = values.detach().cpu().numpy()
    bits: Bits = array.astype(bool)
    if not np.array_equal(array, bits):
        raise ValueError(f"{name} holds values other than 0 and 1: round them first")
    return bits


def _pack(cells: Bits) -> Words:
    """[B, C, H, W] to words [C, H, words]; the bits that fill up a row are 0."""
    rows = cells.transpose(1, 2, 0, 3).reshape(*cells.shape[1:3], -1)
    octets = np.packbits(rows, axis=-1, bitorder="little")
    filled = np.zeros((*rows.shape[:2], -(-rows.shape[-1] // _BITS) * (_BITS // 8)), np.uint8)
    filled[..., : octets.shape[-1]] = octets
    return filled.view(_WORD)


def _pack_masks(name: str, masks: Tensor, steps: int, x: Tensor) -> Words:
    """[T, B, 1, H, W] to words [steps, H, words]."""
    batch, _, height, width = x.shape
    if masks.ndim != 5 or masks.shape[1:] != (batch, 1, height, width) or len(masks) != steps:
        raise ValueError(
            f"{name} has shape {list(masks.shape)}: give [{steps}, {batch}, 1, {height}, {width}],"
            " a mask for every step"
        )
    return _pack(_bits(name, masks[:steps, :, 0].transpose(0, 1)))
