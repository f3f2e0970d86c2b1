"""Early stopping: when a run ends, and which weights it leaves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import astkit
from astkit.trainers import Metric, TrainConfig, Trainer
from tests import build
from tests.build import refused
from tests.trainers.states import leave_after, same

DATA = TensorDataset(torch.arange(32.0).reshape(8, 4) / 32, torch.arange(8) % 3)


class Told:
    """A metric with a value for each epoch that is given."""

    def __init__(self, values: list[float]) -> None:
        self.values = iter(values)

    def __deepcopy__(self, memo: Any) -> Told:
        return self

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.tried = len(outputs) == 2  # by the check before the first step

    def compute(self) -> float:
        return 0.0 if self.tried else next(self.values)


def trainer(values: list[float], higher: bool = True, **options: Any) -> Trainer:
    model = build.network(4, 3, 0)
    metric = Metric("told", Told(values), higher_is_better=higher)
    options = {"epochs": 9, "batch_size": 4, "metrics": metric, "lr": 0.1, **options}
    return Trainer(model, DATA, DATA, device="cpu", **options)


def weights(run: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


@pytest.mark.parametrize(
    ("values", "higher", "after", "epochs", "best"),
    [
        ([1, 2, 3, 2, 3, 9], True, 2, 5, 3),
        ([3, 2, 1, 2, 2, 0], False, 2, 5, 3),
        ([float("nan"), 1, 1, 2], True, 1, 3, 2),  # an equal value is not better
        ([1, float("nan"), float("nan"), 2], True, 2, 3, 1),  # nor is one that is no number
        ([1, 2, 3, 4, 5, 6, 7, 8, 7.5], True, 3, 9, 8),  # the budget ends first
    ],
)
def test_a_run_ends_after_epochs_that_are_not_better_with_the_weights_of_the_best(
    values: list[float], higher: bool, after: int, epochs: int, best: int
) -> None:
    run = trainer(values, higher, stop_after=after)
    seen = []
    for record in run.steps():
        if record.phase == "epoch" and not run.done:
            seen.append(weights(run))
    assert len(run.history.epochs) == epochs
    assert run.done
    assert same(weights(run), seen[best - 1])
    rates = [step["lr"] for step in run.history.steps]
    whole = trainer(list(range(9)))
    whole.run()
    assert rates == [step["lr"] for step in whole.history.steps][: len(rates)]


def test_without_metrics_the_loss_counts_and_without_stopping_nothing_is_restored() -> None:
    config = TrainConfig(lr=3.0, schedule="constant")
    run = trainer([], metrics=None, config=config, stop_after=2, lr=None)
    run.run()
    losses = [epoch["val_loss"] for epoch in run.history.epochs]
    assert run.evaluate(DATA)["loss"] == pytest.approx(min(losses))
    free = trainer([], metrics=None, config=config, lr=None)
    free.run()
    assert free.validator.best.weights == {}


def test_the_best_epoch_is_resumed(tmp_path: Path) -> None:
    config = TrainConfig(lr=3.0, schedule="constant")
    options: dict[str, Any] = {"metrics": None, "config": config, "lr": None, "stop_after": 3}
    whole = trainer([], **options)
    whole.run()
    leave_after(trainer([], checkpoints=tmp_path, **options), 10)
    second = trainer([], checkpoints=tmp_path, resume=True, **options)
    assert second.validator.best.score is not None
    second.run()
    assert second.step == whole.step
    assert same(weights(second), weights(whole))


def test_stopping_without_validation_is_one_sentence() -> None:
    for options in ({"validates": False}, {"validation": None}):
        call = partial(Trainer, nn.Linear(4, 3), DATA, **{"validation": DATA, **options}, epochs=2)
        refused((partial(call, stop_after=2), "stop_after is 2, but nothing is validated"))
    refused((partial(call, validation=DATA, stop_after=0), "stop_after is 0"))


class Counted(nn.Linear):
    """Keeps more than tensors, and a buffer that is not seen yet."""

    def __init__(self, extra: Any) -> None:
        super().__init__(4, 3)
        self.extra = extra
        self.register_buffer("largest", torch.full((1,), torch.nan))

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize(
    "extra", [{"calls": 3}, None, [1, "a"], torch.ones(2), {"x": torch.ones(2)}]
)
def test_the_state_of_a_module_may_be_anything(extra: Any, tmp_path: Path) -> None:
    run = Trainer(Counted(extra), DATA, DATA, epochs=3, stop_after=1, checkpoints=tmp_path)
    run.run(progress=False)
    kept = run.model.state_dict()["_extra_state"]
    assert type(kept) is type(extra)
    again = Trainer(
        Counted(extra), DATA, DATA, epochs=3, stop_after=1, checkpoints=tmp_path, resume=True
    )
    assert type(again.model.state_dict()["_extra_state"]) is type(extra)
    report = astkit.compare(
        lambda: Counted(extra), *[DATA] * 3, policies="infobatch", epochs=1, seeds=1,
        check_baseline=False,
    )  # fmt: skip
    assert report.verdict
