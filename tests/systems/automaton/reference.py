"""The automaton the slow way: plain Python over cells, gates and all sixteen operations.

Shares no code with the fast one but the logits and wires that it reads.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

from astkit.systems.automaton.automaton import LogicCA

Grid: TypeAlias = list[list[list[float]]]
"""One sample: ``[channels][height][width]``."""


class Weights:
    """A model's shares of operations and wires as lists.

    Attributes:
        shares: by name of the parameter, one list of 16 a gate, in the parameter's order: softmax
            of the logits or, where ``hard``, one-hot.
    """

    def __init__(self, model: LogicCA, hard: Sequence[bool]) -> None:
        self.config, turns = model.config, iter(hard)
        self.shares = {}
        for name, logits in model.named_parameters():
            rows = logits.flatten(0, -2).tolist()
            self.shares[name] = [_one_hot(row) if next(turns) else _softmax(row) for row in rows]
        self.kernel_wires = [table.tolist() for table in model.kernel_wires]
        self.update_wires = [table.tolist() for table in model.update_wires]


def rollout(
    model: LogicCA, x: Tensor, steps: int, masks: Tensor | None, hard: Sequence[bool]
) -> list[Grid]:
    """The states of all samples after ``steps`` steps, as nested lists.

    ``x [batch, channels, height, width]``, ``masks [steps, batch, 1, height, width]`` as in
    `LogicCA.forward`; ``hard``: for each gate, in the order of the parameters.
    """
    weights, samples = Weights(model, hard), []
    for i, grid in enumerate(x.double().tolist()):
        for t in range(steps):
            fires = None if masks is None else masks[t, i, 0].tolist()
            grid = _step(weights, grid, fires)
        samples.append(grid)
    return samples


def _step(weights: Weights, grid: Grid, fires: list[list[bool]] | None) -> Grid:
    height, width = len(grid[0]), len(grid[0][0])
    new: Grid = [[[0.0] * width for _ in range(height)] for _ in grid]
    for y in range(height):
        for x in range(width):
            cell = _cell(weights, grid, y, x)
            for channel, value in enumerate(cell):
                fired = fires is None or fires[y][x]
                new[channel][y][x] = value if fired else grid[channel][y][x]
    return new


def _cell(weights: Weights, grid: Grid, y: int, x: int) -> list[float]:
    """The new channels of the cell in row ``y`` and column ``x``."""
    config = weights.config
    values = [channel[y][x] for channel in grid]
    for channel in grid:
        patch = _patch(channel, y, x, config.boundary == "periodic")
        seen = [_kernel(weights, patch, kernel) for kernel in range(config.kernels)]
        for output in range(config.kernel_layers[-1]):
            values += [of_kernel[output] for of_kernel in seen]
    for i, (a, b) in enumerate(weights.update_wires):
        shares = weights.shares[f"update_logits.{i}"]
        values = [
            _gate(share, values[p], values[q]) for share, p, q in zip(shares, a, b, strict=True)
        ]
    return values


def _kernel(weights: Weights, patch: list[float], kernel: int) -> list[float]:
    kernels, values = weights.config.kernels, patch
    for i, (a, b) in enumerate(weights.kernel_wires):
        shares = weights.shares[f"kernel_logits.{i}"]
        values = [
            _gate(shares[gate * kernels + kernel], values[p], values[q])
            for gate, (p, q) in enumerate(zip(a, b, strict=True))
        ]
    return values


def _patch(channel: list[list[float]], y: int, x: int, periodic: bool) -> list[float]:
    height, width = len(channel), len(channel[0])
    patch: list[float] = []
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            inside = 0 <= y + dy < height and 0 <= x + dx < width
            known = inside or periodic
            patch.append(channel[(y + dy) % height][(x + dx) % width] if known else 0.0)
    return patch


def _gate(shares: Sequence[float], a: float, b: float) -> float:
    """The mixture of all sixteen gates: an op's bits are its outputs for 00, 01, 10 and 11."""
    corners = ((1 - a) * (1 - b), (1 - a) * b, a * (1 - b), a * b)
    total: float = 0.0
    for op, share in enumerate(shares):
        total += share * sum(corners[place] for place in range(4) if op >> (3 - place) & 1)
    return total


def _softmax(logits: Sequence[float]) -> list[float]:
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]


def _one_hot(logits: Sequence[float]) -> list[float]:
    return [float(i == logits.index(max(logits))) for i in range(len(logits))]
