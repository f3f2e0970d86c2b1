"""A reader sees the old file or the new one, whatever fails; JSON files are plain or refused."""

from __future__ import annotations

import json
import math
import os
import stat
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.files import plain_values, read_json, write_atomic, write_json
from astkit.runs.record import Record
from astkit.runs.tables import collect
from astkit.trainers import Checkpoints
from tests.build import refused

posix = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")


@settings(max_examples=15)
@given(st.binary(max_size=2_000) | st.text(max_size=200))
def test_what_is_written_is_read_back(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("files") / "a" / "file"
    data = content.encode() if isinstance(content, str) else content
    assert write_atomic(path, b"old and longer" + data) == path
    assert write_atomic(str(path), content) == path
    assert path.read_bytes() == data
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@posix
def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for umask, mode in ((0o022, 0o644), (0o002, 0o664), (0o077, 0o600)):
            os.umask(umask)
            path = write_atomic(tmp_path / f"{umask:o}", b"x")
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)


def test_what_is_no_file_is_not_replaced_and_an_error_names_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", Path(os.devnull)):
        refused((partial(write_atomic, path, "content"), f"{path.name} is not a regular file"))
    with pytest.raises(OSError, match="too long") as caught:
        write_atomic(tmp_path / ("x" * 300), "content")
    assert caught.value.filename == str(tmp_path / ("x" * 300))  # and not its temporary twin


def refuse(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("step", "failure", "error"),
    [
        ("fsync", refuse, OSError),
        ("replace", refuse, OSError),
        ("replace", interrupt, KeyboardInterrupt),
        ("fdopen", refuse, OSError),
    ],
)
def test_a_failing_step_keeps_the_old_file_and_leaves_nothing_else(
    step: str, failure: Any, error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomic(tmp_path / "file", "old")
    monkeypatch.setattr(os, step, failure)
    for name in ("file", "first"):
        with pytest.raises(error):
            write_atomic(tmp_path / name, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_values_become_plain(tmp_path: Path) -> None:
    record = {"loss": math.nan, "worst": -math.inf, "rate": np.float32(0.5), "on": True}
    record |= {"rows": torch.arange(2), "none": None}
    record |= {"nested": MappingProxyType({1: (1, [math.inf])})}
    plain = {"loss": None, "worst": None, "rate": 0.5, "on": True, "rows": [0, 1], "none": None}
    plain |= {"nested": {"1": [1, [None]]}}
    assert plain_values(record) == plain
    path = write_json(tmp_path / "a.json", record)
    assert json.loads(path.read_text()) == read_json(path) == plain
    for value, words in (
        (torch.nn.Linear(1, 1), "'x' is a Linear, which JSON cannot hold: give"),
        ({1: "a", "1": "b"}, "'x' has keys that are equal as strings: give others"),
    ):
        refused((partial(write_json, path, {"x": value}), words))
    assert read_json(path) == plain


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert read_json(path) == {}
    for text in ("[1]", "\xff", '{"rows": ['):
        path.write_text(text, encoding="latin-1")
        refused((partial(read_json, path), r"result\.json is damaged \(.*\): delete it, or"))


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_json("~/deep/written.json", {"a": 1})
    assert read_json("~/deep/written.json") == {"a": 1}
    Checkpoints("~/checkpoints").open({}, False)
    Record.create("~/runs", "name", {})
    assert len(collect("~/runs").folders) == 1
    assert os.listdir(tmp_path) == ["home"]  # no folder "~"
    found = sorted(each.name for each in (tmp_path / "home").iterdir())
    assert found == ["checkpoints", "deep", "runs"]
