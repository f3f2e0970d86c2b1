"""A circuit, with 64 cells a word or one by one."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.systems.automaton.automaton import LogicCA, LogicCAConfig
from astkit.systems.automaton.circuit import PackedCircuit, from_automaton
from astkit.systems.automaton.tasks import checkerboard_small, fire_masks, game_of_life
from tests.systems.automaton import circuits


def test_a_fresh_automaton_passes_one_wire_on():
    circuit = from_automaton(LogicCA(game_of_life().config))
    assert circuit.by_op()[3] == circuit.gates == 2543


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


SMALL = checkerboard_small().config


@pytest.mark.parametrize(
    "config",
    [
        dataclasses.replace(SMALL, boundary="periodic"),
        dataclasses.replace(SMALL, fire_rate=0.6),
        LogicCAConfig(3, 2, (8, 5), (20, 30, 15, 8, 4, 3), seed=5),
    ],
)
def test_the_exported_circuit_is_the_hard_automaton(config):
    model = circuits.drawn(config, seed=3)
    size, steps = (20, config.channels, 12, 19), 6
    x, masks = bits(*size), None
    if config.fire_rate < 1:
        masks = fire_masks(config.fire_rate, (steps, 1, *size[2:]), range(20), 0, 0)
    hard = model(x.float(), steps, masks, hard=True)
    assert 0.1 < hard.mean() < 0.9
    assert len(torch.unique(hard, dim=0)) == 20  # every grid came to a state of its own
    circuit = from_automaton(model)
    assert circuit.gates == config.gates_per_cell
    assert torch.equal(PackedCircuit(circuit).rollout(x, steps, masks), hard.bool())


@pytest.mark.parametrize("rows", [1, 3])
def test_cells_that_die_are_dead_in_all_channels(rows):
    model, x = circuits.drawn(SMALL, seed=3), bits(3, SMALL.channels, 9, 7).float()
    alive = bits(5, rows, 1, 9, 7, key="alive")
    wanted = x
    for living in alive:
        wanted = model(wanted, 1, hard=True) * living
    packed = PackedCircuit(from_automaton(model))
    assert torch.equal(packed.rollout(x, 5, alive=alive), wanted.bool())
    assert not torch.equal(packed.rollout(x, 5), wanted.bool())


def test_wrong_inputs_are_refused():
    circuit = circuits.Builder(1).done([4])
    grid, mask = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 1, 4, 4)
    for x, steps, masks, message in (
        (torch.zeros(1, 2, 4, 4), 1, None, r"x has shape \[1, 2, 4, 4\]: give \[batch, 1,"),
        (grid + 0.5, 1, None, "x contains values other than 0 and 1"),
        (grid, 2, mask, r"masks has .* give \[2, 1, 1, 4"),
        (grid, 1, 2 * mask, "masks contains values other"),
    ):
        with pytest.raises(ValueError, match=message):
            PackedCircuit(circuit).rollout(x, steps, masks)
    for shape in ((2, 1, 1, 4, 4), (1, 2, 1, 4, 4), (1, 1, 1, 1, 1), (1, 4)):
        with pytest.raises(ValueError, match=r"alive has .* give \[1, 1, 1, 4, 4\] for all"):
            PackedCircuit(circuit).rollout(grid, 1, alive=torch.ones(shape))
    slow = dataclasses.replace(circuit, fire_rate=0.6)
    with pytest.raises(ValueError, match=r"fire rate is 0.6: draw them"):
        PackedCircuit(slow).rollout(grid, 1)
