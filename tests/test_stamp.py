"""The stamp says what was measured on, and nothing about who measured it where."""

import getpass
import json
import re
import socket
import subprocess
import sys
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest
import torch

import astkit
from astkit import stamp as module
from astkit.stamp import describe, source_hash, stamp


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_stamp_is_plain_json_and_complete() -> None:
    values = stamp()
    assert json.loads(json.dumps(values)) == values
    assert (values["astkit"], values["torch"]) == (astkit.__version__, metadata.version("torch"))
    assert values["threads"] == torch.get_num_threads()
    assert values["instruction_set"] == torch.backends.cpu.get_cpu_capability()
    assert re.fullmatch("[0-9a-f]{64}", str(values["source"]))
    assert datetime.fromisoformat(str(values["time"])).utcoffset() == timedelta(0)
    assert set(values) >= {"python", "torchvision", "numpy", "platform", "devices", "cpu", "cpus"}
    assert set(values) >= {"commit", "dirty", "deterministic", "bf16_native"}


def test_the_stamp_names_no_person_and_no_place() -> None:
    values = stamp()
    text = json.dumps(values) + describe(values)
    for private in (socket.gethostname(), getpass.getuser()):
        assert not re.search(rf"\b{re.escape(private)}\b", text)
    for value in values.values():
        assert not str(value).startswith(("/", "~"))
    for path in (Path.cwd(), Path.home(), Path(sys.prefix)):
        assert len(path.parts) < 2 or str(path) not in text


@pytest.mark.parametrize(
    ("text", "model", "native"),
    [
        ("model name\t: Fast One\nflags\t\t: fpu avx512f amx_bf16\n", "Fast One", True),
        ("model name\t: Old One\nflags\t\t: fpu avx2\n", "Old One", False),
        ("processor\t: 0\nFeatures\t: asimd bf16\n", None, True),
        (None, None, None),
    ],
)
def test_the_processor_is_read_from_the_system(text, model, native, tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    if text is not None:
        info.write_text(text)
    monkeypatch.setattr(module, "_CPU_INFO", info)
    values = stamp()
    assert values["bf16_native"] is native
    assert model is None or values["cpu"] == model
    words = {True: "native bf16", False: "no native bf16", None: "bf16 unknown"}
    assert f", {words[native]}" in describe(values)


def test_the_checkout_is_named_only_when_it_is_one(tmp_path: Path, monkeypatch) -> None:
    assert module._checkout(tmp_path) == (None, None)
    git(tmp_path, "init", "-q")
    assert module._checkout(tmp_path) == (None, None)
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "one")
    commit, dirty = module._checkout(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", commit or "")
    assert dirty is False
    (tmp_path / "a").write_text("2")
    assert module._checkout(tmp_path) == (commit, True)
    inner = tmp_path / "site-packages"
    inner.mkdir()
    assert module._checkout(inner) == (None, None)
    monkeypatch.setenv("PATH", str(inner))  # where there is no git
    assert module._checkout(tmp_path) == (None, None)


def test_the_source_hash_follows_names_and_contents_only(tmp_path: Path) -> None:
    package = tmp_path / "one"
    (package / "part").mkdir(parents=True)
    (package / "part" / "b.py").write_text("b = 2\n")
    first = source_hash(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_bytes(b"cache")
    moved = package.rename(tmp_path / "two")
    assert source_hash(moved) == first
    (moved / "part" / "b.py").write_text("b = 1\n")
    assert source_hash(moved) != first
    (moved / "part" / "b.py").write_text("b = 2\n")
    (moved / "part" / "b.py").rename(moved / "part" / "c.py")
    assert source_hash(moved) != first


def test_the_description_is_one_line() -> None:
    values = {**stamp(), "commit": "a" * 40, "dirty": True, "devices": ["GPU one", "GPU two"]}
    line = describe(values)
    assert "\n" not in line
    assert "commit aaaaaaaa with changes" in line
    assert "GPU one, GPU two" in line
    assert "no GPU" in describe({**values, "devices": []})
