"""Every kind of batch and model under every way to train: it learns, counts and resumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from astkit import rng
from astkit.gating import Gate, RandomSubset
from astkit.profiling.flops import counter
from astkit.trainers import SampleStep, TrainConfig, Trainer
from tests.trainers.states import leave_after, same

ROWS, SIZE, EPOCHS = 48, 8, 3


@dataclass
class Output:
    """What a model of a library returns."""

    logits: Tensor
    loss: Tensor | None = None


class Dicts(Dataset):
    """Rows of several named columns."""

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: column[row] for name, column in self.columns.items()}


class Objects(nn.Module):
    """Gives an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor) -> Output:
        return Output(self.net(x))


class Keywords(Objects):
    """Takes two of a batch's three columns by name."""

    def forward(self, *, values: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        return self.net(values * scale)


class OwnLoss(Objects):
    """Computes one loss a row itself."""

    def forward(self, values: Tensor, labels: Tensor) -> Output:  # type: ignore[override]
        logits = self.net(values)
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)
        return Output(logits, losses)


class Language(nn.Module):
    """The next of 7 tokens, by a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 8), nn.Linear(8, 7)
        self.recurrent = nn.GRU(8, 8, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embed(tokens))[0])


def mlp(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, outputs))


def images() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    return nn.Sequential(*layers)


with rng.isolated("cpu", 0):
    X = torch.randn(ROWS, 6)
    PIXELS = torch.randn(ROWS, 1, 6, 6)
    TOKENS = (torch.randint(0, 7, (ROWS, 1)) + torch.arange(5)) % 7
CLASSES = X[:, :3].argmax(1)
PADDED = torch.where(torch.arange(5) < 2 + torch.arange(ROWS)[:, None] % 4, (TOKENS + 1) % 7, -100)
BRIGHTEST = PIXELS.mean((1, 2, 3)).gt(0).long()


class Task(NamedTuple):
    model: Any
    data: Dataset
    criterion: Any = None


TASKS = {
    "regression": Task(
        lambda: mlp(2), TensorDataset(X, X[:, :2] - X[:, 2:4]), nn.MSELoss(reduction="none")
    ),
    "several labels": Task(
        lambda: mlp(4),
        TensorDataset(X, X[:, :4].gt(0).float()),
        nn.BCEWithLogitsLoss(reduction="none"),
    ),
    "dict": Task(Keywords, Dicts(values=X, scale=torch.ones(ROWS, 1), labels=CLASSES)),
    "object with logits": Task(Objects, TensorDataset(X, CLASSES)),
    "object with loss": Task(OwnLoss, Dicts(values=X, labels=CLASSES)),
    "padded language": Task(Language, TensorDataset(TOKENS, PADDED)),
    "images, BatchNorm": Task(images, TensorDataset(PIXELS, BRIGHTEST)),
}
WAYS: dict[str, Any] = {
    "dense": dict,
    "gated": lambda: {"policy": Gate(0.5)},
    "random": lambda: {"policy": RandomSubset(0.5)},
    "sample by sample": lambda: {"step": SampleStep(Gate(0.5), "per_batch")},
}
ALL = [(task, way) for task in TASKS for way in WAYS]
ALL.remove(("images, BatchNorm", "sample by sample"))  # statistics of a single row
FAST = [
    ("regression", "dense"),
    ("several labels", "random"),
    ("dict", "gated"),
    ("object with logits", "sample by sample"),
    ("object with loss", "gated"),
    ("padded language", "gated"),
    ("images, BatchNorm", "gated"),
]
CASES = [case if case in FAST else pytest.param(*case, marks=pytest.mark.full) for case in ALL]


def build(task: str, way: str, **options: Any) -> Trainer:
    made, data, criterion = TASKS[task]
    with rng.isolated("cpu", 1):
        model = made()
    if criterion is not None:
        options["criterion"] = criterion
    config = TrainConfig(lr=2e-2, seed=3)
    options |= {"epochs": EPOCHS, "batch_size": SIZE, "config": config, "device": "cpu"}
    return Trainer(model, data, **options, **WAYS[way]())


@pytest.mark.parametrize(("task", "way"), CASES)
def test_it_learns_counts_and_resumes(task, way, tmp_path):
    whole = build(task, way)
    data = TASKS[task].data
    before = whole.evaluate(data)["loss"]
    whole._cost(next(whole.train.batches(0)))  # what counting costs is not part of the run
    with counter() as counted:
        whole.run()
    assert whole.evaluate(data)["loss"] < 0.97 * before

    samples, flops = whole.ledger.samples, whole.ledger.flops
    assert counted.uncounted() == ()
    assert flops.total == pytest.approx(counted.get_total_flops(), rel=0.01)
    assert flops.total > 0
    share = {"dense": 1.0, "random": 0.5}.get(way)
    if share is not None:
        assert (samples.trained, samples.scored) == (EPOCHS * ROWS * share, 0)
        assert samples.unloaded == EPOCHS * ROWS - samples.trained
    else:
        assert samples.scored == samples.trained + samples.skipped == EPOCHS * ROWS
        assert 0.2 < samples.trained / samples.scored < 0.8

    leave_after(build(task, way, checkpoints=tmp_path), 4)  # in mid-epoch
    resumed = build(task, way, checkpoints=tmp_path, resume=True)
    assert (resumed.position.step, resumed.position.taken > 0) == (4, True)
    resumed.run()
    assert same(dict(resumed.model.state_dict()), dict(whole.model.state_dict()))
    assert resumed.ledger.samples.trained == samples.trained
    assert resumed.ledger.flops.total == flops.total
