"""Only the same run is resumed; what differs is named."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from astkit import InfoBatch, RandomSubset
from astkit.datasets import Loader, load
from astkit.gating import Gate
from astkit.trainers import Budget, Event, Metric, SampleBySampleTrainer, TrainConfig, Trainer
from astkit.trainers.fingerprint import LOSSES, check_same, source_code
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
Case = tuple[Callable[[], Options], Callable[[], Options], str]


def sgd(lr: float) -> Callable[[nn.Module], Any]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr)


def relabelled() -> Tensor:
    return torch.where(torch.arange(160) < 53, (Y + 1) % 10, Y)


def smooth(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.0)


def smoother(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def square(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.square().mean(1)


def fourth(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.square().square().mean(1)


def metric(function: Any) -> Options:
    return {"metrics": Metric("mine", function, higher_is_better=True)}


class Mine(RandomSubset):
    def observe(self, visit: Any) -> None:
        self.seen = visit.index


class Changed(RandomSubset):
    def observe(self, visit: Any) -> None:
        self.seen = visit.losses


Changed.__name__ = "Mine"


@dataclass
class Config:
    threshold: float


class Configured(nn.Sequential):
    """Has a setting that its first losses do not show."""

    def __init__(self, threshold: float) -> None:
        super().__init__(*network())
        self.config = Config(threshold)


CASES: dict[str, Case] = {
    "lr": (dict, lambda: {"config": TrainConfig(lr=2e-2)}, r"\(lr was 0.01 and is 0.02"),
    "gate's rate": (dict, lambda: {"policy": Gate(0.5)}, "rate was 0.4 and is 0.5"),
    "score": (
        dict, lambda: {"policy": Gate(0.4, "margin")}, "policy.score was 'loss' and is 'margin'"
    ),
    "no policy": (dict, lambda: {"policy": None}, "policy"),
    "budget": (dict, lambda: {"budget": Budget(epochs=4)}, "budget.epochs was 3.0 and is 4.0"),
    "schedule": (
        lambda: {"config": TrainConfig(lr=1e-2, schedule=lambda progress: 1 - progress)},
        lambda: {"config": TrainConfig(lr=1e-2, schedule=lambda progress: 1 - progress**2)},
        "lr_factors",
    ),
    "batch size": (dict, lambda: {"batch_size": 32}, "data.batch_size was 16 and is 32"),
    "width": (dict, lambda: {"model": network(9)}, "model"),
    "labels": (
        dict, lambda: {"train": TensorDataset(X, relabelled())}, r"data\.labels\.0 was \d+ and is"
    ),
    "validation rows": (
        dict, lambda: {"validation": TensorDataset(X[:41], Y[:41])}, r"validation\.0 was 40 and"
    ),
    "criterion": (
        lambda: {"criterion": smooth}, lambda: {"criterion": smoother}, r"criterion\.code\.0 was"
    ),
    "metric": (lambda: metric(square), lambda: metric(fourth), r"metrics\.mine\.0 was"),
    "another policy's code": (
        lambda: {"policy": Mine(0.5)}, lambda: {"policy": Changed(0.5)}, r"policy\.code\.0 was"
    ),
    "optimizer": (
        dict, lambda: {"optimizer": sgd(1e-2)}, "optimizer.class was 'AdamW' and is 'SGD'"
    ),
    "optimizer's rate": (
        lambda: {"optimizer": sgd(0.1)},
        lambda: {"optimizer": sgd(0.2)},
        "optimizer.groups.0.lr was 0.1 and is 0.2",
    ),
    "trainer": (
        dict, lambda: {"kind": SampleBySampleTrainer},
        "trainer was 'Trainer' and is 'SampleBySampleTrainer', update was None and is 'per_sample'"
    ),
    "model's config": (
        lambda: {"model": Configured(0.5)}, lambda: {"model": Configured(math.inf)},
        "model config.threshold was 0.5 and is 'inf'",
    ),
    "replay": (
        lambda: {"replay": [Event(40, "rate", 0.5)]}, dict,
        "replay.0.name was 'rate' and is None",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_changed_run_is_refused_in_one_sentence_that_names_the_part(name, tmp_path):
    then, now, part = CASES[name]
    leave_after(build(tmp_path, **then()), 4)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=rf"was made with other settings .*({part})") as caught:
        build(tmp_path, resume=True, **now())
    assert "\n" not in str(caught.value)
    assert "restore them to continue, or choose another folder" in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert build(tmp_path, resume=True, **then()).step == 4  # of an unseeded model


def test_free_settings_are_accepted(tmp_path: Path) -> None:
    run = leave_after(build(tmp_path), 4)
    config = TrainConfig(lr=1e-2, threads=1, report_every=7)
    assert build(tmp_path, resume=True, config=config).step == run.step


def test_a_scheduler_at_another_step_is_the_same(tmp_path: Path) -> None:
    def options() -> Options:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return {"model": model, "optimizer": lambda _: optimizer,
                "scheduler": lambda _: StepLR(optimizer, 2)}  # fmt: skip

    leave_after(build(tmp_path, **options()), 5)
    assert build(tmp_path, resume=True, **options()).step == 5


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


def made(tmp_path: Path, text: str) -> Any:
    """A function defined in a module of its own."""
    path = tmp_path / f"module_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(text)
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(text, str(path), "exec"), names)
    return names["f"]


def test_comments_do_not_count_and_what_has_no_source_has_its_name(tmp_path: Path) -> None:
    first = made(tmp_path, "def f(x):\n    return x + 1\n")
    twin = made(tmp_path, "def f( x ):  # adds one\n\n    return x+1\n")
    other = made(tmp_path, "def f(x):\n    return x + 2\n")
    assert source_code(first) == source_code(twin) != source_code(other)
    assert source_code(partial(first, 1)) != source_code(partial(first, 2))
    namespace: dict[str, Any] = {}
    exec("def f(x): pass", namespace)
    assert source_code(namespace["f"]) == ["f"]
    assert source_code(nn.CrossEntropyLoss()) == source_code(Gate(0.5)) == ["object"]


def test_losses_within_a_thousandth_are_the_same() -> None:
    check_same({LOSSES: [2.0, 0.0]}, {LOSSES: [2.001, 0.0009]}, "a folder")
    with pytest.raises(ValueError, match=r"first losses.0 was 2.0 and is 2.01"):
        check_same({LOSSES: [2.0]}, {LOSSES: [2.01]}, "a folder")


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
