"""What is looked at before the first step: targets, labels, rows to validate, features."""

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset, default_collate

from astkit.datasets import Loader
from astkit.gating import Gate, Policy
from astkit.trainers import Budget, TrainConfig, Trainer
from tests import build
from tests.build import refused
from tests.datasets.transformed import Transformed, dimmed

DATA = TensorDataset(torch.randn(24, 8), torch.arange(24) % 3)


class Named(nn.Linear):
    """Takes its inputs and labels by name."""

    def forward(self, input: Tensor, labels: Any = None) -> Tensor:
        return super().forward(input)


class Reading(nn.Linear):
    def forward(self, batch: Any) -> Tensor:  # type: ignore[override]
        return super().forward(batch["pixels"])


def trainer(data: Any = DATA, model: nn.Module | None = None, **options: Any) -> Trainer:
    options = {"epochs": 1, **options}
    return build.trainer(model or nn.Linear(8, 3), data, data, **options)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [(DATA.tensors[0].double(), "and torch.float64"), (torch.randn(24, 9), r"\[2, 9\]")],
)
def test_inputs_that_the_model_refuses_are_named(inputs: Tensor, said: str, unchanged: Any) -> None:
    run = trainer(TensorDataset(inputs, DATA.tensors[1]))
    sentence = f"the model refused inputs of shape .*{said}.* pass data .* float32"
    with unchanged(run.model), pytest.raises(ValueError, match=sentence):
        run.run()


def mapped(key: str) -> Any:
    rows = [{key: x, "labels": y} for x, y in DATA]
    return ConcatDataset([rows])  # type: ignore[arg-type, list-item]


PLAIN: dict[str, tuple[nn.Module, Any, str]] = {
    "a layer": (nn.Linear(8, 3), mapped("x"), "a mapping with keys x, labels: let its forward"),
    "layers": (
        nn.Sequential(nn.Flatten(), nn.Linear(8, 3)),
        mapped("pixels"),
        "a mapping with keys pixels, labels: let its forward name the keys",
    ),
    "another key": (Named(8, 3), mapped("inputs"), "a mapping with keys inputs, labels: let its"),
    "a key that is read": (Reading(8, 3), mapped("ids"), "a mapping with keys ids, labels: let"),
    "a mapping and targets": (
        nn.Linear(8, 3),
        ConcatDataset([[({"x": x}, y) for x, y in DATA]]),  # type: ignore[arg-type, list-item]
        r"a mapping with keys x: .* or the data give pairs \(x, y\) of tensors",
    ),
    "two inputs": (
        nn.Linear(8, 3), TensorDataset(*DATA.tensors[:1], *DATA.tensors), "2 parts: let its forward"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_a_mapping_to_a_plain_layer_is_one_sentence(name: str) -> None:
    model, data, said = PLAIN[name]
    refused((lambda: trainer(data, model).run(), f"the model refused inputs of {said}"))


class LazyNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.last(x)}


IMAGES = TensorDataset(torch.randn(24, 2, 6, 6), DATA.tensors[1])
LAZY: dict[str, tuple[Any, Any]] = {
    "linear": (lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3)), DATA),
    "images": (
        lambda: nn.Sequential(
            nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3)
        ),
        IMAGES,
    ),
    "mappings": (LazyNamed, mapped("x")),
}


def test_lazy_modules_that_no_pass_reaches_are_named() -> None:
    model = nn.Linear(8, 3)
    model.extra = nn.LazyLinear(2)
    refused(
        (lambda: trainer(DATA, model), r"forward pass does not use, extra.weight: leave them"),
        (
            lambda: trainer(mapped("x"), nn.LazyLinear(3)),
            "the model refused inputs of a mapping with keys x, lab",
        ),
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "dense": {},
    "own criterion": {"criterion": nn.CrossEntropyLoss(reduction="none")},
    "gate": {"policy": Gate(0.5, "contrast")},
    "class_balanced": {"policy": "class_balanced"},
    "auto": {"policy": "auto"},
    "mappings": {"model": Named},
}  # fmt: skip


