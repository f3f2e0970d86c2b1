"""Only the same run is resumed; what differs is named by the numbers that it changes."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from astkit import InfoBatch
from astkit.datasets import Loader, load
from astkit.gating import Gate, LogIntegral
from astkit.trainers import Budget, Event, Metric, SampleBySampleTrainer, TrainConfig, Trainer
from astkit.trainers.fingerprint import check_same, plain, repeated
from tests.trainers.states import leave_after

DIGITS = load("digits")[0]
X, Y = DIGITS.images[:160].float() / 16, DIGITS.labels[:160]
HELD = TensorDataset(X[:40].flip(2), Y[:40])


def network(width: int = 8, activation: type[nn.Module] = nn.ReLU) -> Any:
    """Unseeded."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.Dropout(), activation(), nn.Linear(width, 10)
    )


def build(folder: Path, resume: bool = False, **options: Any) -> Any:
    model = options.pop("model", None) or network()
    for name in ("optimizer", "scheduler"):
        if name in options:
            options[name] = options[name](model if name == "optimizer" else options["optimizer"])
    options = {
        "train": TensorDataset(X, Y),
        "validation": HELD,
        "policy": Gate(0.4),
        "config": TrainConfig(lr=1e-2),
        "batch_size": 16,
        **options,
    }
    if "budget" not in options:
        options.setdefault("epochs", 3)
    if isinstance(options["train"], Loader | DataLoader):
        del options["batch_size"]
    kind = options.pop("kind", Trainer)
    return kind(model, checkpoints=folder, resume=resume, device="cpu", **options)


Options = dict[str, Any]
MODEL = "model, criterion or metric: restore"
Case = tuple[Callable[[], Options], Callable[[], Options], str]


def sgd(lr: float) -> Callable[[nn.Module], Any]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr)


def first_row() -> Tensor:
    x = X.clone()
    x[0] = x[1]
    return x


def relabelled() -> Tensor:
    return torch.where(torch.arange(160) < 53, (Y + 1) % 10, Y)


