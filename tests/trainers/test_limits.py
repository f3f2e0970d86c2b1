"""Ends of a run other than its budget: an interrupt, and the time budget of the process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.trainers import Checkpoints, TimeIsUp, Trainer
from tests.trainers.states import leave_after, same

DATA = TensorDataset(torch.randn(80, 4), torch.arange(80) % 3)


class Interrupted(torch.optim.SGD):
    """Is interrupted after the update of the weights, ``times`` times in that step."""

    times = 0

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        for _ in range(self.times):
            os.kill(os.getpid(), signal.SIGINT)
        self.times = 0
        return found


def build(folder: Path | None, **options: Any) -> Any:
    with rng.isolated("cpu", 0):
        model = nn.Linear(4, 3)
    optimizer = Interrupted(model.parameters(), lr=0.1, momentum=0.9)
    kept = None if folder is None else Checkpoints(folder)
    options = {"epochs": 1, "batch_size": 8, "optimizer": optimizer, **options}
    return Trainer(model, DATA, checkpoints=kept, device="cpu", **options)


@pytest.mark.parametrize("resumed", [False, True])
def test_an_interrupt_within_a_step_neither_loses_nor_repeats_it(
    tmp_path: Path, resumed: bool
) -> None:
    whole, run = build(None), build(tmp_path)
    whole.run()
    before = signal.getsignal(signal.SIGINT)
    leave_after(run, 4)
    run.optimizer.times = 1
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.step == 5
    assert signal.getsignal(signal.SIGINT) is before
    if resumed:
        run = build(tmp_path, resume=True)
        assert run.step == 5
    run.run()
    assert same(dict(run.model.state_dict()), dict(whole.model.state_dict()))


def test_a_second_interrupt_takes_effect_at_once(tmp_path: Path) -> None:
    run = build(tmp_path)
    run.optimizer.times = 2
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.step == 0
    assert not list(tmp_path.glob("*.safetensors"))


def test_the_time_budget_ends_a_run_which_is_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASTKIT_TIME_BUDGET_H", "1e-9")
    steps = build(tmp_path).steps()
    assert next(steps).step == 1
    with pytest.raises(TimeIsUp, match=r"after step 1; saved in .*resume=True"):
        next(steps)
    with pytest.raises(TimeIsUp, match="after step 1; nothing was saved"):
        build(None).run()
    monkeypatch.setenv("ASTKIT_TIME_BUDGET_H", "1000")
    resumed = build(tmp_path, resume=True)
    assert resumed.step == 1
    resumed.run()
    assert resumed.done
