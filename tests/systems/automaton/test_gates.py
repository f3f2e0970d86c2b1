"""The sixteen gates against their truth tables; wiring: different pairs, all inputs read."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.systems.automaton import automaton
from astkit.systems.automaton.automaton import unique_pairs


def test_hard_gates_have_the_gradients_of_soft_ones() -> None:
    random = torch.Generator().manual_seed(2)
    logits = torch.randn(50, 16, generator=random, requires_grad=True)
    some = torch.rand(50, generator=random) < 0.5
    soft, hard, mixed = (automaton.coefficients(logits, way) for way in (False, True, some))
    assert [tuple(row) for row in hard.tolist()] == [automaton.BASIS[i] for i in logits.argmax(-1)]
    assert torch.equal(mixed, torch.where(some[:, None], hard, soft))
    wanted, *slopes = (torch.autograd.grad(c[:, 3].sum(), logits)[0] for c in (soft, hard, mixed))
    for slope in slopes:
        torch.testing.assert_close(slope, wanted)


def pairs_of(table: torch.Tensor) -> list[tuple[int, int]]:
    return [tuple(pair) for pair in table.T.tolist()]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_pairs_differ_and_lie_in_range(data: st.DataObject) -> None:
    inputs = data.draw(st.integers(2, 40))
    outputs = data.draw(st.integers(-(-inputs // 2), inputs * (inputs - 1) // 2))
    table = unique_pairs(inputs, outputs, rng.generator(data.draw(st.integers(0, 9))))
    assert table.shape == (2, outputs)
    assert len(set(pairs_of(table))) == outputs
    assert all(0 <= a < b < inputs for a, b in pairs_of(table))
    # the last of an odd number of inputs is read by the last pair of neighbours
    last = {inputs - 1} if inputs % 2 and outputs < inputs - 1 else set()
    assert set(table.flatten().tolist()) == set(range(inputs)) - last


def test_the_pairs_are_the_sources_in_an_order_that_the_seed_decides() -> None:
    table = unique_pairs(7, 10, rng.generator(3))
    near, far = [(0, 1), (2, 3), (4, 5), (1, 2), (3, 4), (5, 6)], [(0, 2), (1, 3), (2, 4), (3, 5)]
    assert sorted(pairs_of(table)) == sorted([*near, *far])
    assert pairs_of(table) != [*near, *far]
    assert pairs_of(table) != pairs_of(unique_pairs(7, 10, rng.generator(4)))
