"""A reader sees the old file or the new one, whatever fails."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astkit.files import sha256, write_atomic


@given(st.binary(max_size=2_000) | st.text(max_size=200))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, content: bytes | str
) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    data = content.encode() if isinstance(content, str) else content
    assert write_atomic(path, content) == path
    assert path.read_bytes() == data
    assert sha256(path) == hashlib.sha256(data).hexdigest()


def test_an_old_file_is_replaced_and_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.json"
    write_atomic(path, "old and longer")
    write_atomic(str(path), "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX")
def test_others_may_read_the_file(tmp_path: Path) -> None:
    path = write_atomic(tmp_path / "file", b"x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def refuse(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize(("failure", "error"), [(refuse, OSError), (interrupt, KeyboardInterrupt)])
def test_a_failing_step_keeps_the_old_file_and_leaves_nothing_else(
    step: str,
    failure: Callable[..., None],
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_atomic(tmp_path / "file", "old")
    monkeypatch.setattr(os, step, failure)
    with pytest.raises(error):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_write_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fdopen = write_atomic(tmp_path / "file", "old"), os.fdopen

    class Full:
        """A file on a disk that takes half of what it is given."""

        def __init__(self, handle: int, mode: str) -> None:
            self.file = fdopen(handle, mode)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[: len(data) // 2])
            refuse()

    monkeypatch.setattr(os, "fdopen", Full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_first_write_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "file", "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="folders are synced on POSIX only")
def test_file_then_rename_then_folder_reach_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, replace = os.fsync, os.replace
    events: list[str] = []

    def noted_fsync(descriptor: int) -> None:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        events.append("sync folder" if folder else "sync file")
        fsync(descriptor)

    def noted_replace(source: str, target: str) -> None:
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomic(tmp_path / "file", "content")
    assert events == ["sync file", "rename", "sync folder"]


def test_a_missing_file_has_no_checksum(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sha256(tmp_path / "missing")
