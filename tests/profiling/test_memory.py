"""Peak memory against allocations of known size."""

import pytest
import torch

from astkit.profiling import peak_tensor_bytes


def test_the_peak_of_a_call_is_that_of_its_tensors():
    size = 1_000_000

    def run():
        both = torch.ones(size), torch.ones(size)
        del both

    for _ in range(2):  # the second time the heap has it all
        assert peak_tensor_bytes(run) == pytest.approx(8 * size, rel=0.05)
    before = torch.ones(size)
    assert peak_tensor_bytes(lambda: before.add_(1)) < 10_000
    with pytest.raises(RuntimeError, match="within another profile"):
        peak_tensor_bytes(lambda: peak_tensor_bytes(run))
