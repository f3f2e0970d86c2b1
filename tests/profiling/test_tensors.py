"""Peaks of tensors are exact: known sizes, whatever was there before and is kept for later."""

from __future__ import annotations

import pytest
import torch

from astkit.profiling import peak_tensor_bytes


@pytest.mark.parametrize("size", [1000, 250_000])
def test_a_peak_is_what_is_held_at_once(size: int) -> None:
    def run() -> None:
        first = torch.empty(size)
        both = first + 1
        del first
        torch.empty(size // 2).sum()
        del both

    for _ in range(2):  # the second time the heap has it all
        assert peak_tensor_bytes(run) == pytest.approx(8 * size, rel=0.05)


def test_what_was_there_before_does_not_count() -> None:
    before = torch.ones(500_000)
    assert peak_tensor_bytes(lambda: before.add_(1)) < 10_000
