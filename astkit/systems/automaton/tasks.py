"""Tasks of an automaton: Conway's Game of Life, and a checkerboard from random bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.checks import FROM_0, PART, Limit, check_settings
from astkit.datasets import BatchSource, Loader
from astkit.datasets.batch import Batch
from astkit.systems.automaton.automaton import LogicCAConfig

COUNTS = ("height", "width", "steps", "batch_size", "iterations", "every", "held_out")
LIMITS: dict[str, Limit] = {**dict.fromkeys(COUNTS, 1), "weight_decay": FROM_0, "hard_share": PART}
"""What the settings of a task have to be, see `check_settings`."""

SIDE, GENERATIONS = 48, 3
"""Cells along a side of Life's `AutomatonTask.example`, and generations from start to end."""


@dataclass(frozen=True)
class AutomatonTask:
    """A task and the paper's automaton for it.

    Attributes:
        height, width: grid size in training, in cells.
        steps: steps per rollout.
        batch_size: samples per iteration.
        iterations: number of weight updates in training.
        weight_decay: of AdamW.
        hard_share: probability that a gate is hard in an iteration, 0 in the paper; see `hard`.
        every: iterations per pass; the automaton is evaluated after each pass.
        held_out: number of evaluation samples; Life is evaluated on all neighbourhoods.

    Raises ``ValueError`` for a count below 1, a share outside [0, 1], and Life on another grid.
    """

    name: str
    kind: Literal["life", "checkerboard"]
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

    def __post_init__(self) -> None:
        check_settings(self, LIMITS)
        if self.kind == "life" and (self.height, self.width, self.steps) != (3, 3, 1):
            raise ValueError(
                f"height, width and steps are {self.height}, {self.width} and {self.steps}, but"
                " Life is learnt from single steps of 3x3 neighbourhoods: leave them out, and run"
                " the circuit on larger grids with PackedCircuit.trajectory"
            )

    def scaled(self, **changes: Any) -> AutomatonTask:
        """A copy with changed fields, such as ``height=64, width=64, steps=80``."""
        return replace(self, **changes)

    def source(self, seed: int = 0, batch_size: int | None = None) -> BatchSource:
        """The training samples, drawn by ``seed``; an incomplete last batch is dropped."""
        size = self.batch_size if batch_size is None else batch_size
        if self.kind == "life":
            return Loader(TensorDataset(*life_table()), size, seed=seed, drop_last=True)
        return RandomBits(self, size, seed)

    def evaluation(self, purpose: str = "held out") -> Batch:
        """Fixed samples, independent of the training's seed; different for each ``purpose``."""
        if self.kind == "life":
            grids, new = life_table()
            return Batch(torch.arange(len(grids)), grids, new)
        return random_bits(self, torch.arange(self.held_out), 0, purpose, 0)

    def example(self) -> tuple[Tensor, int, Tensor]:
        """What a picture of the training shows: a start ``[1, channels, H, W]``, the number of
        steps from it, and channel 0 as it should be then, ``[H, W]``.

        The same for every seed; of Life a grid of `SIDE` times `SIDE` random cells.
        """
        if self.kind != "life":
            samples = self.evaluation()
            return samples.x[:1], self.steps, samples.y[0]
        generator = rng.generator(0, "example")
        start = torch.randint(2, (1, 1, SIDE, SIDE), generator=generator).float()
        return start, GENERATIONS, life(start[0, 0], GENERATIONS)[-1]

    def masks(self, index: Tensor | None, seed: int, iteration: int) -> Tensor | None:
        """Fire masks of samples ``index [batch]`` on the CPU; ``None`` if all cells fire."""
        if self.config.fire_rate == 1:
            return None
        if index is None:
            raise ValueError(
                "index is None, but masks are drawn per sample: give the samples' numbers"
            )
        size = (self.steps, 1, self.height, self.width)
        return fire_masks(self.config.fire_rate, size, index.tolist(), seed, iteration)

    def hard(self, seed: int, iteration: int) -> Tensor | Literal[False]:
        """Gates that are hard in an iteration, each with probability ``hard_share``: bool
        ``[gates]`` on the CPU; ``False`` for none.

        This way a gate cannot rely on inputs between 0 and 1, which do not occur in a hard
        automaton. Source of the random share: Fan et al., "Training with Quantization Noise for
        Extreme Model Compression", ICLR 2021.
        """
        if self.hard_share == 0:
            return False
        generator = rng.generator(seed, "hard", iteration)
        return torch.rand(sum(self.config.gates), generator=generator) < self.hard_share


def fire_masks(
    rate: float, size: Sequence[int], samples: Iterable[int], seed: int, iteration: int
) -> Tensor:
    """Masks bool ``[steps, batch, 1, height, width]`` on the CPU, true if a cell is updated.

    ``size``: steps, 1, height, width. A sample's masks depend only on (seed, iteration, its number
    in ``samples``); all channels share a mask.
    """
    generators = [rng.generator(seed, "fire", iteration, sample) for sample in samples]
    drawn = [torch.rand(size, generator=each) for each in generators]
    return torch.stack(drawn, 1) < rate  # all cells at a rate of 1: numbers are in [0, 1)


