"""The sixteen gates against their truth tables; wiring: different pairs, all inputs read."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit import rng
from astkit.logic_ca import gates, tasks
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.gates import first_kernel, unique_pairs
from tests.logic_ca.reference import OPERATIONS


def test_an_index_is_the_truth_table_read_as_a_number() -> None:
    for index, (c0, c1, c2, c3) in enumerate(gates.BASIS):
        outputs = [c0 + c1 * a + c2 * b + c3 * a * b for a in (0, 1) for b in (0, 1)]
        assert sum(bit << (3 - place) for place, bit in enumerate(outputs)) == index


def test_the_coefficients_are_the_stack_of_operations() -> None:
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(50, 16, dtype=torch.float64, generator=random) * 3
    a, b = torch.rand(2, 50, dtype=torch.float64, generator=random)
    c = gates.coefficients(logits)
    shares = logits.softmax(-1)
    stack = torch.stack([torch.as_tensor(op(a, b)).expand(50) for op in OPERATIONS], -1)
    mixed = c[:, 0] + c[:, 1] * a + c[:, 2] * b + c[:, 3] * a * b
    torch.testing.assert_close(mixed, (shares * stack).sum(-1), rtol=0, atol=1e-12)
    hard = gates.coefficients(logits, hard=True)
    assert [tuple(row) for row in hard.tolist()] == [gates.BASIS[i] for i in logits.argmax(-1)]
    some = torch.rand(50, generator=random) < 0.5  # hard, with the gradients of soft ones
    soft, mixed = (gates.coefficients(logits.requires_grad_(), way) for way in (False, some))
    torch.testing.assert_close(mixed, torch.where(some[:, None], hard, soft))
    slopes = [torch.autograd.grad(each[:, 3].sum(), logits) for each in (soft, mixed)]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-12)


def test_a_fresh_gate_passes_its_first_input_through() -> None:
    logits = gates.initial_logits(5, 2, first=gates.PAPERS_FIRST_LOGIT)
    assert logits.shape == (5, 2, 16)
    assert abs(logits.softmax(-1)[0, 0, gates.PASS_THROUGH].item() - 0.99932) < 1e-5
    assert gates.coefficients(logits, hard=True)[0, 0].tolist() == [0, 1, 0, 0]
    assert gates.initial_logits(3)[:, gates.PASS_THROUGH].tolist() == [gates.FIRST_LOGIT] * 3


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
    even, odd, apart = [(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (5, 6)], [(0, 2), (1, 3), (2, 4)]
    assert sorted(pairs_of(table)) == sorted([*even, *odd, *apart, (3, 5)])
    assert pairs_of(table) != [*even, *odd, *apart, (3, 5)]
    assert pairs_of(table) != pairs_of(unique_pairs(7, 10, rng.generator(4)))
    assert pairs_of(table) == pairs_of(unique_pairs(7, 10, rng.generator(3)))


def test_the_first_kernel_layer_compares_each_neighbour_with_the_centre() -> None:
    a, b = first_kernel(rng.generator(0)).tolist()
    assert sorted(a) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert a != sorted(a)
    assert b == [4] * 8


def test_in_each_task_all_inputs_are_read() -> None:
    for task in (tasks.game_of_life, tasks.checkerboard_async, tasks.checkerboard_small):
        model, config = LogicCA(task().config), task().config
        inputs = [9, *config.kernel_layers[:-1], config.update_inputs, *config.update_layers[:-1]]
        for table, count in zip([*model.kernel_wires, *model.update_wires], inputs, strict=True):
            assert len(set(pairs_of(table))) == table.shape[1]
            assert set(table.flatten().tolist()) == set(range(count))
