"""The tasks: the truth table, true Life, the checkerboard, samples that depend on keys alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.logic_ca import tasks
from astkit.logic_ca.tasks import Task, fire_masks, hard_gates, life_step, life_table
from tests.benchmarks.logic_ca_training import random_damage


def test_on_a_torus_of_three_all_other_cells_are_neighbours() -> None:
    x, y = life_table()
    assert len({tuple(row) for row in x.flatten(1).tolist()}) == 512
    for grid, new in zip(x[:, 0], y, strict=True):
        total = int(grid.sum())
        for cell, after in zip(grid.flatten().tolist(), new.flatten().tolist(), strict=True):
            around = total - int(cell)
            assert after == float(around == 3 or (around == 2 and cell == 1))


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 7), st.integers(3, 7), st.randoms(use_true_random=False))
def test_life_is_conways_rule(height: int, width: int, random: object) -> None:
    bits = [[random.randint(0, 1) for _ in range(width)] for _ in range(height)]  # type: ignore[attr-defined]
    new = life_step(torch.tensor(bits)).tolist()
    for y in range(height):
        for x in range(width):
            around = -bits[y][x]
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    around += bits[(y + dy) % height][(x + dx) % width]
            assert new[y][x] == int(around == 3 or (around == 2 and bits[y][x] == 1))


def test_the_checkerboard_has_squares_of_two() -> None:
    board = tasks.checkerboard_target(5, 6)
    assert board[:2, :4].tolist() == [[0, 0, 1, 1]] * 2
    assert board[2:4, :4].tolist() == [[1, 1, 0, 0]] * 2
    assert board.shape == (5, 6)


@pytest.mark.parametrize("made", [tasks.game_of_life, tasks.checkerboard_small])
def test_samples_depend_on_seed_and_pass_alone(made: Callable[[], Task]) -> None:
    task = made()
    source, again = task.source(3), task.source(3)
    first = list(source.batches(2))
    assert len(first) == len(source)
    shape = (task.batch_size, task.config.channels, task.height, task.width)
    assert all(batch.x.shape == shape for batch in first)
    for one, other in zip(first[4:], again.batches(2, start=4), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for other in (task.source(4).batches(2), source.batches(3)):
        assert not torch.equal(torch.cat([b.x for b in other]), torch.cat([b.x for b in first]))
    x = torch.cat([batch.x for batch in first])
    assert set(x.unique().tolist()) == {0.0, 1.0}


def test_a_fixed_evaluation_is_none_of_the_training_samples() -> None:
    task = tasks.checkerboard_small()
    fixed = task.evaluation()
    assert len(fixed.y) == 16
    assert torch.equal(fixed.x, task.evaluation().x)
    trained = torch.cat([batch.x for batch in task.source(0).batches(0)])
    assert not (trained[:, None] == fixed.x[None]).flatten(2).all(2).any()
    assert len(tasks.game_of_life().evaluation().y) == 512


def test_a_samplers_rows_are_visited_in_its_order() -> None:
    source = tasks.game_of_life().source(0, batch_size=4)
    rows = torch.tensor([5, 3, 511, 0, 7, 9, 1])
    batches = list(source.batches(0, rows))
    assert [batch.index.tolist() for batch in batches] == [[5, 3, 511, 0]]
    x, y = life_table()
    assert torch.equal(batches[0].x, x[rows[:4]])
    assert torch.equal(batches[0].y, y[rows[:4]])


def test_only_the_asynchronous_task_draws_masks() -> None:
    index = torch.tensor([4, 7])
    assert tasks.checkerboard().masks(index, 0, 0) is None
    task = tasks.checkerboard_async()
    masks = task.masks(index, 0, 3)
    assert masks is not None
    assert masks.shape == (50, 2, 1, 14, 14)
    same = task.masks(index[1:], 0, 3)
    assert same is not None
    assert torch.equal(masks[:, 1:], same)


def test_damage_is_a_square_of_twenty_and_heals_or_does_not() -> None:
    held = tasks.damage(64, 64, steps=8, held=4)
    assert held.shape == (8, 1, 1, 64, 64)
    assert [int((~cells).sum()) for cells in held] == [400] * 4 + [0] * 4
    assert not held[0, 0, 0, 22:42, 22:42].any()
    assert (~tasks.damage(64, 64, steps=8, held=8)).sum() == 8 * 400
    random = random_damage(20, 30, steps=50, seed=1)
    assert (~random).flatten(1).sum(1).tolist() == [100] * 50
    assert len(torch.unique(random, dim=0)) > 40


def test_the_share_of_cells_that_fire_is_the_rate() -> None:
    masks = fire_masks(0.6, 10, range(10), 100, 100, seed=1, iteration=0)
    assert masks.numel() == 1_000_000
    assert abs(masks.float().mean().item() - 0.6) <= 0.005
    assert fire_masks(1.0, 3, [0], 5, 5, seed=1, iteration=0).all()


def test_a_samples_masks_depend_on_its_own_key_alone() -> None:
    def draw(samples: list[int], iteration: int = 0, seed: int = 5) -> torch.Tensor:
        return fire_masks(0.6, 4, samples, 6, 7, seed=seed, iteration=iteration)

    masks = draw([3, 8, 1])
    assert masks.shape == (4, 3, 1, 6, 7)
    assert masks.dtype == torch.bool
    assert torch.equal(masks[:, 1:2], draw([8]))
    others = [draw([3]), draw([3], iteration=1), draw([3], seed=6), draw([8])]
    for i, one in enumerate(others):
        assert not any(torch.equal(one, other) for other in others[i + 1 :])
    assert not torch.equal(masks[0], masks[1])


def test_the_share_of_hard_gates_is_as_asked_and_drawn_anew_each_iteration() -> None:
    drawn = [hard_gates(0.3, 100_000, seed=1, iteration=i) for i in (0, 1)]
    for one in drawn:
        assert abs(one.float().mean().item() - 0.3) <= 0.01
    assert abs((drawn[0] & drawn[1]).float().mean().item() - 0.09) <= 0.01
    assert torch.equal(drawn[0], hard_gates(0.3, 100_000, seed=1, iteration=0))
    assert hard_gates(1, 9, seed=0, iteration=0).all()
    assert not hard_gates(0, 9, seed=0, iteration=0).any()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="hard_share is 2: give a share"):
        hard_gates(2, 9, seed=0, iteration=0)
    with pytest.raises(ValueError, match="batch_size is -1: give 1 or more"):
        tasks.checkerboard().source(0, batch_size=-1)
    with pytest.raises(ValueError, match="are 64, 3 and 1, but Life is learnt from single steps"):
        tasks.game_of_life().scaled(height=64)
    with pytest.raises(ValueError, match="index is None"):
        tasks.checkerboard_async().masks(None, 0, 0)