class Bare(Dataset):
    """Rows without an attribute for labels."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.y[row]


def smoothed(by: float) -> Any:
    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=by)

    return criterion


def metric(factor: float) -> Options:
    def scaled(outputs: Tensor) -> Tensor:
        return factor * outputs.square().mean(1)

    return {"metrics": Metric("square", lambda outputs, targets: 1 + scaled(outputs), True)}


class Doubling(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@dataclass
class Config:
    threshold: float


class Configured(nn.Sequential):
    """Has a setting that its first losses do not show."""

    def __init__(self, threshold: float) -> None:
        super().__init__(*network())
        self.config = Config(threshold)


CASES: dict[str, Case] = {
    "lr": (dict, lambda: {"config": TrainConfig(lr=2e-2)}, r"settings \(lr was 0.01 and is 0.02"),
    "gate's rate": (dict, lambda: {"policy": Gate(0.5)}, "rate was 0.4 and is 0.5"),
    "score": (
        dict, lambda: {"policy": Gate(0.4, "margin")}, "policy.score was 'loss' and is 'margin'"
    ),
    "no policy": (dict, lambda: {"policy": None}, "policy"),
    "budget": (dict, lambda: {"budget": Budget(epochs=4)}, "budget.epochs was 3 and is 4"),
    "schedule": (
        lambda: {"config": TrainConfig(lr=1e-2, schedule=lambda progress: 1 - progress)},
        lambda: {"config": TrainConfig(lr=1e-2, schedule=lambda progress: 1 - progress**2)},
        "lr_factors",
    ),
    "batch size": (dict, lambda: {"batch_size": 32}, "data.batch_size was 16 and is 32"),
    "augmentation": (
        lambda: {"train": Loader(DIGITS.subset(range(160)), 16, augment=("crop",))},
        lambda: {"train": Loader(DIGITS.subset(range(160)), 16, augment=("flip",))},
        "training data",
    ),
    "width": (dict, lambda: {"model": network(9)}, "model"),
    "activation": (dict, lambda: {"model": network(activation=nn.Tanh)}, MODEL),
    "forward": (dict, lambda: {"model": Doubling(*network())}, MODEL),
    "optimizer": (
        dict, lambda: {"optimizer": sgd(1e-2)}, "optimizer.class was 'AdamW' and is 'SGD'"
    ),
    "optimizer's rate": (
        lambda: {"optimizer": sgd(0.1)},
        lambda: {"optimizer": sgd(0.2)},
        "optimizer.groups.0.lr was 0.1 and is 0.2",
    ),
    "a row": (dict, lambda: {"train": TensorDataset(first_row(), Y)}, "training data"),
    "a third of the labels": (
        lambda: {"train": Bare(X, Y)}, lambda: {"train": Bare(X, relabelled())}, "training data"
    ),
    "data of a loader": (
        lambda: {"train": DataLoader(TensorDataset(X, Y), 16)},
        lambda: {"train": DataLoader(TensorDataset(0.9 * X, Y), 16)},
        "training data",
    ),
    "validation data": (
        dict, lambda: {"validation": TensorDataset(X[:40], Y[:40])}, "validation data"
    ),
    "criterion": (
        lambda: {"criterion": smoothed(0.0)}, lambda: {"criterion": smoothed(0.1)}, MODEL
    ),
    "metric": (lambda: metric(1.0), lambda: metric(0.5), MODEL),
    "trainer": (
        dict, lambda: {"kind": SampleBySampleTrainer},
        "trainer was 'Trainer' and is 'SampleBySampleTrainer', update was None and is 'per_sample'"
    ),
    "model's config": (
        lambda: {"model": Configured(0.5)}, lambda: {"model": Configured(math.inf)},
        "model config.threshold was 0.5 and is inf",
    ),
    "replay": (
        lambda: {"replay": [Event(40, "rate", 0.5)]}, dict,
        "replay.0.name was 'rate' and is None",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_changed_run_is_refused_in_one_sentence_that_names_the_part(
    name: str, tmp_path: Path
) -> None:
    then, now, part = CASES[name]
    leave_after(build(tmp_path, **then()), 4)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=rf"was made with another .*({part})") as caught:
        build(tmp_path, resume=True, **now())
    assert "\n" not in str(caught.value)
    assert "restore it to continue, or choose another folder" in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert build(tmp_path, resume=True, **then()).step == 4  # of an unseeded model


def _changed(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, change: Any) -> None:
    original = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda self, *args: change(original, self, *args))


def _squared(original: Any, self: Any, visit: Any) -> None:
    original(self, visit)
    self.losses[visit.index] = visit.losses.square()


@pytest.mark.parametrize(
    ("policy", "kind", "method", "change"),
    [
        ("infobatch", InfoBatch, "observe", _squared),
        ("gate", LogIntegral, "moved", lambda moved, *args: 1.1 * moved(*args)),
    ],
)
def test_a_policy_whose_methods_compute_otherwise_is_refused(
    policy: str, kind: type, method: str, change: Any, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    leave_after(build(tmp_path, policy=policy), 4)
    build(tmp_path, policy=policy, resume=True)
    _changed(monkeypatch, kind, method, change)
    with pytest.raises(ValueError, match="was made with another policy: restore it"):
        build(tmp_path, policy=policy, resume=True)


# --- what is the same run


def test_weights_that_differ_by_rounding_and_free_settings_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = leave_after(build(tmp_path), 4)
    real = Trainer.load_state_dict

    def perturbed(self: Trainer, state: Any) -> None:
        real(self, state)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1 + factor)

    monkeypatch.setattr(Trainer, "load_state_dict", perturbed)
    factor, config = 1e-7, TrainConfig(lr=1e-2, threads=1, report_every=7)
    assert build(tmp_path, resume=True, config=config).step == run.step
    factor = 1e-2
    with pytest.raises(ValueError, match="another model, criterion"):
        build(tmp_path, resume=True)


def test_a_scheduler_at_another_step_is_the_same(tmp_path: Path) -> None:
    def options() -> Options:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return {"model": model, "optimizer": lambda _: optimizer,
                "scheduler": lambda _: StepLR(optimizer, 2)}  # fmt: skip

    leave_after(build(tmp_path, **options()), 5)
    assert build(tmp_path, resume=True, **options()).step == 5


class Noisy(Dataset):
    """Rows with noise from a generator of its own."""

    random = torch.Generator()

    def __len__(self) -> int:
        return 160

    def __getitem__(self, row: int) -> Any:
        return X[row] + torch.rand(1, generator=self.random), Y[row]


def test_parts_that_differ_from_one_evaluation_to_the_next_are_left_out(tmp_path: Path) -> None:
    run = leave_after(build(tmp_path, train=Noisy(), validation=None), 4)
    assert run._described["training data"] is None
    assert run.first_batches[0] is None
    assert build(tmp_path, train=Noisy(), validation=None, resume=True).step == 4


def test_nothing_of_the_run_is_touched(tmp_path: Path, unchanged: Any) -> None:
    model, policy = network(), InfoBatch()
    state = torch.get_rng_state()
    drawn = torch.Generator().manual_seed(3)
    before = policy.state_dict()
    loader = DataLoader(TensorDataset(X, Y), 16, shuffle=True, generator=drawn)
    kept = drawn.get_state()
    with unchanged(model):
        build(tmp_path / "a", model=model, policy=policy)
        run = build(tmp_path / "b", model=model, policy=None, train=loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(drawn.get_state(), kept)
    assert [str(value) for value in policy.state_dict().values()] == [
        str(value) for value in before.values()
    ]
    assert not run.optimizer.state_dict()["state"]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())


# --- the numbers


def test_numbers_that_change_or_fail_are_none() -> None:
    count = itertools.count()
    assert repeated(lambda: [float(next(count))]) is None
    assert repeated(lambda: [1 / 0]) is None
    assert repeated(lambda: torch.rand(2).tolist()) is not None  # seeded
    assert repeated(lambda: [math.nan, 1.0]) is not None


@dataclass
class Held:
    lock: Any
    size: int


def test_the_tolerance_is_that_of_the_precision() -> None:
    def same(then: Any, now: Any, half: bool = False) -> bool:
        try:
            check_same({"a": then}, {"a": now, "half": half}, "a folder")
        except ValueError:
            return False
        return True

    for half, factor, expected in ((False, 1e-5, True), (False, 1e-3, False), (True, 1e-3, True),
                                   (True, 0.1, False)):  # fmt: skip
        assert same([1.0], [1.0 + factor], half) is expected
    assert same(None, [1.0])
    assert same(plain({"cut": math.nan}), plain({"cut": float("nan")}))
    assert not same([1.0], [1.0, 2.0])
    # nothing of an object is copied, which may be impossible
    assert plain(Held(threading.Lock(), 2)) == {"class": "Held", "lock": "lock", "size": 2}
    for damaged in (["x"], [{}], {"b": 1}, "x"):
        assert not same(damaged, [1.0])


@pytest.mark.parametrize(
    ("order", "grouped"), [((3, 2, 1, 0), False), ((2, 3, 0, 1), True), ((2, 1, 0, 3), False)]
)
def test_moments_stay_with_their_parameters(tmp_path: Path, order: Any, grouped: bool) -> None:
    """An optimizer's state has no names: those of equal shapes would be exchanged."""

    def run(order: Any, resume: bool = False) -> Any:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        parts = [list(model.parameters())[number] for number in order]
        groups: Any = [{"params": each} for each in parts] if grouped else parts
        return build(tmp_path, resume, model=model, optimizer=lambda _: torch.optim.Adam(groups))

    leave_after(run(range(4)), 4)
    with pytest.raises(ValueError, match=r"params.0 was '1.weight' and is '3"):
        run(order, True)
    run(range(4), True)
