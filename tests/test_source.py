"""Hashes over named contents, and asking git without waiting for it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from astkit.source import git, hash_of


def test_names_and_contents_do_not_run_into_each_other() -> None:
    assert hash_of({"a": b"bc"}) == hashlib.sha256(b"a\0002\0bc").hexdigest()
    assert hash_of({"b": b"2", "a": b"1"}) == hash_of({"a": b"1", "b": b"2"})
    assert hash_of({"a": b"1", "b": b"2"}) != hash_of({"a": b"1b\0001\0002"})


def test_git_answers_in_the_folder_that_is_named(tmp_path: Path) -> None:
    assert git(tmp_path, "rev-parse", "HEAD") is None
    assert git(tmp_path, "init", "-q") == ""
    assert git(tmp_path, "rev-parse", "--show-toplevel") == str(tmp_path.resolve())


def test_a_git_that_hangs_or_is_missing_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("git", timeout)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", hang)
        assert git(tmp_path, "status") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git(tmp_path, "status") is None
