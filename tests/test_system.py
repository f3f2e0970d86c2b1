"""Settings are made for a block, recorded with their reasons, and put back."""

from __future__ import annotations

import json
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
    for name in (*system._OWN_SETTINGS, "GLIBC_TUNABLES", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    before = state()
    yield
    assert state() == before


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the allocator was told, in place of telling it."""
    calls: list[bool] = []

    def keep(memory: bool) -> None:
        calls.append(memory)
        system._raised = memory

    monkeypatch.setattr(system, "_keep_memory", keep)
    return calls


def state() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.backends.cudnn.benchmark,
        system._raised,
    )


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
    """In a process of its own: faults before and within a block, bytes given back, the record."""
    before = faults()
    with tuned(allocator="auto") as record:
        inside, held = faults(), resident()
    answers.put((before, inside, held - resident(), record["allocator"]))


def test_the_record_is_plain_and_gives_a_reason_for_each_setting() -> None:
    with tuned() as record:
        assert json.loads(json.dumps(record)) == record
        assert set(record) == {"threads", "allocator", "cudnn_benchmark"}
        assert all(entry["why"] for entry in record.values())


def test_threads_are_capped_at_the_processors_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "allowed_cpus", lambda: 2)
    for wanted, expected in ((1, 1), (2, 2), (64, 2)):
        with tuned(threads=wanted) as record:
            assert torch.get_num_threads() == record["threads"]["value"] == expected
            assert ("2 processors only" in record["threads"]["why"]) == (wanted > 2)


def test_auto_threads_are_torchs_own_within_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(system, "allowed_cpus", lambda: before + 1)
    with tuned() as record:
        assert torch.get_num_threads() == record["threads"]["value"] == before
    torch.set_num_threads(3)
    try:
        monkeypatch.setattr(system, "allowed_cpus", lambda: 2)
        with tuned() as record:
            assert torch.get_num_threads() == record["threads"]["value"] == 2
        assert torch.get_num_threads() == record["threads"]["before"] == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity here")
def test_the_processors_are_those_of_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 7})
    assert system.allowed_cpus() == 3


def test_everything_is_put_back_after_an_error() -> None:
    before = state()

    def interrupted() -> None:
        with tuned(threads=1, allocator="on", fixed_shapes=True, device="cuda"):
            assert torch.backends.cudnn.benchmark
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert state() == before


@needs_glibc
def test_memory_that_is_kept_costs_no_page_faults() -> None:
    context = multiprocessing.get_context("spawn")  # a fork has the allocator of earlier tests
    answers = context.SimpleQueue()
    child = context.Process(target=measured, args=(answers,))
    child.start()
    before, inside, given_back, record = answers.get()
    child.join()
    assert record["value"] == "on"
    assert before > 0.9 * 3 * 40 * 2**20 / os.sysconf("SC_PAGE_SIZE") or huge_pages()
    assert inside < before / 20
    assert given_back > 100 << 20


def huge_pages() -> bool:
    """Whether the kernel hands out huge pages unasked, so that faults are few."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.is_file() and "[always]" in setting.read_text()


@needs_glibc
def test_blocks_may_nest(told: list[bool]) -> None:
    with tuned(allocator="on"):
        with tuned(allocator="off") as record:  # one process has one malloc
            assert record["allocator"]["value"] == "on"
            assert "outer context" in record["allocator"]["why"]
        assert told == [True]
    assert told == [True, False]


@needs_glibc
def test_where_nothing_can_be_done_the_record_says_why(told: list[bool]) -> None:
    for change, reason in (
        (lambda m: m.setattr(platform, "system", lambda: "Darwin"), "this is Darwin"),
        (lambda m: m.setattr(platform, "libc_ver", lambda: ("", "")), "only glibc"),
        (lambda m: m.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"), "LD_PRELOAD"),
        (lambda m: m.setenv("MALLOC_TRIM_THRESHOLD_", "1"), "MALLOC_TRIM_THRESHOLD_"),
        (lambda m: m.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1"), "GLIBC_TUNABLES"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            with tuned(allocator="on") as record:
                assert record["allocator"]["value"] == "off"
                assert reason in record["allocator"]["why"]
    assert told == []


@needs_glibc
def test_auto_keeps_memory_in_runs_on_the_cpu_alone(told: list[bool]) -> None:
    with tuned(device="cuda") as record:
        assert record["allocator"] == {"value": "off", "why": "cuda memory is allocated by torch"}
    with tuned() as record:
        assert record["allocator"]["value"] == "on"
    with tuned(allocator="off") as record:
        assert record["allocator"] == {"value": "off", "why": "as asked"}
    assert told == [True, False]


def test_cudnn_times_its_algorithms_for_fixed_shapes_on_cuda() -> None:
    for options, expected in (
        ({"device": "cuda", "fixed_shapes": True}, True),
        ({"device": "cuda"}, False),
        ({"device": "cpu", "fixed_shapes": True}, False),
    ):
        with tuned(**options) as record:  # type: ignore[arg-type]
            assert torch.backends.cudnn.benchmark is record["cudnn_benchmark"]["value"] is expected


def test_cudnn_times_nothing_where_algorithms_are_to_be_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with tuned(device="cuda", fixed_shapes=True) as record:
            assert record["cudnn_benchmark"]["value"] is False
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("before", [False, True])
def test_deterministic_cudnn_keeps_its_benchmark_setting(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "deterministic", True)
        patch.setattr(torch.backends.cudnn, "benchmark", before)
        with tuned(device="cuda", fixed_shapes=not before) as record:
            assert torch.backends.cudnn.benchmark is record["cudnn_benchmark"]["value"] is before


def test_a_wrong_setting_is_refused_before_anything_is_set() -> None:
    before = state()
    for options, sentence in (
        ({"threads": 0}, "threads is 0: give 'auto'"),
        ({"threads": True}, "threads is True"),
        ({"threads": "8"}, "threads is '8'"),
        ({"allocator": "yes"}, "allocator is 'yes': choose"),
    ):
        with pytest.raises(ValueError, match=sentence), tuned(**options):  # type: ignore[arg-type]
            pass
        assert state() == before
