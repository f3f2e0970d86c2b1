"""Circuit of two-input gates that updates one cell: the function of a hard automaton.

A gate's op is its truth table for (a, b) = 00, 01, 10, 11 read as a 4-bit number, 0 to 15. A
circuit comes from an automaton, and runs on grids of bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from astkit.systems.automaton.automaton import CENTRE, Boundary, LogicCA, check_rollout

Ints = NDArray[np.int64]
Bits = NDArray[np.bool_]
Words = NDArray[np.uint64]

PATCH = 9
"""Cells of a neighbourhood, row by row."""

A, B = 3, 5
"""Ops that pass one input on."""

_OPERATIONS: tuple[Callable[[Words, Words], Words], ...] = (
    lambda a, b: a ^ a,
    lambda a, b: a & b,
    lambda a, b: a & ~b,
    lambda a, b: a,
    lambda a, b: b & ~a,
    lambda a, b: b,
    lambda a, b: a ^ b,
    lambda a, b: a | b,
)
"""Ops 0 to 7; op n from 8 on is the negation of op 15 - n."""


@dataclass(frozen=True, eq=False)
class Circuit:
    """One cell's update: from the neighbourhoods of all channels to the cell's new channels.

    Wires are numbered: first the 9 * ``channels`` inputs, wire ``9 * c + f`` being channel c of
    the neighbour at patch position f (dy = f // 3 - 1, dx = f % 3 - 1); then the gates in order.

    Args:
        channels: number of channels C of a cell's state.
        ops: [G], each 0 to 15.
        a, b: [G], input wires of each gate, with smaller numbers than its own.
        outputs: [C], the wire of each new channel.
        boundary: "periodic", or "zero" for zero padding.
        fire_rate: share of cells updated per step, in (0, 1]; 1 is synchronous.
    """

    channels: int
    ops: Ints
    a: Ints
    b: Ints
    outputs: Ints
    boundary: Boundary = "periodic"
    fire_rate: float = 1.0

    @property
    def inputs(self) -> int:
        """Number of input wires, 9 per channel."""
        return PATCH * self.channels

    @property
    def gates(self) -> int:
        """Number of gates."""
        return len(self.ops)


def from_automaton(model: LogicCA) -> Circuit:
    """The circuit of the hard ``model``, gate by gate.

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


class PackedCircuit:
    """Runs ``circuit`` on grids of bits, 64 cells per word; equal to the hard rollout.

    Only gates that reach an output are computed, and those that pass an input on are its wire.
    """

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = circuit
        self._gates, self._outputs = _needed(circuit)

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
        shapes = [[steps, rows, 1, *x.shape[2:]] for rows in (1, len(x))]
        if alive is not None and list(alive.shape) not in shapes:
            raise ValueError(
                f"alive has shape {list(alive.shape)}: give {shapes[0]} for all samples, or"
                f" {shapes[1]}"
            )
        states = [_bits("x", x)]
        living = [True] * steps if alive is None else _bits("alive", alive)
        fires = [True] * steps if masks is None else _bits("masks", masks)
        for fire, kept in zip(fires, living, strict=True):
            states.append(np.where(fire, self._step(states[-1]), states[-1]) & kept)
        return torch.from_numpy(np.stack(states))

    def rollout(
        self, x: Tensor, steps: int, masks: Tensor | None = None, *, alive: Tensor | None = None
    ) -> Tensor:
        """The state after ``steps`` steps: bool [B, C, H, W]. See `trajectory`."""
        return self.trajectory(x, steps, masks, alive=alive)[-1]

    def _step(self, state: Bits) -> Bits:
        """The state after ``state``, [B, C, H, W]; a word of a wire holds it in 64 cells."""
        batch, channels, height, width = state.shape
        mode: Any = "wrap" if self.circuit.boundary == "periodic" else "constant"
        wide = np.pad(state, [(0, 0), (0, 0), (1, 1), (1, 1)], mode)
        near = sliding_window_view(wide, (3, 3), (2, 3)).transpose(1, 4, 5, 0, 2, 3)
        cells = near.reshape(PATCH * channels, -1)
        full = np.pad(cells, [(0, 0), (0, -cells.shape[1] % 64)])
        octets = np.packbits(full, axis=-1, bitorder="little")
        wires = dict(enumerate(np.ascontiguousarray(octets).view(np.uint64)))
        for op, a, b, out in self._gates:
            found = _OPERATIONS[min(op, 15 - op)](wires[a], wires[b])
            wires[out] = found if op < 8 else ~found
        new = np.stack([wires[wire] for wire in self._outputs]).view(np.uint8)
        bits = np.unpackbits(new, axis=-1, count=cells.shape[1], bitorder="little").view(bool)
        return bits.reshape(channels, batch, height, width).swapaxes(0, 1)


def _needed(circuit: Circuit) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Op, inputs and wire of each gate that is computed, in order; the wires of the outputs."""
    source = list(range(circuit.inputs + circuit.gates))  # the wire that has the same bits
    gates = []
    for number, op in enumerate(circuit.ops.tolist()):
        a, b = source[circuit.a[number]], source[circuit.b[number]]
        if op in (A, B):
            source[circuit.inputs + number] = a if op == A else b
        else:
            gates.append((op, a, b, circuit.inputs + number))
    outputs = [source[wire] for wire in circuit.outputs.tolist()]
    read, kept = set(outputs), []
    for gate in reversed(gates):
        if gate[3] in read:
            read |= {gate[1], gate[2]}
            kept.append(gate)
    return kept[::-1], outputs


def _bits(name: str, values: Tensor) -> Bits:
    array = values.detach().cpu().numpy()
    bits: Bits = array.astype(bool)
    if not np.array_equal(array, bits):
        raise ValueError(f"{name} contains values other than 0 and 1: round them first")
    return bits
