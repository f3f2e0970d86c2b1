"""The sixteen gates: each is its truth table, and four coefficients say all there is of it."""

from __future__ import annotations

import torch

from astkit.logic_ca import gates
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


def test_hard_coefficients_are_those_of_the_likeliest_gate() -> None:
    logits = torch.randn(40, 3, 16, generator=torch.Generator().manual_seed(2))
    c = gates.coefficients(logits, hard=True)
    for row, chosen in zip(c.flatten(0, 1).tolist(), logits.argmax(-1).flatten(), strict=True):
        assert tuple(row) == gates.BASIS[chosen]


def test_a_fresh_gate_hands_its_first_input_on() -> None:
    logits = gates.initial_logits(5, 2, first=gates.PAPERS_FIRST_LOGIT)
    assert logits.shape == (5, 2, 16)
    assert abs(logits.softmax(-1)[0, 0, gates.PASS_THROUGH].item() - 0.99932) < 1e-5
    assert gates.coefficients(logits, hard=True)[0, 0].tolist() == [0, 1, 0, 0]
    assert gates.initial_logits(3)[:, gates.PASS_THROUGH].tolist() == [gates.FIRST_LOGIT] * 3
