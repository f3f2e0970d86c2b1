"""The tasks: the truth table, true Life, the checkerboard, samples that depend on keys alone."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.systems.automaton import tasks
from astkit.systems.automaton.tasks import AutomatonTask, life_step


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
def test_samples_depend_on_seed_and_pass_alone(made: Callable[[], AutomatonTask]) -> None:
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
    assert set(torch.cat([batch.x for batch in first]).unique().tolist()) == {0.0, 1.0}


def test_a_fixed_evaluation_is_none_of_the_training_samples() -> None:
    task = tasks.checkerboard_small()
    fixed = task.evaluation()
    assert len(fixed.y) == 16
    assert torch.equal(fixed.x, task.evaluation().x)
    trained = torch.cat([batch.x for batch in task.source(0).batches(0)])
    assert not (trained[:, None] == fixed.x[None]).flatten(2).all(2).any()
    assert len(tasks.game_of_life().evaluation().y) == 512


def test_a_samples_masks_depend_on_its_own_key_alone() -> None:
    task = tasks.checkerboard_async().scaled(height=6, width=7, steps=4)

    def draw(samples: list[int], iteration: int = 0, seed: int = 5) -> torch.Tensor:
        masks = task.masks(torch.tensor(samples), seed, iteration)
        assert masks is not None
        return masks

    masks = draw([3, 8, 1])
    assert masks.shape == (4, 3, 1, 6, 7)
    assert masks.dtype == torch.bool
    assert torch.equal(masks[:, 1:2], draw([8]))
    others = [draw([3]), draw([3], iteration=1), draw([3], seed=6), draw([8])]
    for i, one in enumerate(others):
        assert not any(torch.equal(one, other) for other in others[i + 1 :])
    assert not torch.equal(masks[0], masks[1])
    assert tasks.checkerboard().masks(torch.arange(3), 0, 0) is None


def test_the_share_of_hard_gates_is_as_asked_and_drawn_anew_each_iteration() -> None:
    task = tasks.checkerboard().scaled(hard_share=0.3)
    drawn = torch.stack([torch.as_tensor(task.hard(1, i)) for i in range(40)])
    assert drawn.shape == (40, 3040)
    assert abs(drawn.float().mean().item() - 0.3) <= 0.01
    assert abs((drawn[0] & drawn[1]).float().mean().item() - 0.09) <= 0.02
    assert torch.equal(drawn[0], torch.as_tensor(task.hard(1, 0)))
    assert torch.as_tensor(task.scaled(hard_share=1).hard(0, 0)).all()
    assert tasks.game_of_life().hard(0, 0) is False


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="are 64, 3 and 1, but Life is learnt from single steps"):
        tasks.game_of_life().scaled(height=64)
    for changes, told in (
        ({"hard_share": 2.0}, "hard_share is 2.0: give a share"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0: give a number of 0 or more"),
        ({"steps": 0}, "steps is 0: give a whole number of 1 or more"),
        ({"held_out": 0}, "held_out is 0"),
        ({"every": 2.5}, "every is 2.5"),
    ):
        with pytest.raises(ValueError, match=told):
            tasks.checkerboard_small().scaled(**changes)
    with pytest.raises(ValueError, match="index is None"):
        tasks.checkerboard_async().masks(None, 0, 0)


def test_all_states_of_life_from_a_start_and_the_example_ends_as_one() -> None:
    glider = torch.zeros(6, 6)
    glider[[0, 1, 2, 2, 2], [1, 2, 0, 1, 2]] = 1
    states = tasks.life(glider, 4)
    assert states.shape == (5, 6, 6)
    assert torch.equal(states[4], glider.roll((1, 1), (0, 1)))
    start, steps, end = tasks.game_of_life().example()
    assert torch.equal(end, tasks.life(start[0, 0], steps)[-1])
    assert 0 < end.mean() < 1
