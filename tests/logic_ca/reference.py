"""The automaton the slow way: plain Python over cells, gates and all sixteen operations.

Shares no code with the fast one but the logits and wires that it reads. Numbers may be complex, so
gradients come from complex steps. Source: Squire and Trapp, "Using complex variables to estimate
derivatives of real functions", SIAM Review 40 (1998): df/dx = Im f(x + ih) / h, without
cancellation, for functions that are analytic, which the soft rollout is.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor

from astkit.logic_ca.automaton import LogicCA

Number: TypeAlias = float | complex
Grid: TypeAlias = list[list[list[Number]]]
"""One sample: ``[channels][height][width]``."""

OPERATIONS: tuple[Callable[[Number, Number], Number], ...] = (
    lambda a, b: 0.0,
    lambda a, b: a * b,
    lambda a, b: a - a * b,
    lambda a, b: a,
    lambda a, b: b - a * b,
    lambda a, b: b,
    lambda a, b: a + b - 2 * a * b,
    lambda a, b: a + b - a * b,
    lambda a, b: 1 - (a + b - a * b),
    lambda a, b: 1 - (a + b - 2 * a * b),
    lambda a, b: 1 - b,
    lambda a, b: 1 - b + a * b,
    lambda a, b: 1 - a,
    lambda a, b: 1 - a + a * b,
    lambda a, b: 1 - a * b,
    lambda a, b: 1.0,
)
"""FALSE, AND, A&!B, A, !A&B, B, XOR, OR and their complements, in reverse."""

STEP = 1e-30


class Weights:
    """A model's logits and wires as lists; ``logits`` may be changed before `rollout`.

    Attributes:
        logits: by name of the parameter, one list of 16 a gate; gates in the parameter's order.
        shares: the same after softmax or, hard, one-hot.
    """

    def __init__(self, model: LogicCA) -> None:
        self.config = model.config
        self.logits: dict[str, list[list[Number]]] = {
            name: p.detach().double().flatten(0, -2).tolist()
            for name, p in model.named_parameters()
        }
        self.kernel_wires = [table.tolist() for table in model.kernel_wires]
        self.update_wires = [table.tolist() for table in model.update_wires]

    def mixed(self, hard: bool | Sequence[bool]) -> None:
        """Work out ``shares``; ``hard`` for all gates, or for each one, then straight through."""
        if isinstance(hard, bool):
            turns = [_one_hot if hard else _softmax] * sum(map(len, self.logits.values()))
        else:
            turns = [_straight_through if each else _softmax for each in hard]
        turn = iter(turns)
        self.shares = {
            name: [next(turn)(row) for row in rows] for name, rows in self.logits.items()
        }


def rollout(
    weights: Weights,
    x: Tensor,
    steps: int,
    masks: Tensor | None = None,
    hard: bool | Sequence[bool] = False,
) -> list[Grid]:
    """The states of all samples after ``steps`` steps, as nested lists.

    ``x [batch, channels, height, width]``, ``masks [steps, batch, 1, height, width]`` as in
    `LogicCA.forward`.
    """
    weights.mixed(hard)
    samples = []
    for i, grid in enumerate(x.double().tolist()):
        for t in range(steps):
            fires = None if masks is None else masks[t, i, 0].tolist()
            grid = _step(weights, grid, fires)
        samples.append(grid)
    return samples


def loss(
    weights: Weights,
    x: Tensor,
    targets: Tensor,
    steps: int,
    masks: Tensor | None = None,
    hard: bool | Sequence[bool] = False,
) -> Number:
    """Sum of squares of channel 0 minus ``targets [batch, height, width]``, over all samples."""
    total: Number = 0.0
    for grid, target in zip(rollout(weights, x, steps, masks, hard), targets.tolist(), strict=True):
        for row, wanted in zip(grid[0], target, strict=True):
            total += sum((value - goal) ** 2 for value, goal in zip(row, wanted, strict=True))
    return total


def derivative(
    weights: Weights,
    place: tuple[str, int, int],
    x: Tensor,
    targets: Tensor,
    steps: int,
    masks: Tensor | None = None,
    hard: bool | Sequence[bool] = False,
) -> float:
    """Of `loss` by one logit: ``place`` is (name of the parameter, gate, operation)."""
    name, gate, operation = place
    before = weights.logits[name][gate][operation]
    weights.logits[name][gate][operation] = before + 1j * STEP
    try:
        return complex(loss(weights, x, targets, steps, masks, hard)).imag / STEP
    finally:
        weights.logits[name][gate][operation] = before


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


def _cell(weights: Weights, grid: Grid, y: int, x: int) -> list[Number]:
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


def _kernel(weights: Weights, patch: list[Number], kernel: int) -> list[Number]:
    kernels, values = weights.config.kernels, patch
    for i, (a, b) in enumerate(weights.kernel_wires):
        shares = weights.shares[f"kernel_logits.{i}"]
        values = [
            _gate(shares[gate * kernels + kernel], values[p], values[q])
            for gate, (p, q) in enumerate(zip(a, b, strict=True))
        ]
    return values


def _patch(channel: list[list[Number]], y: int, x: int, periodic: bool) -> list[Number]:
    height, width = len(channel), len(channel[0])
    patch: list[Number] = []
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            inside = 0 <= y + dy < height and 0 <= x + dx < width
            known = inside or periodic
            patch.append(channel[(y + dy) % height][(x + dx) % width] if known else 0.0)
    return patch


def _gate(shares: Sequence[Number], a: Number, b: Number) -> Number:
    total: Number = 0.0
    for share, operation in zip(shares, OPERATIONS, strict=True):
        total += share * operation(a, b)
    return total


def _softmax(logits: Sequence[Number]) -> list[Number]:
    highest = max(complex(logit).real for logit in logits)
    powers = [cmath.exp(logit - highest) for logit in logits]
    return [power / sum(powers) for power in powers]


def _one_hot(logits: Sequence[Number]) -> list[Number]:
    real = [complex(logit).real for logit in logits]
    return [float(i == real.index(max(real))) for i in range(len(real))]


def _straight_through(logits: Sequence[Number]) -> list[Number]:
    """The value of the hard gate with the derivative of the soft one."""
    soft = _softmax(logits)
    pairs = zip(_one_hot(logits), soft, strict=True)
    return [complex(complex(value).real, complex(share).imag) for value, share in pairs]
