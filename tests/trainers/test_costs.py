"""What a batch costs is counted once in a run, however often that is resumed."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from astkit.comparison.arm import _tested
from astkit.trainers.costs import Costs
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from astkit.datasets import Batch
from astkit.gating import Gate, Policy
from astkit.trainers import Budget, Learner, TrainConfig, Trainer


class Deepening(nn.Module):
    """Takes more passes through its layer the larger its weight is."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.passes = nn.Parameter(torch.tensor(float(passes)))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(self.passes)):
            x = self.layer(x)
        return x


def costs(passes: int) -> Costs:
    return Costs(Learner(Deepening(passes), TrainConfig(), device="cpu"))


def batch(label: int = 0) -> Batch:
    return Batch(index=torch.arange(3), x=torch.ones(3, 4), y=torch.full((3,), label))


def test_a_resumed_run_counts_as_it_did_before() -> None:
    first, later = costs(2), costs(5)
    counted = first.of(batch(), lambda _: None)
    assert later.of(batch(), lambda _: None).forward > counted.forward
    resumed = costs(5)
    resumed.load_state_dict(first.state_dict())
    assert resumed.of(batch(), lambda _: None) == counted


def test_a_resumed_run_still_refuses_what_cannot_work() -> None:
    first, resumed = costs(1), costs(1)
    first.of(batch(), lambda _: None)
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="label"):
        resumed.of(batch(label=9), lambda _: None)


class Spectral(nn.Linear):
    """Its Fourier transform does multiply-adds that have no formula."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.fft.rfft(x).abs())


DATA = TensorDataset(torch.randn(24, 8), torch.arange(24) % 3)


def spectral(**options) -> Trainer:
    options = {"epochs": 2, **options}
    return Trainer(Spectral(5, 3), DATA, DATA, batch_size=8, device="cpu", **options)


@pytest.mark.parametrize("policy", [None, Gate(0.5)])
def test_flops_that_cannot_be_counted_are_said_once_and_kept_in_the_ledger(policy) -> None:
    trainer = spectral(policy=policy)
    with pytest.warns(UserWarning, match="FLOPs of _fft_r2c cannot be counted") as caught:
        trainer.run()
    assert len(caught) == 1
    assert trainer.ledger.uncounted == {"_fft_r2c"}
    assert trainer.ledger.flops.total > 0  # a lower bound
    again = spectral(policy=policy)
    again.load_state_dict(trainer.state_dict())
    assert again.ledger.uncounted == {"_fft_r2c"}
    counted = Trainer(nn.Linear(8, 3), DATA, epochs=1, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counted.run()
    assert counted.ledger.uncounted == set()


class Helped(Policy):
    """Trains a helper whose FLOPs cannot be counted."""

    def prepare(self, make_model, data) -> None:
        for batch in data:
            batch.forward(Spectral(5, 3))

    def choose(self, batch) -> None:
        return None


@pytest.mark.filterwarnings("ignore:FLOPs of _fft_r2c")
@pytest.mark.parametrize("helper", [False, True])
def test_a_budget_of_flops_that_cannot_be_counted_is_refused_first(helper, unchanged) -> None:
    if helper:
        budget = Budget(flops=1e6)
        trainer = Trainer(
            nn.Linear(8, 3), DATA, budget=budget, policy=Helped(), batch_size=8, device="cpu"
        )
    else:
        trainer = spectral(epochs=None, budget=Budget(flops=1e6))
    sentence = r"budget flops is 1e\+06, but the FLOPs of _fft_r2c cannot be counted: give epochs"
    with unchanged(trainer.model), pytest.raises(ValueError, match=sentence):
        trainer.run()


class Half(nn.Module):
    """Convolution, attention and a head that accept no float32 but in autocast."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self.strict = strict
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.convolution, self.head = nn.Conv1d(8, 8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.strict and not torch.is_autocast_enabled("cpu"):
            raise RuntimeError("float32 is refused")
        x = self.convolution(self.layer(x).transpose(1, 2)).mean(2)
        return self.head(x).squeeze(1).float().sigmoid()


def certain(outputs: Tensor, targets: Tensor) -> Tensor:
    assert not torch.is_autocast_enabled("cpu")  # as in training: some losses refuse it
    return nn.functional.binary_cross_entropy(outputs, targets, reduction="none")


def test_a_model_is_tried_and_counted_in_the_precision_of_its_training() -> None:
    rows = Batch(index=torch.arange(3), x=torch.randn(3, 6, 8), y=torch.ones(3))
    found = [
        Costs(Learner(Half(strict), TrainConfig(precision=precision), criterion=certain)).of(
            rows, lambda _: None
        )
        for strict, precision in ((False, "fp32"), (True, "bf16"))
    ]
    assert found[0] == found[1]
    assert found[0].forward > 0


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = nn.BCEWithLogitsLoss(reduction="none")
    return losses(outputs.squeeze(1), targets.float())


def counts(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.PoissonNLLLoss(reduction="none")(outputs.mean(1), targets.float())


def pairs(outputs: Tensor, targets: Tensor) -> Tensor:
    equal = targets[:, None] == targets
    distance = (outputs[:, None] - outputs).abs().sum(2)
    return torch.where(equal, distance, (1 - distance).relu()).mean(1)


@pytest.mark.parametrize(
    ("criterion", "width", "labels"), [(binary, 1, 2), (counts, 2, 9), (pairs, 4, 24)]
)
def test_integer_targets_are_no_classes_unless_the_criterion_says_so(
    criterion, width, labels
) -> None:
    data = TensorDataset(DATA.tensors[0], torch.arange(24) % labels)
    options = {"epochs": 1, "batch_size": 8, "criterion": criterion, "device": "cpu"}
    trainer = Trainer(nn.Linear(8, width), data, data, **options)
    assert "val_loss" in trainer.run().epochs[-1]
    tested = _tested(trainer, SimpleNamespace(held=lambda part: trainer.validation, metrics=()))
    assert (tested["metric"], tested["worst_class"]) == ("loss", None)
    with pytest.raises(ValueError, match=r"Kakurenbo .* has no class outputs"):
        Trainer(nn.Linear(8, width), data, policy="kakurenbo", **options).run()


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return -outputs.log_softmax(1)[torch.arange(len(targets)), targets] * torch.ones(3)[targets]


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(reduction="none"), weighted])
def test_labels_of_a_criterion_over_classes_are_checked(criterion) -> None:
    trainer = Trainer(nn.Linear(8, 3), DATA, DATA, epochs=1, criterion=criterion, device="cpu")
    assert "val_accuracy" in trainer.run().epochs[-1]
    last = TensorDataset(DATA.tensors[0], torch.tensor([*[0] * 23, 3]))  # in the last batch alone
    trainer = Trainer(nn.Linear(8, 3), [last[:23], last[23:]], epochs=1, criterion=criterion)
    with pytest.raises(ValueError, match="Label 3 occurs 1 time in batch 1"):
        trainer.run()


def test_queued_work_is_training_before_a_new_shape_is_run() -> None:
    trainer = Trainer(nn.Linear(8, 3), DATA, epochs=1, batch_size=8, device="cpu")
    trainer.ledger.waiting, trainer.ledger.synchronize = False, lambda: None
    rows = Batch(torch.arange(8), *DATA[:8])
    for queued in (False, True):  # a known shape waits for nothing
        with trainer.ledger.clock("training"):
            pass
        trainer._cost(rows)
        assert trainer.ledger.queued is queued
