"""The start sets the budget, and says in a sentence why it will not start."""

from __future__ import annotations

import os

import pytest
import torch

from astkit.export import gpu, start

BUDGET = "ASTKIT_TIME_BUDGET_H"


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "hide_unusable", lambda: "nothing found")
    monkeypatch.setenv(BUDGET, "7")  # so that what is set here ends with the test


def test_the_budget_goes_into_the_environment(capsys) -> None:
    start.begin(1.5)
    assert os.environ[BUDGET] == "1.5"
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "time budget: 1.5 h, then runs are saved and left",
        f"torch {torch.__version__}; nothing found",
    ]


def test_without_a_budget_the_environment_is_left_alone(capsys) -> None:
    start.begin()
    assert os.environ[BUDGET] == "7"
    assert "budget" not in capsys.readouterr().out


def test_an_impossible_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="time_budget_h is -1: give hours"):
        start.begin(-1)


def test_an_old_torch_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    with pytest.raises(RuntimeError, match=r"^torch is 2\.6\.0\+cu124, and astkit needs 2\.9"):
        start.begin()
