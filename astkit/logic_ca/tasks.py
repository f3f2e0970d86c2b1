"""What an automaton learns here: Conway's Game of Life, and a checkerboard out of random bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.batch import Batch
from astkit.datasets import BatchSource, Loader
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.masks import fire_masks, hard_gates

NEIGHBOURHOODS = 512

Kind = Literal["life", "checkerboard"]


@dataclass(frozen=True)
class Task:
    """A task with the automaton that the paper gives it.

    Attributes:
        name: for records.
        kind: "life" or "checkerboard".
        config: of the automaton.
        height, width: of the grid in training, cells.
        steps: of a rollout.
        batch_size: samples an iteration.
        iterations: updates of the weights in a whole training.
        weight_decay: of AdamW.
        hard_share: probability of a gate to be hard in an iteration; see `hard_gates`.
        every: iterations a pass, after each of which the automaton is evaluated.
        held_out: samples that it is evaluated on; Life's are all its neighbourhoods.
    """

    name: str
    kind: Kind
    config: LogicCAConfig
    height: int
    width: int
    steps: int
    batch_size: int
    iterations: int
    weight_decay: float = 0.0
    hard_share: float = 0.0
    every: int = 25
    held_out: int = 16

    def scaled(self, **changes: Any) -> Task:
        """The task with other numbers, such as ``height=64, width=64, steps=80``."""
        return replace(self, **changes)

    def source(self, seed: int = 0, batch_size: int | None = None) -> BatchSource:
        """The training samples, drawn by ``seed``; rows that fill no batch are left out."""
        size = batch_size or self.batch_size
        if self.kind == "life":
            return Loader(TensorDataset(*life_table()), size, seed=seed, drop_last=True)
        return RandomBits(self, size, seed)

    def evaluation(self, purpose: str = "held out") -> Batch:
        """Fixed samples, the same whatever the seed of the training; others for another purpose."""
        if self.kind == "life":
            return Batch(torch.arange(NEIGHBOURHOODS), *life_table())
        return RandomBits(self, self.held_out, 0, purpose).grids(torch.arange(self.held_out))

    def masks(self, index: Tensor | None, seed: int, iteration: int) -> Tensor | None:
        """Fire masks of the samples ``index [batch]`` on the CPU; ``None`` where all cells fire."""
        rate = self.config.fire_rate
        if rate == 1:
            return None
        if index is None:
            raise ValueError(
                "index is None, but masks are drawn by sample: say which ones these are"
            )
        size, samples = (self.height, self.width), index.tolist()
        return fire_masks(rate, self.steps, samples, *size, seed=seed, iteration=iteration)

    def hard(self, seed: int, iteration: int) -> Tensor | Literal[False]:
        """Gates that are hard in an iteration, bool ``[gates]``; ``False`` where none ever is."""
        if self.hard_share == 0:
            return False
        return hard_gates(self.hard_share, sum(self.config.gates), seed=seed, iteration=iteration)


def game_of_life() -> Task:
    """One step of all 512 neighbourhoods, as periodic grids of 3x3."""
    return Task("life", "life", LogicCAConfig.game_of_life(), 3, 3, 1, 20, 3000)


def checkerboard() -> Task:
    """A checkerboard of 2x2 squares in 20 steps, all cells at once."""
    return _board("checkerboard", LogicCAConfig.checkerboard(), 16, 20, 2, 500)


def checkerboard_async() -> Task:
    """The same in 50 steps in which 60 % of the cells change."""
    return _board("checkerboard_async", LogicCAConfig.checkerboard_async(), 14, 50, 1, 800)


def checkerboard_small() -> Task:
    """The same on 8x8 in 10 steps, with a small automaton: a smoke test."""
    return _board("checkerboard_small", LogicCAConfig.checkerboard_small(), 8, 10, 4, 500)


def _board(
    name: str, config: LogicCAConfig, side: int, steps: int, batch_size: int, iterations: int
) -> Task:
    # half of the gates are hard in an iteration, unlike in the paper
    return Task(
        name, "checkerboard", config, side, side, steps, batch_size, iterations, hard_share=0.5
    )


def life_step(grid: Tensor) -> Tensor:
    """Conway's rule on periodic grids ``[..., height, width]`` of 0 and 1.

    A cell lives on with two or three living neighbours and is born with three.
    """
    moves = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)]
    neighbours = torch.stack([grid.roll(move, (-2, -1)) for move in moves]).sum(0)
    return ((neighbours == 3) | ((neighbours == 2) & (grid == 1))).to(grid.dtype)


def life_table() -> tuple[Tensor, Tensor]:
    """All grids of 3x3, ``[512, 1, 3, 3]``, and what becomes of them, ``[512, 3, 3]``."""
    bits = torch.arange(NEIGHBOURHOODS)[:, None] >> torch.arange(9)
    grids = (bits % 2).float().view(-1, 1, 3, 3)
    return grids, life_step(grids[:, 0])


def checkerboard_target(height: int, width: int) -> Tensor:
    """Squares of 2x2 cells, float32 ``[height, width]``: ``((x // 2) + (y // 2)) % 2``."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return ((x // 2 + y // 2) % 2).float()


def damage(height: int, width: int, steps: int, held: int, half: int = 10) -> Tensor:
    """Which cells are alive where a square in the middle dies: bool ``[steps, 1, 1, H, W]``.

    The square reaches ``half`` cells from the middle and is held at 0 for the first ``held`` steps:
    ``held=steps`` is a lasting fault, ``steps // 2`` leaves time to heal.
    """
    alive = torch.ones(steps, 1, 1, height, width, dtype=torch.bool)
    rows = slice(max(0, height // 2 - half), height // 2 + half)
    columns = slice(max(0, width // 2 - half), width // 2 + half)
    alive[:held, :, :, rows, columns] = False
    return alive


def random_damage(height: int, width: int, steps: int, seed: int, size: int = 10) -> Tensor:
    """The same with another square of ``size`` cells a side in every step."""
    numbers = torch.arange(steps)
    tops = rng.uniform(numbers, seed, "damage", "row") * (height - size + 1)
    lefts = rng.uniform(numbers, seed, "damage", "column") * (width - size + 1)
    alive = torch.ones(steps, 1, 1, height, width, dtype=torch.bool)
    for t, (top, left) in enumerate(zip(tops.int().tolist(), lefts.int().tolist(), strict=True)):
        alive[t, :, :, top : top + size, left : left + size] = False
    return alive


class RandomBits:
    """Batches of random bits in all channels, none of them twice; the checkerboard is the target.

    A pass is ``task.every`` batches. A grid depends on (seed, purpose, pass, row) alone.
    """

    keyed = True

    def __init__(self, task: Task, batch_size: int, seed: int = 0, purpose: str = "train") -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give 1 or more")
        self.num_samples: int = task.every * batch_size
        self.batch_size, self.seed, self.purpose = batch_size, seed, purpose
        self.shape = (task.config.channels, task.height, task.width)
        self.target = checkerboard_target(task.height, task.width)
        self.device = torch.device("cpu")

    def to(self, device: torch.device | str) -> RandomBits:
        """Deliver on ``device`` from now on; returns itself."""
        self.device = torch.device(device)
        return self

    def __len__(self) -> int:
        return self.num_samples // self.batch_size

    def check_labels(self, num_outputs: int) -> None:
        """There are none."""

    def order(self, epoch: int) -> Tensor:
        """Rows of a pass as they come: each is random already."""
        return torch.arange(self.num_samples)

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of pass ``epoch`` over ``order``, without the first ``start``.

        Rows that fill no batch are left out.
        """
        rows = self.order(epoch) if order is None else order
        for i in range(start, len(rows) // self.batch_size):
            yield self.grids(rows[i * self.batch_size :][: self.batch_size], epoch).to(self.device)

    def grids(self, rows: Tensor, epoch: int = 0) -> Batch:
        """The rows of pass ``epoch``."""
        key = (self.seed, "bits", self.purpose, epoch)
        drawn = [
            torch.randint(2, self.shape, generator=rng.generator(*key, row))
            for row in rows.tolist()
        ]
        return Batch(rows, torch.stack(drawn).float(), self.target.expand(len(rows), -1, -1))
