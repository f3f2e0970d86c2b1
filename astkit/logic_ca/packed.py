"""Bit-packed execution of a circuit: 64 cells per word, one or two bitwise operations per gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astkit.logic_ca.circuit import FALSE, PATCH, Bits, Circuit
from astkit.logic_ca.config import check_masks
from astkit.logic_ca.pruning import prune

Words = NDArray[np.uint64]

Call = tuple[Callable[..., Any], tuple[Any, ...]]

_AND, _OR, _XOR, _NOT = np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert


class PackedCircuit:
    """Runs a pruned circuit on grids of bits; identical to the hard rollout.

    ``circuit`` is the pruned circuit.
    """

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = prune(circuit)

    def rollout(
        self, x: Tensor, steps: int, masks: Tensor | None = None, *, alive: Tensor | None = None
    ) -> Tensor:
        """The state after ``steps`` steps: bool [B, C, H, W] on the CPU.

        Args:
            x: initial state, [B, C, H, W], values 0 or 1.
            steps: number of steps, 0 or more.
            masks: [steps, B, 1, H, W], values 0 or 1: a cell is updated in step t if
                ``masks[t]`` is 1. Required if the circuit's fire rate is below 1.
            alive: [steps, 1 or B, 1, H, W], values 0 or 1: all channels of a cell become 0 after
                step t if ``alive[t]`` is 0.

        Raises ``ValueError`` for another shape, a value other than 0 and 1, negative ``steps``, or
        missing masks.
        """
        *_, last = self._states(x, steps, masks, alive)
        return torch.from_numpy(last)

    def trajectory(
        self, x: Tensor, steps: int, masks: Tensor | None = None, *, alive: Tensor | None = None
    ) -> Tensor:
        """All states from ``x`` on: bool [steps + 1, B, C, H, W]. See `rollout`."""
        return torch.from_numpy(np.stack(list(self._states(x, steps, masks, alive))))

    def _states(
        self, x: Tensor, steps: int, masks: Tensor | None, alive: Tensor | None
    ) -> Iterator[Bits]:
        if steps < 0:
            raise ValueError(f"steps is {steps}: give 0 or more")
        if x.ndim != 4 or x.shape[1] != self.circuit.channels or 0 in x.shape:
            raise ValueError(
                f"x has shape {list(x.shape)}: give [batch, {self.circuit.channels}, height,"
                " width], none of them 0"
            )
        batch, _, height, width = x.shape
        check_masks(masks, self.circuit.fire_rate, [steps, batch, 1, height, width])
        fires = None if masks is None else _bits("masks", masks)
        if alive is not None:
            if alive.shape not in [(steps, rows, 1, height, width) for rows in (1, batch)]:
                raise ValueError(
                    f"alive has shape {list(alive.shape)}: give"
                    f" {[steps, batch, 1, height, width]}, with 1 or {batch} as the second"
                )
            living = _bits("alive", alive)
        state = _bits("x", x)
        yield state
        step = self._stepper(state.shape)
        for t in range(steps):
            new = step(state)
            state = new if fires is None else np.where(fires[t], new, state)
            if alive is not None:
                state = state & living[t]
            yield state

    def _stepper(self, shape: tuple[int, ...]) -> Callable[[Bits], Bits]:
        """A function from state to state, [B, C, H, W], with preallocated buffers."""
        batch, channels, height, width = shape
        cells = batch * height * width
        inputs = _pack(np.zeros((PATCH * channels, cells), bool))
        new = np.zeros_like(inputs[:channels])
        calls = _gate_calls(self.circuit, list(inputs), new)
        mode: Any = "wrap" if self.circuit.boundary == "periodic" else "constant"

        def step(state: Bits) -> Bits:
            wide = np.pad(state, [(0, 0), (0, 0), (1, 1), (1, 1)], mode)
            near = [wide[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            inputs[:] = _pack(np.stack(near).transpose(2, 0, 1, 3, 4).reshape(-1, cells))
            for function, arguments in calls:
                function(*arguments)
            bits = np.unpackbits(new.view(np.uint8), axis=-1, count=cells, bitorder="little")
            grids = bits.view(bool).reshape(channels, batch, height, width)
            return np.ascontiguousarray(grids.swapaxes(0, 1))

        return step


def _gate_calls(circuit: Circuit, inputs: list[Words], new: Words) -> list[Call]:
    """Calls that compute the outputs into ``new`` [C, words], each of ``inputs`` being [words].

    A buffer is reused after its wire's last use, so that the buffers fit into the cache.
    ``circuit`` must be pruned.
    """
    a, b, ends = circuit.a.tolist(), circuit.b.tolist(), circuit.outputs.tolist()
    last = {wire: gate for gate, pair in enumerate(zip(a, b, strict=True)) for wire in pair}
    last.update(dict.fromkeys(ends, circuit.gates))
    wires, free, calls = dict(enumerate(inputs)), list[Words](), list[Call]()
    for gate, op in enumerate(circuit.ops.tolist()):
        # before the inputs' buffers are freed: a gate of two calls writes in between
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
            row[:] = np.uint64(0) if wire == FALSE else ~np.uint64(0)  # not written elsewhere
        else:
            calls.append((np.copyto, (row, wires[wire])))
    return calls


def _gate(op: int, a: Words, b: Words, out: Words) -> list[Call]:
    """One or two calls for an op of a pruned circuit."""
    if op in _DIRECT:
        return [(_DIRECT[op], (a, b, out))]
    if op == 12:
        return [(_NOT, (a, out))]
    if 15 - op in _DIRECT:
        return [(_DIRECT[15 - op], (a, b, out)), (_NOT, (out, out))]
    function, of_a = _ONE_NEGATED[op]
    negated, other = (a, b) if of_a else (b, a)
    return [(_NOT, (negated, out)), (function, (out, other, out))]


_DIRECT = {1: _AND, 6: _XOR, 7: _OR}
_ONE_NEGATED = {2: (_AND, False), 4: (_AND, True), 11: (_OR, False), 13: (_OR, True)}


def _pack(rows: Bits) -> Words:
    """[n, cells] to words [n, cells / 64], padded with zeros."""
    octets = np.packbits(rows, axis=-1, bitorder="little")
    return np.pad(octets, [(0, 0), (0, -octets.shape[1] % 8)]).view(np.uint64)


def _bits(name: str, values: Tensor) -> Bits:
    array = values.detach().cpu().numpy()
    bits: Bits = array.astype(bool)
    if not np.array_equal(array, bits):
        raise ValueError(f"{name} contains values other than 0 and 1: round them first")
    return bits
