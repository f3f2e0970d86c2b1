"""The start sets the budget, and says in a sentence why it will not start."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

from astkit.export import start

BUDGET = "ASTKIT_TIME_BUDGET_H"
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(BUDGET, "7")  # so that what is set here ends with the test


def test_the_budget_goes_into_the_environment(capsys) -> None:
    start.begin(1.5)
    assert os.environ[BUDGET] == "1.5"
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "time budget: 1.5 h, then runs are saved and ended",
        f"torch {torch.__version__}; no CUDA device",
    ]


def test_without_a_budget_the_environment_is_left_alone(capsys) -> None:
    start.begin()
    assert os.environ[BUDGET] == "7"
    assert "budget" not in capsys.readouterr().out


def test_an_impossible_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="time_budget_h is -1: pass hours"):
        start.begin(-1)


def test_an_old_torch_is_refused_and_a_new_one_is_not(monkeypatch) -> None:
    needed = {Requirement(text).name: Requirement(text) for text in PROJECT["dependencies"]}[
        "torch"
    ]
    assert needed.specifier.contains(".".join(map(str, start.LOWEST_TORCH)))
    for version in ("2.6.0+cu124", "1.13.1", "2.8.0"):
        assert not needed.specifier.contains(Version(version))
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(RuntimeError, match=rf"^torch is {re.escape(version)}, and .* 2\.9"):
            start.begin()
    for version in ("2.9.0", "2.9.1+cu128", "2.10.0a0+git1", "3.0"):
        monkeypatch.setattr(torch, "__version__", version)
        start.begin()


def test_a_gpu_that_torch_has_no_kernels_for_is_refused(monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla P100")
    monkeypatch.setattr(torch, "ones", fail)
    with pytest.raises(RuntimeError, match=r"on Tesla P100 \(.* is available\): choose a T4"):
        start.begin()