@pytest.mark.parametrize("kind", [torch.int32, torch.uint16, torch.uint32])
@pytest.mark.parametrize("name", SETTINGS)
def test_labels_of_any_integer_type_train_alike(name: str, kind: torch.dtype) -> None:
    runs = []
    for dtype in (torch.int64, kind):
        labels = DATA.tensors[1].to(dtype)
        options = dict(SETTINGS[name])
        data: Any = TensorDataset(DATA.tensors[0], labels)
        if name == "mappings":
            rows = [{"input": x, "labels": y} for x, y in data]
            data = build.as_dataset(rows, labels=labels)
        model = build.seeded(partial(options.pop("model", nn.Linear), 8, 3))
        runs.append(trainer(data, model, **copy.deepcopy(options)))
        runs[-1].run()
    states = [run.model.state_dict() for run in runs]
    assert all(states[0][key].equal(states[1][key]) for key in states[0])
    assert runs[0].evaluate(runs[0].validation) == runs[1].evaluate(runs[1].validation)
    assert "val_accuracy" in runs[1].history.epochs[-1]


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.uint64])
def test_masks_of_any_integer_type(kind: torch.dtype) -> None:
    images, masks = torch.randn(24, 1, 4, 4), (torch.arange(24 * 16) % 3).reshape(24, 4, 4)
    pixels = nn.Conv2d(1, 3, 1)
    losses = []
    for dtype in (torch.int64, kind):
        run = trainer(TensorDataset(images, masks.to(dtype)), copy.deepcopy(pixels))
        losses.append(run.run().epochs[-1]["val_loss"])
    assert losses[0] == losses[1]


def soft(rows: int = 24) -> Tensor:
    return torch.randn(rows, 3).softmax(1)


@pytest.mark.parametrize(
    "targets",
    [torch.randn(24, 3), soft() - 0.01, torch.rand(24, 3).round(), 2 * soft()],
    ids=["regression", "sum below 1", "several labels", "sum 2"],
)
@pytest.mark.parametrize("policy", [None, "gate"])
def test_float_targets_that_are_no_probabilities_are_refused(targets, policy, unchanged):
    run = trainer(TensorDataset(DATA.tensors[0], targets), policy=policy)
    sentence = r"no class probabilities .* pass criterion=nn.MSELoss\(reduction='none'\)"
    with unchanged(run.model), pytest.raises(ValueError, match=sentence):
        run.run()


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_class_probabilities_are_trained_on(kind: torch.dtype) -> None:
    targets = soft().to(kind)
    run = trainer(TensorDataset(DATA.tensors[0], targets), epochs=20, config=TrainConfig(lr=0.1))
    losses = [epoch["val_loss"] for epoch in run.run().epochs]
    entropy = float(-(targets.float() * targets.float().log()).sum(1).mean())
    assert entropy * 0.99 < losses[-1] < losses[0]


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
def test_integer_targets_are_no_classes_unless_the_criterion_says_so(criterion, width, labels):
    data = TensorDataset(DATA.tensors[0], torch.arange(24) % labels)
    run = trainer(data, nn.Linear(8, width), criterion=criterion)
    (epoch,) = run.run().epochs
    assert "val_loss" in epoch
    assert "val_accuracy" not in epoch


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return -outputs.log_softmax(1)[torch.arange(len(targets)), targets] * torch.ones(3)[targets]


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(reduction="none"), weighted])
def test_labels_of_a_criterion_over_classes_are_checked(criterion: Any) -> None:
    run = trainer(criterion=criterion)
    assert "val_accuracy" in run.run().epochs[-1]
    last = TensorDataset(DATA.tensors[0], torch.tensor([*[0] * 23, 3]))  # in the last batch alone
    with pytest.raises(ValueError, match="3 is out of bounds"):
        trainer([last[:23], last[23:]], criterion=criterion).run()


