"""Settings are made for a block and put back."""

import multiprocessing
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from astkit import system
from astkit.system import tuned

GLIBC = platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"
needs_glibc = pytest.mark.skipif(not GLIBC, reason="glibc on Linux only")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*system._SET_BY_USER, "GLIBC_TUNABLES", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def test_threads_are_capped_at_the_processors_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(system, "allowed_cpus", lambda: 2)
    for threads, expected in ((1, 1), (2, 2), (64, 2), (None, min(before, 2))):
        with tuned(threads):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == before
    with pytest.raises(KeyError), tuned(1, keep_memory=True):
        raise KeyError


def faults() -> int:
    """Page faults of writing three blocks of 40 MiB, once the heap has settled."""
    counts = []
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        _ = [b"x" * (40 << 20) for _ in range(3)]
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counts[-3:])


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measured(answers: Any) -> None:
    """In a process of its own: faults before and within a block, bytes given back."""
    before = faults()
    with tuned(keep_memory=True):
        inside, held = faults(), resident()
    answers.put((before, inside, held - resident()))


@needs_glibc
def test_memory_that_is_kept_costs_no_page_faults() -> None:
    context = multiprocessing.get_context("spawn")  # a fork has the allocator of earlier tests
    answers = context.SimpleQueue()
    child = context.Process(target=measured, args=(answers,))
    child.start()
    before, inside, given_back = answers.get()
    child.join()
    assert before > 0.9 * 3 * 40 * 2**20 / os.sysconf("SC_PAGE_SIZE") or huge_pages()
    assert inside < before / 20
    assert given_back > 100 << 20


def huge_pages() -> bool:
    """Whether the kernel hands out huge pages unasked, so that faults are few."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.is_file() and "[always]" in setting.read_text()


@needs_glibc
def test_an_allocator_that_is_not_glibcs_or_has_settings_is_left_alone():
    assert system.can_keep_memory()
    for change in (
        lambda m: m.setattr(platform, "system", lambda: "Darwin"),
        lambda m: m.setattr(platform, "libc_ver", lambda: ("", "")),
        lambda m: m.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
        lambda m: m.setenv("MALLOC_TRIM_THRESHOLD_", "1"),
        lambda m: m.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            patch.setattr(system, "_mallopt", pytest.fail)
            assert not system.can_keep_memory()
            with tuned(keep_memory=True):
                pass


@pytest.mark.parametrize("order", ["abcabc", "abcbca", "abccba", "abacbc"])
def test_runs_that_take_turns_leave_the_threads_as_they_were(order: str) -> None:
    before, opened = torch.get_num_threads(), {}
    wanted = {"a": 1, "b": None, "c": 64}
    for name in order:
        if name in opened:
            opened[name].__exit__(None, None, None)
        else:
            opened[name] = tuned(wanted[name])
            opened[name].__enter__()
    assert torch.get_num_threads() == before
