"""Models that change the batch they are given: each row is trained on as it is, or refused."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, StackDataset, TensorDataset

from astkit import Gate, Trainer
from astkit.trainers import SampleBySampleTrainer, TrainConfig
from tests.build import refused

X, Y = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3
X[5, 2] = torch.nan
ROWS = {str(row.tolist()) for row in X}


def filled(x: Tensor) -> Tensor:
    return x.nan_to_num_(0.0)


def scaled(x: Tensor) -> Tensor:
    return filled(x).sub_(1.0).div_(2.0)


def by_data(x: Tensor) -> Tensor:
    filled(x.data).mul_(2.0)
    return x


def by_array(x: Tensor) -> Tensor:
    array = x.numpy()
    array[array != array] = 0
    array -= 1
    return x


class Changing(nn.Module):
    """Applies ``change`` to its inputs, in the modes given; keeps what it was given in training."""

    def __init__(self, change: Callable[[Tensor], Tensor], modes: str = "both") -> None:
        super().__init__()
        self.last, self.seen, self.change, self.modes = nn.Linear(4, 3), [], change, modes

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.seen.append(x.clone())
        training = "training" if self.training else "evaluation"
        return self.last((self.change if self.modes in ("both", training) else filled)(x))


class Mapped(Changing):
    def forward(self, batch: Any) -> Tensor:  # type: ignore[override]
        x = batch.pop("x") if self.modes == "pops" else batch["x"]
        if self.modes == "writes":
            batch["x"] = (x.nan_to_num(0.0) - 1) / 2
        if self.training and torch.is_grad_enabled():
            self.seen.append(x.clone())
        return self.last(self.change(x))


CHANGES: dict[str, Callable[[], Changing]] = {
    "in place": lambda: Changing(scaled),
    "x.data": lambda: Changing(by_data),
    "an array": lambda: Changing(by_array),
    "in training": lambda: Changing(scaled, "training"),
    "in evaluation": lambda: Changing(scaled, "evaluation"),
    "no values but NaN": lambda: Changing(filled),
    "a mapping, in place": lambda: Mapped(scaled),
    "a key is replaced": lambda: Mapped(lambda x: x.nan_to_num(0.0), "writes"),
    "a key is taken out": lambda: Mapped(lambda x: x.nan_to_num(0.0), "pops"),
}
RUNS: dict[str, dict[str, Any]] = {
    "dense": {},
    "gate": {"policy": Gate(0.5)},
    "micro-batches": {"policy": Gate(0.9), "config": TrainConfig(micro_batch=5)},
    "row by row": {"policy": Gate(0.5), "update": "per_sample"},
}


def given(model: Changing, kind: str, x: Tensor) -> tuple[Any, dict[str, int]]:
    """Data of ``x`` that are stacked to batches, or batches that come again; options for them."""
    if kind == "data set":
        mapped = isinstance(model, Mapped)
        return StackDataset(x=x, labels=Y) if mapped else TensorDataset(x, Y), {"batch_size": 16}
    parts: list[Any] = list(zip(x.split(16), Y.split(16), strict=True))
    if isinstance(model, Mapped):
        parts = [{"x": each, "labels": labels} for each, labels in parts]
    return parts if kind == "list" else DataLoader(parts, batch_size=None), {}  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["data set", "list", "not stacked"])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("change", CHANGES)
def test_every_row_is_trained_on_as_it_is(change: str, run: str, kind: str) -> None:
    model, x = CHANGES[change](), X.clone()
    data, options = given(model, kind, x)
    trainer = SampleBySampleTrainer if run == "row by row" else Trainer
    trainer(model, data, data, epochs=2, **options, **RUNS[run]).run()
    seen = [str(row.tolist()) for batch in model.seen for row in batch]
    assert seen
    assert {*seen} <= ROWS
    torch.testing.assert_close(x, X, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("change", CHANGES)
def test_in_somebodys_own_loop_too(change: str) -> None:
    model, x, gate = CHANGES[change](), X.clone(), Gate(0.5)
    for _ in range(3):
        batch = {"x": x, "labels": Y}
        chosen = gate(model, batch) if isinstance(model, Mapped) else gate(model, x, Y)
        assert len(chosen)
        assert batch.keys() == {"x", "labels"}
        assert batch["x"] is x
        torch.testing.assert_close(x, X, equal_nan=True, rtol=0, atol=0)


class Late(nn.Linear):
    """Changes its inputs from its 16th pass on."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x.nan_to_num_(0.0) if self.passes > 15 else x.nan_to_num(0.0))


class LateByData(Late):
    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.passes > 15:
            x.data.nan_to_num_(0.0)
        return nn.Linear.forward(self, x.nan_to_num(0.0))


def test_what_cannot_be_trained_on_as_it_is_is_one_sentence() -> None:
    rows, batches = TensorDataset(X, Y), [(X.clone(), Y)]

    def shifting(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets.sub_(1).add_(1), reduction="none")

    def own_loop() -> None:
        model, gate = Late(4, 3), Gate(0.5)
        for _ in range(16):
            gate(model, X.clone(), Y)

    later = "model now changes its inputs in place, as it did not at first: let forward make new"
    refused(
        (lambda: Trainer(Late(4, 3), rows, policy=Gate(0.5), epochs=3, batch_size=8).run(), later),
        (lambda: Trainer(Late(4, 3), batches, epochs=20).run(), later),
        (lambda: Trainer(LateByData(4, 3), batches, epochs=20).run(), later),
        (lambda: Trainer(LateByData(4, 3), rows, policy=Gate(0.5), epochs=20).run(), later),
        (lambda: Trainer(LateByData(4, 3), rows, batches, epochs=20).run(), later),
        (own_loop, later),
        (
            lambda: Trainer(Changing(filled), batches, epochs=1, criterion=shifting).run(),
            "the criterion changes its targets in place: let it use targets.clone",
        ),
    )


def test_a_fresh_batch_is_trained_on_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    model, places = Changing(scaled), []
    model.register_forward_pre_hook(lambda _, args: places.append(args[0].data_ptr()))
    run = Trainer(model, TensorDataset(X, Y), epochs=2, batch_size=16)
    deliver = run.batches.source._prepared
    loaded = []

    def prepared(*args: Any) -> Any:
        loaded.append(batch := deliver(*args))
        return batch

    monkeypatch.setattr(run.batches.source, "_prepared", prepared)
    run.run()
    assert places[-4:] == [batch.x.data_ptr() for batch in loaded[-4:]]


def test_the_sentence_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Trainer(Changing(scaled), [(X.clone(), Y)], [(X, Y)], epochs=2, policy=Gate(0.5)).run()
    assert len([each for each in said if "in place" in str(each.message)]) == 1
