"""Whatever lies in a file that somebody else made, its reader succeeds or names the file."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path

import pytest

from tests import hostile

FAST, FULL = 50, 1000


@pytest.mark.parametrize("kind", hostile.KINDS)
@pytest.mark.parametrize(
    "seeds", [range(FAST), pytest.param(range(FAST, FULL), marks=pytest.mark.full)], ids=str
)
def test_a_hostile_file_is_read_or_refused_by_name(kind, seeds, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a slow disk is not the subject
    folder = tmp_path / "example"
    folder.mkdir()
    example, before = hostile.KINDS[kind].example(folder), children()
    hostile.KINDS[kind].read(folder, example)  # the example itself is read
    example = hostile.KINDS[kind].example(fresh(tmp_path))
    faults = [hostile.judge(kind, example, tmp_path / "place", seed) for seed in seeds]
    assert [fault for fault in faults if fault] == []
    assert children() <= before


def test_the_judge_sees_what_it_is_there_for(tmp_path, monkeypatch):
    """Each fault that it looks for is found in a reader that has it."""

    def reads_on(folder, path):
        (folder.parent / "outside" / "precious").write_text("changed")

    def takes_memory(folder, path):
        held.append(mmap.mmap(-1, 64 << 20))  # the allocator may have kept freed memory
        held[-1].write(b"x" * (64 << 20))

    def raises(error):
        def read(folder, path):
            raise error(path) if callable(error) else error

        return read

    held: list[mmap.mmap] = []
    monkeypatch.setattr(hostile, "MOST_MEMORY", 32 << 20)
    monkeypatch.setattr(hostile, "MOST_SECONDS", 2)
    for read, fault in (
        (raises(KeyError("step")), "not a refusal"),
        (raises(ValueError("it is damaged")), "names no file"),
        (raises(lambda path: ValueError(f"{path}\nis damaged")), "several lines"),
        (raises(lambda path: OSError(f"{path} {'x' * 9999}")), "too long"),
        (reads_on, "changed a file outside"),
        (takes_memory, "took "),
        (lambda folder, path: os.read(os.pipe()[0], 1), "Hung"),
        (raises(lambda path: ValueError(f"{path} is damaged")), None),
    ):
        kind = hostile.Kind(hostile.KINDS["metrics"].example, read)
        monkeypatch.setitem(hostile.KINDS, "metrics", kind)
        found = hostile.judge("metrics", kind.example(fresh(tmp_path)), tmp_path / "place", 0)
        assert (found is None) if fault is None else (fault in found)


def fresh(place: Path) -> Path:
    """An empty folder for an example, in place of an earlier one."""
    shutil.rmtree(place / "example", ignore_errors=True)
    (place / "example").mkdir()
    return place / "example"


def children() -> set[str]:
    """Ids of the processes that this one has started and that have not ended."""
    tasks = Path("/proc/self/task")
    return {pid for task in tasks.glob("*/children") for pid in task.read_text().split()}
