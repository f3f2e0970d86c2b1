"""The rule of one cell as a circuit of two-input gates: what a hard automaton computes.

A gate's op is its truth table for (a, b) = 00, 01, 10, 11 read as a 4-bit number, 0 to 15.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
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

FORMAT, VERSION = "astkit.logic_ca.circuit", 1


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
        if not isinstance(self.fire_rate, float | int) or not 0 < self.fire_rate <= 1:
            raise ValueError(f"fire_rate is {self.fire_rate!r}: give a share in (0, 1]")
        if not _is_whole(self.channels) or self.channels < 1:
            raise ValueError(f"channels is {self.channels!r}: give a whole number of 1 or more")
        if not isinstance(self.meta, Mapping):
            raise ValueError(f"meta is {self.meta!r}: give a mapping")
        for name in ("ops", "a", "b", "outputs"):
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

    def to_json(self) -> str:
        """The circuit as one JSON object. Raises ``TypeError`` for a ``meta`` JSON cannot hold."""
        content = {"format": FORMAT, "version": VERSION, **vars(self), "meta": dict(self.meta)}
        return json.dumps(content, default=np.ndarray.tolist, allow_nan=False)

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
        content = {k: v for k, v in content.items() if k not in ("format", "version")}
        if odd := content.keys() ^ {each.name for each in fields(cls)}:
            raise ValueError(
                f"the circuit lacks, or does not know, the keys {', '.join(sorted(odd))}"
            )
        return cls(**content)

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
    meta = {"config": config.to_dict(), "wiring_hash": model.wiring_hash}
    ops, a, b = (np.concatenate(parts) for parts in zip(*layers, strict=True))
    return Circuit(config.channels, ops, a, b, below, config.boundary, config.fire_rate, meta)


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


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _within(name: str, values: Ints, low: int, end: Ints) -> None:
    wrong = np.flatnonzero((values < low) | (values >= end))
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"{name}[{at}] is {values[at]}: it must be at least {low} and below {end[at]}"
        )
