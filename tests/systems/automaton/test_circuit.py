"""A circuit, with 64 cells a word, is the hard automaton, which equals plain loops."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.systems.automaton.automaton import LogicCA, LogicCAConfig
from astkit.systems.automaton.circuit import PackedCircuit, from_automaton
from astkit.systems.automaton.tasks import checkerboard_small, fire_masks, game_of_life
from tests.systems.automaton.examples import CONFIGS, drawn, masks_of, trained


def test_a_fresh_automaton_passes_one_wire_on():
    circuit = from_automaton(LogicCA(game_of_life().config))
    assert circuit.ops.tolist() == [3] * circuit.gates
    assert circuit.gates == 2543


def bits(*shape: int, key: int | str = 0) -> torch.Tensor:
    return torch.rand(shape, generator=rng.generator("bits", key)) < 0.5


@given(
    st.sampled_from(sorted(CONFIGS)),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([1, 2, 7, 31, 64, 65, 129]),
    st.integers(0, 2**20),
)
@settings(max_examples=20, deadline=None)
def test_packed_is_the_hard_automaton(name, batch, height, width, key):
    model = trained(CONFIGS[name], key)  # gates of all sixteen kinds
    x = bits(batch, model.config.channels, height, width, key=key)
    masks = masks_of(model.config, 2, x)
    packed = PackedCircuit(from_automaton(model))
    states = packed.trajectory(x, 2, masks)
    for steps in range(3):
        hard = model(x, steps, None if masks is None else masks[:steps], hard=True)
        assert torch.equal(states[steps], hard.bool())
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
def test_circuits_of_gates_that_need_both_inputs_tell_every_grid_apart(config):
    model = drawn(config)
    size, steps = (20, config.channels, 12, 19), 6
    x, masks = bits(*size), None
    if config.fire_rate < 1:
        masks = fire_masks(config.fire_rate, (steps, 1, *size[2:]), range(20), 0, 0)
    hard = model(x.float(), steps, masks, hard=True)
    assert 0.1 < hard.mean() < 0.9
    assert len(torch.unique(hard, dim=0)) == 20
    circuit = from_automaton(model)
    assert circuit.gates == config.gates_per_cell
    assert torch.equal(PackedCircuit(circuit).rollout(x, steps, masks), hard.bool())


@pytest.mark.parametrize("rows", [1, 3])
def test_cells_that_die_are_dead_in_all_channels(rows):
    model, x = drawn(SMALL), bits(3, SMALL.channels, 9, 7).float()
    alive = bits(5, rows, 1, 9, 7, key="alive")
    wanted = x
    for living in alive:
        wanted = model(wanted, 1, hard=True) * living
    packed = PackedCircuit(from_automaton(model))
    assert torch.equal(packed.rollout(x, 5, alive=alive), wanted.bool())
    assert not torch.equal(packed.rollout(x, 5), wanted.bool())


def test_wrong_inputs_are_refused():
    circuit = from_automaton(LogicCA(CONFIGS["periodic"]))
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
