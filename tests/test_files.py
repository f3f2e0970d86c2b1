"""A reader sees the old file or the new one, whatever fails."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astkit.datasets import Images, write_mapped
from astkit.files import write_atomic


@given(st.binary(max_size=2_000) | st.text(max_size=200))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, content: bytes | str
) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    data = content.encode() if isinstance(content, str) else content
    assert write_atomic(path, content) == path
    assert path.read_bytes() == data


def test_an_old_file_is_replaced_and_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.json"
    write_atomic(path, "old and longer")
    write_atomic(str(path), "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and devices are POSIX")


@posix
def test_the_mode_follows_the_umask_and_that_of_an_older_file_stays(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for umask, mode in ((0o022, 0o644), (0o002, 0o664), (0o077, 0o600)):
            os.umask(umask)
            path = write_atomic(tmp_path / f"{umask:o}", b"x")
            assert stat.S_IMODE(path.stat().st_mode) == mode
            path.chmod(0o640)
            write_atomic(path, b"y")
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


@posix
def test_mapped_data_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        images = Images(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.arange(2), ("a", "b"), "")
        write_mapped(tmp_path / "mapped", images)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {0o750, 0o640}


@posix
def test_a_link_is_neither_followed_nor_replaced(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for target in (outside, tmp_path / "missing"):
        link = tmp_path / f"link to {target.name}"
        link.symlink_to(target)
        with pytest.raises(ValueError, match=f"{link.name} is a link and not a regular file"):
            write_atomic(link, "theirs")
        assert link.is_symlink()
    assert outside.read_text() == "mine"
    assert not (tmp_path / "missing").exists()


@posix
def test_pipes_devices_sockets_and_folders_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.relpath(tmp_path / "socket"))
    server.close()
    with suppress(PermissionError):  # of root alone
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    before = {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    for path in before:
        with pytest.raises(ValueError, match=f"{path.name} is not a regular file"):
            write_atomic(path, "content")
    assert {path: path.lstat().st_mode for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc here")
def test_streams_are_written_through(tmp_path: Path) -> None:
    with open(tmp_path / "output", "wb") as output:
        output.write(b"before, ")
        output.flush()
        assert write_atomic(f"/proc/self/fd/{output.fileno()}", "after") == Path(
            f"/proc/self/fd/{output.fileno()}"
        )
    assert (tmp_path / "output").read_text() == "before, after"
    reader, writer = os.pipe()
    write_atomic(f"/dev/fd/{writer}", "through a pipe")
    os.close(writer)
    assert os.read(reader, 100) == b"through a pipe"
    os.close(reader)


@posix
def test_an_error_names_the_file_and_not_its_temporary_twin(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        write_atomic(tmp_path / "file" / "below", "content")
    with pytest.raises(OSError, match="too long") as caught:
        write_atomic(tmp_path / ("x" * 300), "content")
    assert caught.value.filename == str(tmp_path / ("x" * 300))


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


@posix
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
