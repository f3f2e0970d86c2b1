"""The bench of steps: every way of training is timed, and what is committed says how."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from astkit.trainers import Trainer
from tests.benchmarks import speed


@pytest.mark.full
def test_a_short_run_times_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "STEPS", 2)
    out = tmp_path / "speed.json"
    speed.main(["--rounds", "2", "--out", str(out)])
    content = json.loads(out.read_text())
    assert len(content["figures"]) == len(speed.NETWORKS) * len(speed.RATIOS)
    assert "--rounds 2" in content["command"]


@pytest.mark.parametrize("rate", [1.0, speed.RATE])
def test_the_raw_loop_does_the_work_of_the_kit(rate: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(speed, "Loader", partial(speed.Loader, shuffle=False))
    monkeypatch.setattr(torch, "randperm", torch.arange)
    digits, cpu = speed.load("digits")[0], torch.device("cpu")
    trainers = []
    policy = None if rate == 1 else speed.Gate(rate, controller="top_k")

    def kept(*args: Any, **options: Any) -> speed.Trainer:
        trainers.append(Trainer(*args, **options))
        return trainers[0]

    monkeypatch.setattr(speed, "Trainer", kept)
    raw = speed.Raw("digits_cnn", digits, cpu, rate)
    steps, records = raw.steps(), speed.kit("digits_cnn", digits, cpu, policy)
    for _ in range(5):
        next(steps)
        next(records)
    for mine, other in zip(raw.parameters, trainers[0].model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


def test_the_committed_figures_have_enough_rounds() -> None:
    content = json.loads(speed.RESULTS.read_text())
    assert content["command"].startswith("python -m tests.benchmarks.speed")
    names = [each["name"] for each in content["figures"]]
    for name in speed.NETWORKS:
        assert f"{name}: dense / raw" in names
    assert all(each["n"] >= 21 for each in content["figures"])
