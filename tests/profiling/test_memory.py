"""Peak memory against allocations of known size."""

import mmap
from pathlib import Path

import pytest
import torch

from astkit.profiling import peak_memory, peak_tensor_bytes

MIB = 2**20


def test_the_peak_of_the_process_includes_freed_memory():
    before, statm = peak_memory(), Path("/proc/self/statm")
    if before is None or not statm.exists():
        pytest.skip("the system keeps no peak")
    now = int(statm.read_text().split()[1]) * mmap.PAGESIZE
    size = before - now + 64 * MIB
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    torch.frombuffer(pages, dtype=torch.uint8).fill_(1)  # touched pages alone are resident
    pages.close()
    # the kernel updates its counters late, so some pages may be missing
    assert 56 * MIB < peak_memory() - before < 80 * MIB


def test_the_peak_of_an_accelerator_is_that_of_its_allocator(monkeypatch):
    known = {"allocated_bytes.all.peak": 5 * MIB}
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda device: known)
    assert peak_memory("cuda:1") == 5 * MIB
    known.clear()
    assert peak_memory("cuda:1") is None


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