class Half(nn.Module):
    """A model that accepts no float32 but in autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled("cpu"):
            raise RuntimeError("float32 is refused")
        return self.head(x).squeeze(1).float().sigmoid()


def certain(outputs: Tensor, targets: Tensor) -> Tensor:
    assert not torch.is_autocast_enabled("cpu")  # as in training: some losses refuse it
    return F.binary_cross_entropy(outputs, targets, reduction="none")


def test_a_model_is_tried_and_counted_in_the_precision_of_its_training() -> None:
    data = TensorDataset(DATA.tensors[0], torch.ones(24))
    run = trainer(data, Half(), criterion=certain, config=TrainConfig(precision="bf16"))
    run.run()
    assert run.ledger.flops.forward == 24 * 2 * 8


@pytest.mark.parametrize("policy", [None, Gate(0.5)])
def test_flops_that_cannot_be_counted_are_said_once_and_kept_in_the_ledger(policy, unchanged):
    run = trainer(model=build.Spectral(8, 3), policy=policy, epochs=2)
    with pytest.warns(UserWarning, match="FLOPs of _fft_r2c cannot be counted") as caught:
        run.run()
    assert len(caught) == 1
    assert run.ledger.uncounted == {"_fft_r2c"}
    assert run.ledger.flops.total > 0  # a lower bound
    again = trainer(model=build.Spectral(8, 3), policy=policy, epochs=2)
    again.load_state_dict(run.state_dict())
    assert again.ledger.uncounted == {"_fft_r2c"}
    with warnings.catch_warnings(action="error"):
        counted = trainer()
        counted.run()
    assert counted.ledger.uncounted == set()
    limited = trainer(
        model=build.Spectral(8, 3), policy=policy, epochs=None, budget=Budget(flops=1e6)
    )
    sentence = r"budget flops is 1e\+06, but the FLOPs of _fft_r2c cannot be counted: give epochs"
    with (
        unchanged(limited.model),
        pytest.warns(UserWarning, match="FLOPs of _fft_r2c cannot be counted"),
        pytest.raises(ValueError, match=sentence),
    ):
        limited.run()


class Looking(Policy):
    """Keeps the features of ``rows``, of each of the data that it is asked for."""

    def __init__(self, rows: Tensor, *of: str) -> None:
        self.rows, self.of = rows, of

    def plan(self, run: Any) -> None:
        assert run.features is not None
        self.found = [run.features(self.rows, of) for of in self.of]


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_features_are_the_last_hidden_layer_the_loss_and_the_entropy(micro_batch: Any) -> None:
    rows, between = torch.tensor([3, 20, 1]), (nn.Dropout(0.5), nn.Tanh())
    model = build.network(8, 3, 5, *between)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    policy = Looking(rows, "data", "validation")
    run = trainer(model=model, policy=policy, config=TrainConfig(micro_batch=micro_batch))
    next(run.steps())
    model.load_state_dict(before)
    x, y = DATA[rows]
    with torch.no_grad():
        hidden = model[:4].eval()(x)
        logs = model[4](hidden).log_softmax(1)
    expected = [hidden, F.nll_loss(logs, y, reduction="none")[:, None]]
    expected += [-(logs.exp() * logs).sum(1, keepdim=True)]
    for found in policy.found:
        torch.testing.assert_close(found, torch.cat(expected, 1))


@pytest.mark.filterwarnings("error")
def test_a_complex_hidden_layer_is_its_real_and_imaginary_parts() -> None:
    class Moduli(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(8, 3, dtype=torch.complex64)

        def forward(self, input: Tensor) -> Tensor:
            return self.last(torch.fft.fft(input)).abs()

    policy = Looking(torch.arange(4), "data")
    trainer(model=Moduli(), policy=policy, flops=1.0).run()
    expected = torch.view_as_real(torch.fft.fft(DATA.tensors[0][:4])).flatten(1)
    torch.testing.assert_close(policy.found[0][:, :-2], expected)


def dimmed_batch(items: list[Any]) -> Any:
    x, y = default_collate(items)
    return dimmed(x), y


@pytest.mark.parametrize("by", ["the loader", "the data set", "the collate function"])
def test_features_are_those_of_rows_that_are_not_augmented(by: str) -> None:
    """Otherwise training data would differ from validation data that are like them."""

    data, policy = build.images(20), Looking(torch.arange(20), "data", "validation")
    model = build.network(64, 3, 0)
    train = {
        "the loader": Loader(data, 8, augment=("crop", "flip"), drop_last=True),
        "the data set": Loader(Transformed(data, dimmed), 8),
        "the collate function": Loader(Transformed(data), 8, collate_fn=dimmed_batch),
    }[by]
    target = data if by == "the loader" else Transformed(data)
    next(Trainer(model, train, target, policy=policy, epochs=1, device="cpu").steps())
    torch.testing.assert_close(*policy.found)


def test_policies_with_a_memory_need_the_index() -> None:
    def train(policy: Any, data: Any) -> None:
        run = build.trainer(nn.Linear(8, 3), data, policy=policy, epochs=1)
        run.evaluate(data)  # which needs none
        run.run()

    for policy in ("infobatch", "cached_loss"):
        train(policy, Loader(DATA, 8))
        shuffled = DataLoader(DATA, 8, shuffle=True)
        refused((partial(train, policy, shuffled), r"pass the data set (itself|instead)"))