def game_of_life() -> AutomatonTask:
    """One step of all 512 neighbourhoods, as periodic grids of 3x3; 2,543 gates."""
    config = LogicCAConfig(1, 16, (8, 4, 2, 1), (128,) * 17 + (64, 32, 16, 8, 4, 2, 1))
    return AutomatonTask("life", "life", config, 3, 3, 1, 20, 3000)


def checkerboard() -> AutomatonTask:
    """A checkerboard of 2x2 squares in 20 synchronous steps; 3,040 gates."""
    update = (256,) * 10 + (128, 64, 32, 16, 8, 8)
    config = LogicCAConfig(8, 16, (8, 4, 2), update, boundary="zero")
    return AutomatonTask("checkerboard", "checkerboard", config, 16, 16, 20, 2, 500, hard_share=0.5)


def checkerboard_async() -> AutomatonTask:
    """The same in 50 steps, each updating 60 % of the cells; 4,064 gates."""
    update = (256,) * 14 + (128, 64, 32, 16, 8, 8)
    config = LogicCAConfig(8, 16, (8, 4, 2), update, boundary="zero", fire_rate=0.6)
    return AutomatonTask(
        "checkerboard_async", "checkerboard", config, 14, 14, 50, 1, 800, hard_share=0.5
    )


def checkerboard_small() -> AutomatonTask:
    """The same on 8x8 in 10 synchronous steps, with a small automaton: a smoke test."""
    config = LogicCAConfig(8, 4, (8, 4, 2), (64,) * 4 + (32, 16, 8), boundary="zero")
    return AutomatonTask(
        "checkerboard_small", "checkerboard", config, 8, 8, 10, 4, 500, hard_share=0.5
    )


def life_step(grid: Tensor) -> Tensor:
    """Conway's rule on periodic grids ``[..., height, width]`` of 0 and 1.

    A cell survives with two or three living neighbours and is born with three.
    """
    moves = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    alive = torch.stack([grid.roll(move, (-2, -1)) for move in moves]).sum(0)  # and the cell itself
    return ((alive == 3) | ((alive == 4) & (grid == 1))).to(grid.dtype)


def life(grid: Tensor, steps: int) -> Tensor:
    """All states from ``grid`` on, one more than ``steps``: ``[steps + 1, *grid.shape]``."""
    states = [grid]
    for _ in range(steps):
        states.append(life_step(states[-1]))
    return torch.stack(states)


def life_table() -> tuple[Tensor, Tensor]:
    """All grids of 3x3, ``[512, 1, 3, 3]``, and their next states, ``[512, 3, 3]``."""
    bits = torch.arange(2**9)[:, None] >> torch.arange(9)
    grids = (bits % 2).float().view(-1, 1, 3, 3)
    return grids, life_step(grids[:, 0])


def checkerboard_target(height: int, width: int) -> Tensor:
    """Squares of 2x2 cells, float32 ``[height, width]``: ``((x // 2) + (y // 2)) % 2``."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return ((x // 2 + y // 2) % 2).float()


def damage(height: int, width: int, steps: int, held: int) -> Tensor:
    """A mask of a damaged square of 20x20 in the middle: bool ``[steps, 1, 1, H, W]``, false there.

    The square is dead in the first ``held`` steps: ``held=steps`` is permanent damage,
    ``steps // 2`` leaves time to recover.
    """
    alive = torch.ones(steps, 1, 1, height, width, dtype=torch.bool)
    rows, columns = (slice(max(0, size // 2 - 10), size // 2 + 10) for size in (height, width))
    alive[:held, :, :, rows, columns] = False
    return alive


class RandomBits(Loader):
    """Batches of random bits in all channels; the target is the checkerboard.

    A pass is ``task.every`` full batches; its rows are not shuffled, since they are random.
    """

    def __init__(self, task: AutomatonTask, batch_size: int, seed: int) -> None:
        numbers = torch.arange(float(task.every * max(batch_size, 1)))
        options: Any = {"seed": seed, "shuffle": False, "drop_last": True}
        super().__init__(TensorDataset(numbers, numbers), batch_size, **options)
        self.task = task

    def batches(self, epoch: int, *args: Any, **options: Any) -> Iterator[Batch]:
        """The batches of pass ``epoch``; for other arguments see `Loader.batches`."""
        for batch in super().batches(epoch, *args, **options):
            assert batch.index is not None
            yield random_bits(self.task, batch.index, self.seed, "train", epoch).to(self.device)


def random_bits(task: AutomatonTask, rows: Tensor, seed: int, purpose: str, epoch: int) -> Batch:
    """Grids of random bits, each of which depends only on (seed, purpose, epoch, row)."""
    size = (task.config.channels, task.height, task.width)
    generators = [rng.generator(seed, "bits", purpose, epoch, row) for row in rows.tolist()]
    grids = torch.stack([torch.randint(2, size, generator=each) for each in generators])
    target = checkerboard_target(task.height, task.width)
    return Batch(rows, grids.float(), target.expand(len(rows), -1, -1))
