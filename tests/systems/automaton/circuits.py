"""Circuits for tests, and the plain way to run one: cell by cell, gate by gate."""

import numpy as np
import torch
from hypothesis import strategies as st

from astkit import rng
from astkit.systems.automaton.automaton import LogicCA, LogicCAConfig
from astkit.systems.automaton.circuit import Circuit

ACTIVE = (1, 2, 4, 6, 7, 8, 9, 11, 13, 14)
"""Ops that need both of their inputs."""

TABLES = (np.arange(16)[:, None] >> np.array([3, 2, 1, 0])) % 2 == 1
"""Truth tables: ``TABLES[op, 2 * a + b]``, the digits of op from first to last."""


def evaluate(circuit: Circuit, wires: np.ndarray) -> np.ndarray:
    """New channels [C, n] of many cells from their input wires [9 * C, n], by truth tables."""
    values = list(wires)
    for op, a, b in zip(circuit.ops, circuit.a, circuit.b, strict=True):
        values.append(TABLES[op][2 * values[a].astype(int) + values[b]])
    return np.stack([values[wire] for wire in circuit.outputs.tolist()])


def step(circuit: Circuit, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """The state [B, C, H, W] one step after ``x``, cell by cell; ``mask`` is [B, 1, H, W]."""
    batch, channels, height, width = x.shape
    new = x.copy()
    for n, i, j in np.ndindex(batch, height, width):
        if mask is not None and not mask[n, 0, i, j]:
            continue
        seen = []
        for c in range(channels):
            for y in (i - 1, i, i + 1):
                for z in (j - 1, j, j + 1):
                    inside = 0 <= y < height and 0 <= z < width
                    wraps = circuit.boundary == "periodic"
                    seen.append(bool(x[n, c, y % height, z % width]) if inside or wraps else False)
        new[n, :, i, j] = evaluate(circuit, np.array(seen)[:, None])[:, 0]
    return new


class Builder:
    """A circuit gate by gate: ``op`` returns the new gate's wire."""

    def __init__(self, channels: int) -> None:
        self.channels, self.gates = channels, list[tuple[int, int, int]]()

    def op(self, number: int, a: int, b: int) -> int:
        self.gates.append((number, a, b))
        return 9 * self.channels + len(self.gates) - 1

    def done(self, outputs: list[int], boundary="periodic") -> Circuit:
        ops, a, b = np.array(self.gates, np.int64).reshape(-1, 3).T
        return Circuit(self.channels, ops, a, b, np.array(outputs), boundary)


@st.composite
def circuits(draw, gates: int = 30, channels: int = 2) -> Circuit:
    """Any circuit of at most so many gates, constants and passing gates among them."""
    make = Builder(draw(st.integers(1, channels)))
    for _ in range(draw(st.integers(0, gates))):
        last = 9 * make.channels + len(make.gates) - 1
        # often of the newest wires: else few gates reach an output
        wire = st.integers(0, last) | st.integers(last - 5, last)
        make.op(draw(st.integers(0, 15)), draw(wire), draw(wire))
    last = 9 * make.channels + len(make.gates) - 1
    ends = st.integers(0, last) | st.integers(last - 3, last)
    outputs = [draw(ends) for _ in range(make.channels)]
    return make.done(outputs, draw(st.sampled_from(["periodic", "zero"])))


def drawn(config: LogicCAConfig, seed: int = 0) -> LogicCA:
    """An automaton of random gates that need both of their inputs."""
    model, ops = LogicCA(config), torch.tensor(ACTIVE)
    for number, logits in enumerate([*model.kernel_logits, *model.update_logits]):
        random = rng.generator(seed, "ops", number)
        chosen = ops[torch.randint(len(ops), (*logits.shape[:-1], 1), generator=random)]
        logits.data.zero_().scatter_(-1, chosen, 10.0)
    return model
