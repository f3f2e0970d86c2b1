"""Peak memory against allocations of known size, and against a plain maximum over a history."""

from __future__ import annotations

import mmap
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.profiling import memory, peak_memory

MIB = 2**20


def touched(mebibytes):
    """A tensor of that size, each page new and written: a used heap has some to spare."""
    pages = mmap.mmap(-1, mebibytes * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.float32).fill_(1)


def test_a_peak_includes_freed_memory_and_excludes_what_came_before():
    with peak_memory() as peak:
        pass
    if peak.reading.bytes is None:
        pytest.skip(f"the kernel's peak cannot be reset here: {peak.reading.reason}")
    tensor = touched(256)
    del tensor
    with peak_memory() as peak:
        tensor = touched(100)
        del tensor
    reading = peak.reading
    assert (reading.backend, reading.reason) == ("VmHWM", None)
    # the kernel updates its counters late, so some pages may be missing
    assert 96 * MIB < reading.grown < 132 * MIB
    assert reading.grown == reading.bytes - reading.baseline


# --- nested blocks


class Scripted:
    """A source with a hand-made level."""

    backend = "scripted"

    def __init__(self):
        self.level = self.top = 0

    def use(self, level):
        self.level, self.top = level, max(self.top, level)

    def now(self):
        return self.level

    def reset(self):
        self.top = self.level

    def peak(self):
        return self.top


actions = st.one_of(
    st.integers(0, 10**9).map(lambda level: ("use", level)),
    st.just(("open", 0)),
    st.integers(0, 5).map(lambda place: ("close", place)),
)


@settings(max_examples=50)
@given(st.lists(actions, max_size=30))
def test_every_block_has_its_own_peak(script):
    source, level = Scripted(), 0
    spans: list[tuple] = []  # block, the levels within it, whether it is open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_open", [])  # a run abandoned by another test may have a block
        patch.setattr(memory, "_source", lambda device: source)
        for action, number in script:
            running = [span for span in spans if span[2]]
            if action == "use":
                level = number
                source.use(level)
                for span in running:
                    span[1].append(level)
            elif action == "open":
                spans.append([peak_memory().__enter__(), [level], True])
            elif running:
                span = running[number % len(running)]
                span[0].__exit__(None, None, None)
                span[2] = False
            for block, levels, _ in spans:
                assert block.reading.bytes == max(levels)
                assert block.reading.baseline == levels[0]
        for block, _, running in spans:
            if running:
                block.__exit__(None, None, None)
        assert not memory._open


def test_an_error_ends_the_block(monkeypatch):
    source = Scripted()
    monkeypatch.setattr(memory, "_source", lambda device: source)

    def fail():
        source.use(7)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"), peak_memory() as peak:
        fail()
    source.use(9)
    assert peak.reading.bytes == 7


def test_before_the_block_there_is_no_reading():
    reading = peak_memory().reading
    assert (reading.bytes, reading.baseline, reading.grown) == (None, None, None)
    assert "not begun" in reading.reason


def test_where_the_kernel_refuses_there_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_open", [])
    (tmp_path / "status").write_text("Name: python")
    for folder, reason in ((tmp_path / "no", "No such file"), (tmp_path, "has no VmRSS")):
        monkeypatch.setattr(memory, "PROC", folder)
        with peak_memory() as peak:
            pass
        reading = peak.reading
        assert (reading.bytes, reading.baseline, reading.backend) == (None, None, None)
        assert reading.reason.startswith("peak memory cannot be measured here: ")
        assert reason in reading.reason


# --- accelerators


def test_a_device_that_is_not_there_has_a_reason(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    for device in ("cuda", "cuda:1", "mps", "xpu"):
        with peak_memory(device) as peak:
            pass
        assert peak.reading.bytes is None
        assert f"torch finds no {torch.device(device).type} device" in peak.reading.reason


@pytest.fixture
def accelerator(monkeypatch):
    """torch as it would be with one GPU, whose allocator is hand-made."""
    state = SimpleNamespace(now=10, peak=50, stats={"allocated_bytes.all.peak": 50})

    def reset(device):
        state.peak = state.now

    for name, function in {
        "is_available": lambda: True,
        "current_accelerator": lambda: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "memory_stats": lambda device: state.stats,
        "memory_allocated": lambda device: state.now,
        "max_memory_allocated": lambda device: state.peak,
        "reset_peak_memory_stats": reset,
    }.items():
        monkeypatch.setattr(torch.accelerator, name, function)
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    return state


def test_torchs_own_statistics_are_read(accelerator):
    with peak_memory("cuda") as outer:
        accelerator.peak = 40
        with peak_memory("cuda:0") as inner:  # the same device by another name
            accelerator.peak = 25
    assert (inner.reading.bytes, inner.reading.baseline) == (25, 10)
    assert (outer.reading.bytes, outer.reading.baseline) == (40, 10)
    assert (outer.reading.backend, outer.reading.reason) == ("torch.accelerator", None)


def test_an_allocator_without_statistics_is_no_zero(accelerator):
    accelerator.stats = {}  # torch then says that 0 bytes are in use
    with peak_memory("cuda") as peak:
        pass
    assert peak.reading.bytes is None
    assert "no memory statistics" in peak.reading.reason


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="torch sees no accelerator (GPU)")
def test_an_accelerators_peak_holds_what_was_freed():
    device = torch.accelerator.current_accelerator()
    with peak_memory(device) as peak:
        tensor = torch.ones(64 * MIB // 4, device=device)
        del tensor
    assert peak.reading.grown == 64 * MIB
