"""Peak memory against allocations of known size, and against a plain maximum over a history."""

from __future__ import annotations

import mmap
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astkit.files import write_atomic
from astkit.profiling import memory, peak_memory, resident

MIB = 2**20
linux = pytest.mark.skipif(resident() is None, reason="no /proc/self/status here")


def touched(mebibytes):
    """A tensor of that size, each page new and written: a used heap has some to spare."""
    pages = mmap.mmap(-1, mebibytes * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.float32).fill_(1)


# --- the CPU's own


@linux
@pytest.mark.parametrize("size", [64, 200])
def test_a_peak_holds_what_was_freed_before_the_end_and_forgets_what_came_before(size):
    if memory._cpu_source().backend != "VmHWM":
        pytest.skip("the kernel's peak cannot be set back here")
    tensor = touched(256)
    del tensor
    with peak_memory() as peak:
        tensor = touched(size)
        del tensor
    reading = peak.reading
    assert (reading.backend, reading.reason, reading.reserved) == ("VmHWM", None, None)
    # the kernel adds its counters up by and by, so some pages may be missing
    assert (size - 4) * MIB < reading.grown < (size + 32) * MIB
    assert reading.grown == reading.bytes - reading.baseline


@linux
def test_resident_memory_tells_shared_from_anonymous():
    before = resident()
    tensor = touched(64)
    plain = resident()
    assert 60 * MIB < plain.anonymous - before.anonymous < 96 * MIB
    shared = touched(64).share_memory_()
    after = resident()
    assert 60 * MIB < after.shared - plain.shared < 96 * MIB
    assert after.total == pytest.approx(after.anonymous + after.file + after.shared, rel=0.01)
    assert len(tensor) == len(shared)


# --- blocks that lie in one another


class Scripted:
    """A source with a hand-made level."""

    backend, note = "scripted", None

    def __init__(self):
        self.level = self.top = 0
        self.closed = 0

    def use(self, level):
        self.level, self.top = level, max(self.top, level)

    def now(self):
        return self.level

    def reset(self):
        self.top = self.level

    def peaks(self):
        return self.top, 2 * self.top

    def close(self):
        self.closed += 1


actions = st.one_of(
    st.integers(0, 10**9).map(lambda level: ("use", level)),
    st.just(("open", 0)),
    st.integers(0, 5).map(lambda place: ("close", place)),
)


@given(st.lists(actions, max_size=30))
def test_every_block_has_its_own_peak(script):
    source, level = Scripted(), 0
    spans: list[tuple] = []  # block, the levels within it, whether it is open
    with pytest.MonkeyPatch.context() as patch:
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
                assert block.reading.reserved == 2 * max(levels)
        for block, _, running in spans:
            if running:
                block.__exit__(None, None, None)
    assert not memory._open
    assert bool(source.closed) == bool(spans)


def test_an_error_ends_the_block_and_the_last_block_closes_its_source(monkeypatch):
    source = Scripted()
    monkeypatch.setattr(memory, "_source", lambda device: source)

    def fail():
        source.use(7)
        raise RuntimeError("on purpose")

    with peak_memory():
        with pytest.raises(RuntimeError, match="on purpose"), peak_memory() as peak:
            fail()
        source.use(9)
        assert (peak.reading.bytes, source.closed) == (7, 0)
    assert source.closed == 1


def test_before_the_block_there_is_no_reading():
    reading = peak_memory().reading
    assert (reading.bytes, reading.baseline, reading.grown) == (None, None, None)
    assert "not begun" in reading.reason


# --- where the kernel refuses


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A /proc/self whose clear_refs refuses to be written; returns a way to set the size."""
    monkeypatch.setattr(memory, "PROC", tmp_path)
    (tmp_path / "clear_refs").mkdir()

    def use(mebibytes):
        write_atomic(
            tmp_path / "status",
            f"Name:\tpython\nVmHWM:\t  999999 kB\nVmRSS:\t  {mebibytes * 1024} kB\nThreads:\t1\n",
        )

    use(100)
    return use


def test_resident_memory_is_sampled_where_the_peak_cannot_be_set_back(proc):
    threads = threading.active_count()
    with peak_memory() as peak:
        proc(300)
        deadline = time.monotonic() + 20
        while peak._source.close.__self__.peak < 300 * MIB and time.monotonic() < deadline:
            time.sleep(0.005)
        proc(120)
    assert (peak.reading.bytes, peak.reading.baseline) == (300 * MIB, 100 * MIB)
    assert peak.reading.backend == "sampled RSS"
    assert "lower bound" in peak.reading.reason
    assert threading.active_count() == threads


def test_samples_before_a_block_are_no_part_of_it(proc):
    with peak_memory() as outer:
        proc(300)
        assert outer.reading.bytes == 300 * MIB
        proc(150)
        with peak_memory() as inner:
            proc(160)
        assert inner.reading.bytes == 160 * MIB
    assert outer.reading.bytes == 300 * MIB


def test_without_proc_psutil_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "PROC", tmp_path / "none")
    info = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=5 * MIB))
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(Process=lambda: info))
    with peak_memory() as peak:
        pass
    assert (peak.reading.bytes, peak.reading.backend) == (5 * MIB, "sampled RSS")
    assert resident() is None


def test_without_proc_and_psutil_there_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "PROC", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "psutil", None)
    with peak_memory() as peak:
        pass
    assert (peak.reading.bytes, peak.reading.baseline, peak.reading.backend) == (None, None, None)
    assert "psutil" in peak.reading.reason


# --- accelerators


def test_a_device_that_is_not_there_has_a_reason(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    for device in ("cuda", "cuda:1", "mps", "xpu"):
        with peak_memory(device) as peak:
            pass
        assert peak.reading.bytes is None
        assert peak.reading.reason == f"torch sees no {torch.device(device).type} device here"


@pytest.fixture
def accelerator(monkeypatch):
    """torch as it would be with one GPU, whose allocator is hand-made."""
    state = SimpleNamespace(now=10, peak=50, held=70, stats={"allocated_bytes.all.peak": 50})

    def reset(device):
        state.peak = state.held = state.now

    for name, function in {
        "is_available": lambda: True,
        "current_accelerator": lambda: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "memory_stats": lambda device: state.stats,
        "memory_allocated": lambda device: state.now,
        "max_memory_allocated": lambda device: state.peak,
        "max_memory_reserved": lambda device: state.held,
        "reset_peak_memory_stats": reset,
    }.items():
        monkeypatch.setattr(torch.accelerator, name, function)
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    return state


def test_torchs_own_statistics_are_read(accelerator):
    with peak_memory("cuda") as outer:
        accelerator.peak, accelerator.held = 40, 64
        with peak_memory("cuda:0") as inner:  # the same device by another name
            accelerator.peak, accelerator.held = 25, 32
    assert (inner.reading.bytes, inner.reading.baseline, inner.reading.reserved) == (25, 10, 32)
    assert (outer.reading.bytes, outer.reading.baseline, outer.reading.reserved) == (40, 10, 64)
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
    assert peak.reading.reserved >= peak.reading.bytes
