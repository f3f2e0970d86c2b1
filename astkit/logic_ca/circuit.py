"""Circuit of two-input gates that updates one cell: the function of a hard automaton.

A gate's op is its truth table for (a, b) = 00, 01, 10, 11 read as a 4-bit number, 0 to 15.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from astkit import files
from astkit.identity import configuration
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.config import Boundary, check_grid
from astkit.logic_ca.gates import CENTRE

Ints = NDArray[np.int64]
Bits = NDArray[np.bool_]

PATCH = 9
"""Cells of a neighbourhood, row by row."""

FALSE, TRUE = -1, -2
"""Wire of a constant output: constant v is ~v."""

PASSIVE = (0, 3, 5, 15)
"""Ops that return a constant or one of their inputs: FALSE, A, B, TRUE."""

FORMAT, VERSION = "astkit.logic_ca.circuit", 1


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
        meta: JSON-compatible values about its origin.

    Raises ``ValueError`` for an invalid circuit.
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
        check_grid(self.boundary, self.fire_rate)
        if type(self.channels) is not int or self.channels < 1:
            raise ValueError(f"channels is {self.channels!r}: give a whole number of 1 or more")
        if not isinstance(self.meta, Mapping):
            raise ValueError(f"meta is {self.meta!r}: give a mapping")
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

    @property
    def active(self) -> int:
        """Number of gates other than FALSE, A, B and TRUE."""
        return int((~np.isin(self.ops, PASSIVE)).sum())

    def by_op(self) -> Ints:
        """Number of gates of each op: [16]."""
        return np.bincount(self.ops, minlength=16)

    def depths(self) -> Ints:
        """Gates on the longest path from an input to each wire: [inputs + gates], inputs 0."""
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
        """The circuit that `to_json` wrote; ``ValueError`` for anything else."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is no circuit: it is not JSON ({error})") from error
        values = content if isinstance(content, dict) else {}
        if [values.pop(name, None) for name in ("format", "version")] != [FORMAT, VERSION]:
            raise ValueError(f"this is no circuit: give JSON of {FORMAT!r}, version {VERSION}")
        if odd := values.keys() ^ cls.__dataclass_fields__.keys():
            raise ValueError(f"missing or unknown keys in the circuit: {', '.join(sorted(odd))}")
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_json` to ``path``, atomically; returns the path."""
        return files.write_atomic(path, self.to_json() + "\n")


def from_automaton(model: LogicCA) -> Circuit:
    """The circuit of the hard ``model``, gate by gate, not pruned.

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
    meta = {"config": configuration(asdict(config)), "wiring_hash": model.wiring_hash}
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
