"""64 cells a word or one by one: the same states, whatever the grid, the boundary and the masks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.systems.automaton.circuit import PackedCircuit, from_automaton
from astkit.systems.automaton.tasks import checkerboard_small, fire_masks, life_step
from tests.systems.automaton import circuits


def bits(*shape: int, key: int | str = 0) -> torch.Tensor:
    return torch.rand(shape, generator=rng.generator("bits", key)) < 0.5


@given(
    circuits.circuits(),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([1, 2, 7, 31, 64, 65, 129]),
    st.booleans(),
    st.integers(0, 2**20),
)
@settings(max_examples=20, deadline=None)
def test_packed_equals_cell_by_cell(circuit, batch, height, width, asynchronous, key):
    x = bits(batch, circuit.channels, height, width, key=key)
    masks = bits(2, batch, 1, height, width, key=key + 1) if asynchronous else None
    packed = PackedCircuit(circuit)
    states = packed.trajectory(x, 2, masks)
    wanted = [x.numpy()]
    for step in range(2):
        mask = None if masks is None else masks[step].numpy()
        wanted.append(circuits.step(circuit, wanted[-1], mask))
    np.testing.assert_array_equal(states.numpy(), np.stack(wanted))
    assert torch.equal(packed.rollout(x, 2, masks), states[-1])


@pytest.mark.parametrize(("boundary", "fire_rate"), [("periodic", 1.0), ("zero", 0.6)])
def test_packed_equals_the_hard_rollout_on_100_grids(boundary, fire_rate):
    config = dataclasses.replace(
        checkerboard_small().config, boundary=boundary, fire_rate=fire_rate
    )
    model = circuits.drawn(config, seed=3)  # its rollout neither dies out nor fills the grid
    steps, height, width = 6, 12, 19
    x = bits(100, config.channels, height, width)
    masks = None
    if fire_rate < 1:
        masks = fire_masks(fire_rate, (steps, 1, height, width), range(100), 0, 0)
    hard = model(x.float(), steps, masks, hard=True)
    assert 0.1 < hard.mean() < 0.9
    assert len(torch.unique(hard, dim=0)) == 100  # every grid came to a state of its own
    packed = PackedCircuit(from_automaton(model))
    assert torch.equal(packed.rollout(x, steps, masks), hard.bool())


@pytest.mark.parametrize("rows", [1, 3])
def test_cells_that_die_are_dead_in_all_channels(rows):
    config = checkerboard_small().config
    model, x = circuits.drawn(config, seed=3), bits(3, config.channels, 9, 7).float()
    alive = bits(5, rows, 1, 9, 7, key="alive")
    wanted = x
    for living in alive:
        wanted = model(wanted, 1, hard=True) * living
    packed = PackedCircuit(from_automaton(model))
    assert torch.equal(packed.rollout(x, 5, alive=alive), wanted.bool())
    assert not torch.equal(packed.rollout(x, 5), wanted.bool())
    with pytest.raises(ValueError, match=r"alive has shape \[4, "):
        packed.rollout(x, 5, alive=alive[:4])


def test_life_at_128_for_100_steps():
    x = bits(1, 1, 128, 128)
    states = PackedCircuit(circuits.life()).trajectory(x, 100)
    true = x[0, 0].int()
    for state in states:
        assert torch.equal(state[0, 0].int(), true)
        true = life_step(true)
    assert 0 < true.sum() < 0.5 * true.numel()


def test_wrong_inputs_are_refused():
    grid, mask = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 1, 4, 4)
    for x, steps, masks, message in (
        (torch.zeros(1, 2, 4, 4), 1, None, r"x has shape \[1, 2, 4, 4\]: give \[batch, 1,"),
        (grid + 0.5, 1, None, "x contains values other than 0 and 1"),
        (grid * torch.nan, 1, None, "x contains values other than 0 and 1"),
        (grid, 0, None, "steps is 0: give 1 or more"),
        (grid, 2, mask, r"masks has .* give \[2, 1, 1, 4"),
        (grid, 1, 2 * mask, "masks contains values other"),
    ):
        with pytest.raises(ValueError, match=message):
            PackedCircuit(circuits.life()).rollout(x, steps, masks)
    slow = dataclasses.replace(circuits.life(), fire_rate=0.6)
    with pytest.raises(ValueError, match=r"fire rate is 0.6: draw them"):
        PackedCircuit(slow).rollout(grid, 1)
