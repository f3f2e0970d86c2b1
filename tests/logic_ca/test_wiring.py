"""Wiring: different pairs, all inputs read, in an order that the seed alone decides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astkit import rng
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.wiring import first_kernel, unique, wiring_hash

PRESETS = [
    LogicCAConfig.game_of_life(),
    LogicCAConfig.checkerboard(),
    LogicCAConfig.checkerboard_async(),
    LogicCAConfig.checkerboard_small(),
]


def pairs_of(table: torch.Tensor) -> list[tuple[int, int]]:
    return [tuple(pair) for pair in table.T.tolist()]


@given(st.data())
def test_pairs_differ_and_lie_in_range(data: st.DataObject) -> None:
    inputs = data.draw(st.integers(2, 40))
    outputs = data.draw(st.integers(-(-inputs // 2), inputs * (inputs - 1) // 2))
    table = unique(inputs, outputs, rng.generator(data.draw(st.integers(0, 9))))
    assert table.shape == (2, outputs)
    assert len(set(pairs_of(table))) == outputs
    assert all(0 <= a < b < inputs for a, b in pairs_of(table))
    # of an odd number the last one comes with the last pair of neighbours
    last = {inputs - 1} if inputs % 2 and outputs < inputs - 1 else set()
    assert set(table.flatten().tolist()) == set(range(inputs)) - last


def test_the_pairs_are_the_sources_and_their_order_is_not() -> None:
    table = unique(7, 10, rng.generator(3))
    even, odd, apart = [(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (5, 6)], [(0, 2), (1, 3), (2, 4)]
    assert sorted(pairs_of(table)) == sorted([*even, *odd, *apart, (3, 5)])
    assert pairs_of(table) != [*even, *odd, *apart, (3, 5)]
    assert pairs_of(table) != pairs_of(unique(7, 10, rng.generator(4)))
    assert pairs_of(table) == pairs_of(unique(7, 10, rng.generator(3)))


@pytest.mark.parametrize(("outputs", "told"), [(3, "at least 4"), (22, "only 21 different pairs")])
def test_a_width_that_cannot_be_wired_is_refused(outputs: int, told: str) -> None:
    with pytest.raises(ValueError, match=f"outputs is {outputs}.*{told}"):
        unique(7, outputs, rng.generator(0))


def test_the_first_kernel_layer_compares_each_neighbour_with_the_centre() -> None:
    a, b = first_kernel(rng.generator(0)).tolist()
    assert sorted(a) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert a != sorted(a)
    assert b == [4] * 8


@pytest.mark.parametrize("config", PRESETS, ids=lambda c: str(sum(c.gates)))
def test_in_each_preset_all_inputs_are_read(config: LogicCAConfig) -> None:
    model = LogicCA(config)
    inputs = [9, *config.kernel_layers[:-1], config.update_inputs, *config.update_layers[:-1]]
    for table, count in zip([*model.kernel_wires, *model.update_wires], inputs, strict=True):
        assert len(set(pairs_of(table))) == table.shape[1]
        assert set(table.flatten().tolist()) == set(range(count))


def test_the_hash_is_that_of_the_wiring() -> None:
    small = LogicCAConfig.checkerboard_small
    one, same, other = LogicCA(small(1)), LogicCA(small(1)), LogicCA(small(2))
    assert one.wiring_hash == same.wiring_hash != other.wiring_hash
    tables = [*one.kernel_wires, *one.update_wires]
    assert wiring_hash(tables[::-1]) != one.wiring_hash == wiring_hash(tables)
