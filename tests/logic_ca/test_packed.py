"""64 cells a word or one by one: the same states, whatever the grid, the boundary and the masks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.logic_ca.circuit import FALSE, TRUE, from_automaton
from astkit.logic_ca.packed import PackedCircuit, _gate_calls
from astkit.logic_ca.pruning import prune
from astkit.logic_ca.tasks import checkerboard_small, fire_masks, life_step
from tests.logic_ca import circuits
from tests.logic_ca.circuits import Builder

WIDTHS = [1, 2, 7, 31, 64, 65, 129]


def bits(*shape: int, key: int | str = 0) -> torch.Tensor:
    return torch.rand(shape, generator=rng.generator("bits", key)) < 0.5


def slow(circuit, x, masks):
    """All states, by `circuits.step`."""
    states = [x.numpy()]
    for mask in masks:
        states.append(circuits.step(circuit, states[-1], None if mask is None else mask.numpy()))
    return np.stack(states)


@given(
    circuits.circuits(),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(WIDTHS),
    st.booleans(),
    st.integers(0, 2**20),
)
@settings(max_examples=20, deadline=None)
def test_packed_equals_cell_by_cell(circuit, batch, height, width, asynchronous, key):
    x = bits(batch, circuit.channels, height, width, key=key)
    masks = bits(2, batch, 1, height, width, key=key + 1) if asynchronous else None
    packed = PackedCircuit(circuit)
    states = packed.trajectory(x, 2, masks)
    wanted = slow(circuit, x, [None, None] if masks is None else masks)
    np.testing.assert_array_equal(states.numpy(), wanted)
    torch.testing.assert_close(packed.rollout(x, 2, masks), states[-1], rtol=0, atol=0)


@pytest.mark.parametrize("boundary", ["periodic", "zero"])
@pytest.mark.parametrize("position", [0, 1, 4, 8])
def test_each_neighbour_at_each_width(boundary, position):
    circuit = Builder(2).done([9 + position, position], boundary)
    packed, (dy, dx) = PackedCircuit(circuit), divmod(position, 3)
    for width in WIDTHS:
        for batch in (1, 2, 5):
            x = bits(batch, 2, 3, width, key=width)
            wide = np.pad(
                x.numpy(),
                [(0, 0), (0, 0), (1, 1), (1, 1)],
                mode="wrap" if boundary == "periodic" else "constant",
            )
            wanted = wide[:, ::-1, dy : dy + 3, dx : dx + width]
            np.testing.assert_array_equal(packed.rollout(x, 1).numpy(), wanted)


def automaton(config):
    """A random automaton whose hard rollout neither dies out nor fills the grid."""
    model = circuits.drawn(config, seed=3)
    return model, from_automaton(model)


@pytest.mark.parametrize(("boundary", "fire_rate"), [("periodic", 1.0), ("zero", 0.6)])
def test_packed_equals_the_hard_rollout_on_100_grids(boundary, fire_rate):
    config = dataclasses.replace(
        checkerboard_small().config, boundary=boundary, fire_rate=fire_rate
    )
    model, circuit = automaton(config)
    steps, height, width = 6, 12, 19
    x = bits(100, config.channels, height, width)
    masks = fire_masks(fire_rate, steps, range(100), height, width, seed=0, iteration=0)
    given = None if fire_rate == 1 else masks
    hard = model(x.float(), steps, given, hard=True)
    assert 0.1 < hard.mean() < 0.9
    assert len(torch.unique(hard, dim=0)) == 100  # every grid came to a state of its own
    packed = PackedCircuit(circuit)
    assert torch.equal(packed.rollout(x, steps, given), hard.bool())
    for n in (0, 63, 99):
        alone = packed.rollout(x[n : n + 1], steps, None if given is None else given[:, n : n + 1])
        assert torch.equal(alone[0], hard[n].bool())


@pytest.mark.parametrize("rows", [1, 3])
def test_cells_that_die_are_dead_in_all_channels(rows):
    config = checkerboard_small().config
    (model, circuit), x = automaton(config), bits(3, config.channels, 9, 7).float()
    alive = bits(5, rows, 1, 9, 7, key="alive")
    wanted = x
    for living in alive:
        wanted = model(wanted, 1, hard=True) * living
    packed = PackedCircuit(circuit)
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


def test_outputs_of_constants_wires_and_shared_gates():
    make = Builder(5)
    gate = make.op(6, 4, 13)
    circuit = make.done([FALSE, TRUE, gate, gate, 4])
    x = bits(1, 5, 4, 9)
    wanted = torch.stack(
        [
            torch.zeros(4, 9, dtype=torch.bool),
            torch.ones(4, 9, dtype=torch.bool),
            x[0, 0] ^ x[0, 1],
            x[0, 0] ^ x[0, 1],
            x[0, 0],
        ]
    )
    assert torch.equal(PackedCircuit(circuit).rollout(x, 1)[0], wanted)


def test_buffers_are_used_again():
    """As many as there are wires in use at once, and one to write to, however many gates."""
    make = Builder(1)
    wire = make.op(6, 0, 1)
    for number in range(200):
        wire = make.op(1 + 6 * (number % 2), wire, number % 9)
    circuit = prune(make.done([wire]))
    calls = _gate_calls(circuit, [np.zeros(2, np.uint64)] * 9, np.zeros((1, 2), np.uint64))
    assert circuit.gates > 100
    assert len({id(arguments[-1]) for function, arguments in calls[:-1]}) == 2


def test_wrong_inputs_are_refused():
    grid, mask = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 1, 4, 4)
    for x, steps, masks, message in (
        (torch.zeros(1, 2, 4, 4), 1, None, r"x has shape \[1, 2, 4, 4\]: give \[batch, 1,"),
        (torch.zeros(1, 4, 4), 1, None, r"x has shape \[1, 4, 4\]"),
        (grid[:0], 1, None, "none of them 0"),
        (grid + 0.5, 1, None, "x contains values other than 0 and 1"),
        (grid * torch.nan, 1, None, "x contains values other than 0 and 1"),
        (grid, -1, None, "steps is -1: give 0 or more"),
        (grid, 2, mask, r"masks has .* give \[2, 1, 1, 4"),
        (grid, 1, mask[0], "masks has shape"),
        (grid, 1, 2 * mask, "masks contains values other"),
    ):
        with pytest.raises(ValueError, match=message):
            PackedCircuit(circuits.life()).rollout(x, steps, masks)
    config = dataclasses.replace(checkerboard_small().config, fire_rate=0.6)
    with pytest.raises(ValueError, match=r"fire rate is 0.6: draw them"):
        PackedCircuit(automaton(config)[1]).rollout(bits(1, 8, 4, 4), 1)
