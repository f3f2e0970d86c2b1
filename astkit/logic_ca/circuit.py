"""The rule of one cell as a circuit of two-input gates: what a hard automaton computes.

A gate's op is its truth table for (a, b) = 00, 01, 10, 11 read as a 4-bit number, 0 to 15.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from astkit import files
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.config import BOUNDARIES, Boundary
from astkit.logic_ca.wiring import CENTRE

Ints = NDArray[np.int64]
Bits = NDArray[np.bool_]

PATCH = 9
"""Cells of a neighbourhood, row by row."""

FALSE, TRUE = -1, -2
"""What an output holds that no wire drives: the constant v is written ~v."""

PASSIVE = (0, 3, 5, 15)
"""Ops that only pass a constant or one of their inputs on: FALSE, A, B, TRUE."""

TABLES: Bits = (np.arange(16)[:, None] >> np.array([3, 2, 1, 0])) % 2 == 1
"""Truth tables: ``TABLES[op, 2 * a + b]``."""

FORMAT, VERSION = "astkit.logic_ca.circuit", 1
_ARRAYS = ("ops", "a", "b", "outputs")
_KEYS = ("format", "version", "channels", "boundary", "fire_rate", *_ARRAYS, "meta")


@dataclass(frozen=True, eq=False)
class Circuit:
    """One cell's update: from the neighbourhoods of all channels to the cell's new channels.

    Wires are numbered: first the 9 * ``channels`` inputs, wire ``9 * c + f`` being channel c of
    the neighbour at patch position f (dy = f // 3 - 1, dx = f % 3 - 1); then the gates in order.
    The arrays are made int64 and read-only.

    Args:
        channels: C, of a cell's state.
        ops: [G], each 0 to 15.
        a, b: [G], the wires that a gate reads, all before its own.
        outputs: [C], the wire of each new channel, or `FALSE` or `TRUE`.
        boundary: what lies beyond the grid: "periodic" or "zero".
        fire_rate: share of the cells that change in a step, in (0, 1]; 1 is synchronous.
        meta: how it was made; strings, numbers, booleans, lists and mappings of them.

    Raises ``ValueError`` for what is no such circuit.
    """

    channels: int
    ops: Ints
    a: Ints
    b: Ints
    outputs: Ints
    boundary: Boundary = "periodic"
    fire_rate: float = 1.0
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.boundary not in BOUNDARIES:
            raise ValueError(
                f"boundary is {self.boundary!r}: choose one of {', '.join(BOUNDARIES)}"
            )
        if not 0 < self.fire_rate <= 1:
            raise ValueError(f"fire_rate is {self.fire_rate}: give a share in (0, 1]")
        if self.channels < 1:
            raise ValueError(f"channels is {self.channels}: a cell has at least 1")
        for name in _ARRAYS:
            object.__setattr__(self, name, _integers(name, getattr(self, name)))
        if not len(self.ops) == len(self.a) == len(self.b):
            lengths = f"{len(self.ops)}, {len(self.a)} and {len(self.b)}"
            raise ValueError(f"ops, a and b have {lengths} entries: give each one for every gate")
        if len(self.outputs) != self.channels:
            raise ValueError(
                f"outputs has {len(self.outputs)} entries: give one for each of"
                f" {self.channels} channels"
            )
        own = self.inputs + np.arange(self.gates)
        _within("ops", self.ops, 0, np.full(self.gates, 16))
        _within("a", self.a, 0, own)
        _within("b", self.b, 0, own)
        _within("outputs", self.outputs, TRUE, np.full(self.channels, self.inputs + self.gates))

    @property
    def inputs(self) -> int:
        """Number of input wires, 9 a channel."""
        return PATCH * self.channels

    @property
    def gates(self) -> int:
        """Number of gates."""
        return len(self.ops)

    @property
    def active(self) -> int:
        """Number of gates that compute something: not FALSE, A, B or TRUE."""
        return int((~np.isin(self.ops, PASSIVE)).sum())

    def by_op(self) -> Ints:
        """Number of gates of each op: [16]."""
        return np.bincount(self.ops, minlength=16)

    def depths(self) -> Ints:
        """Gates on the longest way from an input to each wire: [inputs + gates], inputs 0."""
        depths = np.zeros(self.inputs + self.gates, np.int64)
        for gate, (a, b) in enumerate(zip(self.a, self.b, strict=True)):
            depths[self.inputs + gate] = 1 + max(depths[a], depths[b])
        return depths

    def evaluate(self, wires: ArrayLike) -> Bits:
        """New channels from neighbourhoods, each gate looked up in its truth table.

        ``wires`` is boolean [9 * C, ...], the result [C, ...]. This is the plain way; see
        `astkit.logic_ca.packed` for the fast one.
        Raises ``ValueError`` for another number of wires.
        """
        wires = np.asarray(wires, bool)
        if wires.ndim < 1 or len(wires) != self.inputs:
            raise ValueError(f"wires has shape {wires.shape}: give [{self.inputs}, ...]")
        values = list(wires)
        for op, a, b in zip(self.ops, self.a, self.b, strict=True):
            values.append(TABLES[op][2 * values[a].astype(np.int64) + values[b]])
        constants = {~bit: np.full(wires.shape[1:], bool(bit)) for bit in (0, 1)}
        return np.stack([constants[w] if w < 0 else values[w] for w in self.outputs.tolist()])

    def to_json(self) -> str:
        """The circuit as one JSON object. Raises ``TypeError`` for a ``meta`` JSON cannot hold."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "channels": self.channels,
            "boundary": self.boundary,
            "fire_rate": self.fire_rate,
            **{name: getattr(self, name).tolist() for name in _ARRAYS},
            "meta": dict(self.meta),
        }
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Circuit:
        """The circuit that `to_json` wrote.

        Raises ``ValueError`` for anything else: the text is not trusted.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is no circuit: it is not JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"this is no circuit: its format is not {FORMAT!r}")
        if content.get("version") != VERSION:
            raise ValueError(
                f"the circuit's version is {content.get('version')!r}, and this astkit reads"
                f" {VERSION}: save it again with this one"
            )
        if content.keys() != set(_KEYS):
            odd = ", ".join(sorted(content.keys() ^ set(_KEYS)))
            raise ValueError(f"the circuit lacks, or does not know, the keys {odd}")
        if not isinstance(content["meta"], dict):
            raise ValueError("the circuit's meta is no JSON object: save it again")
        if not _is_whole(content["channels"]):
            raise ValueError(f"channels is {content['channels']!r}: give a whole number")
        if type(content["fire_rate"]) not in (int, float):
            raise ValueError(f"fire_rate is {content['fire_rate']!r}: give a number")
        return cls(**{key: content[key] for key in _KEYS[2:]})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_json` to ``path``, atomically; returns the path."""
        return files.write_atomic(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Circuit:
        """The circuit that `save` wrote. Raises ``ValueError`` for a file that holds none."""
        try:
            return cls.from_json(Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def from_automaton(model: LogicCA) -> Circuit:
    """The circuit of the hard ``model``, gate by gate, not yet pruned.

    It has ``model.config.gates_per_cell`` gates: perception channel by channel, then the update
    network, layer by layer. ``meta`` holds the model's ``config`` and ``wiring_hash``.
    """
    config, made = model.config, _Gates(PATCH * model.config.channels)
    seen = []
    for channel in range(config.channels):
        wires = np.repeat(PATCH * channel + np.arange(PATCH)[:, None], config.kernels, axis=1)
        for table, logits in zip(model.kernel_wires, model.kernel_logits, strict=True):
            a, b = table.cpu().numpy()
            wires = made.layer(wires[a], wires[b], logits)  # [gates, kernels]
        seen.append(wires.reshape(-1))
    below = np.concatenate([PATCH * np.arange(config.channels) + CENTRE, *seen])
    for table, logits in zip(model.update_wires, model.update_logits, strict=True):
        a, b = table.cpu().numpy()
        below = made.layer(below[a], below[b], logits)
    meta = {"config": config.to_dict(), "wiring_hash": model.wiring_hash}
    ops, a, b = (np.concatenate(parts) for parts in zip(*made.layers, strict=True))
    return Circuit(config.channels, ops, a, b, below, config.boundary, config.fire_rate, meta)


class _Gates:
    """Gates in the order they were added, and the number of the next wire."""

    def __init__(self, inputs: int) -> None:
        self.layers: list[tuple[Ints, Ints, Ints]] = []
        self._next = inputs

    def layer(self, a: Ints, b: Ints, logits: Tensor) -> Ints:
        """Add a gate for each element of ``a``; returns its wires, in the shape of ``a``."""
        ops = logits.detach().argmax(-1).cpu().numpy()
        self.layers.append((ops.reshape(-1), a.reshape(-1), b.reshape(-1)))
        wires = self._next + np.arange(a.size).reshape(a.shape)
        self._next += a.size
        return wires


def _integers(name: str, values: Any) -> Ints:
    if isinstance(values, list) and not all(_is_whole(value) for value in values):
        raise ValueError(f"{name} holds something that is no whole number: give integers only")
    try:
        # an empty list would become an array of floats
        array = np.array(values, np.int64 if isinstance(values, list) else None)
    except OverflowError as error:
        raise ValueError(f"{name} holds a number beyond 64 bits: no circuit is so large") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}: give whole numbers in one dimension"
        )
    array = array.astype(np.int64)
    array.setflags(write=False)
    return array


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _within(name: str, values: Ints, low: int, end: Ints) -> None:
    wrong = np.flatnonzero((values < low) | (values >= end))
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"{name}[{at}] is {values[at]}: it must be at least {low} and below {end[at]}"
        )
