"""A folder refuses results of another comparison, in one sentence that names what differs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import astkit
from astkit import Budget, Gate, Metric, TrainConfig
from astkit.datasets import Images, Loader, load
from astkit.gating import InfoBatch, Kakurenbo, LogIntegral
from astkit.gating.policies import auto
from astkit.models import DigitsCNN

IMAGES = load("digits")[0]
STATS = IMAGES.channel_stats()
CHANGED = "was made with another {}.*: restore it"


def make_model() -> nn.Module:
    return DigitsCNN()


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float()


def part(first: int, last: int, images: Images = IMAGES) -> Loader:
    rows = torch.arange(first, last)
    return Loader(images.subset(rows), 64, shuffle=first == 0, normalize=STATS)


def digits(out: Path, **options: Any) -> Any:
    usual: dict[str, Any] = {
        "make_model": make_model,
        "train": part(0, 300),
        "validation": part(300, 400),
        "test": part(400, 500),
        "policies": ["infobatch"],
        "budget": Budget(steps=6),
        "seeds": [0],
        "config": TrainConfig(lr=1e-3),
        "check_baseline": False,
        "out": out,
    }
    return astkit.compare(**{**usual, **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a comparison with the options given, trained once."""
    made: dict[str, Path] = {}

    def of(**options: Any) -> Path:
        name = str(sorted(options))
        if name not in made:
            made[name] = tmp_path_factory.mktemp("folder")
            digits(made[name], **options)
        return made[name]

    return of


def refused(folder: Path, what: str, **options: Any) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    with pytest.raises(ValueError, match=CHANGED.format(what)) as caught:
        digits(folder, **options)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before


def squared(self: Any, visit: Any) -> None:
    """A memory of squared losses."""
    self.losses[visit.index] = visit.losses.square()


def patched(monkeypatch: pytest.MonkeyPatch, case: str) -> str | Gate:
    """Change one number that a policy computes with; returns the policy."""
    if case == "infobatch, rate":
        monkeypatch.setattr(InfoBatch, "r", 0.3, raising=False)
        original = InfoBatch.plan
        monkeypatch.setattr(InfoBatch, "plan", lambda self, run: original(_With(self, r=0.4), run))
    elif case == "infobatch, memory":
        monkeypatch.setattr(InfoBatch, "observe", squared)
    elif case == "auto, exponent":
        monkeypatch.setattr(auto, "POWER", 2)
    elif case == "auto, memory":
        original_observe = auto.Auto.observe

        def halved(self: Any, visit: Any) -> None:
            original_observe(self, visit)
            self.losses[visit.index] = visit.losses.square()

        monkeypatch.setattr(auto.Auto, "observe", halved)
    elif case == "kakurenbo, rate":
        original_plan = Kakurenbo.plan
        monkeypatch.setattr(
            Kakurenbo, "plan", lambda self, run: original_plan(_With(self, hidden=0.2), run)
        )
    elif case == "kakurenbo, memory":
        original_seen = Kakurenbo.observe

        def unsure(self: Any, visit: Any) -> None:
            original_seen(self, visit)
            self.sure[visit.index] &= visit.index % 2 == 0

        monkeypatch.setattr(Kakurenbo, "observe", unsure)
    elif case == "gate, exponent":
        moved = LogIntegral.moved
        monkeypatch.setattr(LogIntegral, "moved", lambda self, *args: moved(self, *args) * 1.1)
    return Gate(0.25) if case.startswith("gate") else case.partition(",")[0]


class _With:
    """A policy whose methods read other values of some attributes."""

    def __init__(self, policy: Any, **values: Any) -> None:
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "values", values)

    def __getattr__(self, name: str) -> Any:
        return self.values.get(name, getattr(self.policy, name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.policy, name, value)


CASES = (
    "infobatch, rate",
    "infobatch, memory",
    "auto, exponent",
    "auto, memory",
    "kakurenbo, rate",
    "kakurenbo, memory",
    "gate, exponent",
)


@pytest.mark.parametrize("case", CASES)
def test_a_policy_that_computes_otherwise(
    case: str, folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = ["infobatch", "auto", "kakurenbo", Gate(0.25)]
    made = folder(policies=policies)
    policy = patched(monkeypatch, case)
    refused(made, "policy", policies=[policy])


def test_other_initial_weights(folder: Callable[..., Path]) -> None:
    other = {name: 0.9 * value for name, value in DigitsCNN().state_dict().items()}

    def loaded() -> nn.Module:
        model = DigitsCNN()
        model.load_state_dict(other)
        return model

    refused(folder(), "model and criterion", make_model=loaded)


def test_other_labels_in_a_data_set_without_labels(folder: Callable[..., Path]) -> None:
    class Bare(Dataset[Any]):
        def __init__(self, flipped: int = 0) -> None:
            self.flipped = flipped

        def __len__(self) -> int:
            return 300

        def __getitem__(self, row: int) -> Any:
            image, label = IMAGES[row]
            return image.float() / 255, (label + 1) % 10 if row < self.flipped else label

    options = {"policies": ["infobatch"], "batch_size": 64}
    made = folder(train=Bare(), **options)
    refused(made, "training data", train=Bare(100), **options)


def test_data_scaled_by_another_number_and_other_test_data(folder: Callable[..., Path]) -> None:
    scaled = Images(
        (IMAGES.images * 0.7).to(torch.uint8), IMAGES.labels, IMAGES.classes, IMAGES.name
    )
    refused(folder(), "training data", train=part(0, 300, scaled))
    refused(folder(), "test data", test=part(410, 510))


def test_the_body_of_a_metric_and_a_helper_two_levels_deep(
    folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = {"of": 1.0}

    def deep(values: Tensor) -> Tensor:
        return values * weight["of"]

    def helper(values: Tensor) -> Tensor:
        return deep(values)

    def metric(outputs: Tensor, targets: Tensor) -> Tensor:
        return helper(right(outputs, targets))

    metrics = [Metric("right", metric, higher=True)]
    made = folder(metrics=metrics)
    weight["of"] = 0.5
    refused(made, "metrics", metrics=metrics)


def test_the_body_of_a_criterion_and_of_an_optimizer(folder: Callable[..., Path]) -> None:
    smoothing = {"by": 0.0}

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        by = smoothing["by"]
        return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=by)

    made = folder(criterion=criterion)
    smoothing["by"] = 0.1
    refused(made, "model and criterion", criterion=criterion)

    class Slow(torch.optim.SGD):
        factor = 1.0

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(self.factor)
            return super().step(closure)

    def make(model: nn.Module) -> Slow:
        return Slow(model.parameters(), lr=0.1)

    made = folder(make_optimizer=make)
    Slow.factor = 0.5
    refused(made, "optimizer", make_optimizer=make)


def test_other_settings_are_named(folder: Callable[..., Path]) -> None:
    what = r"settings \(lr was 0.001 and is 0.002, .*"
    refused(folder(), what, config=TrainConfig(lr=2e-3))


def test_weights_perturbed_by_rounding_and_other_threads_are_the_same(
    folder: Callable[..., Path],
) -> None:
    def perturbed() -> nn.Module:
        model = DigitsCNN()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 1e-7)
        return model

    made = folder()
    before = json.loads((made / "comparison.json").read_text())["entries"]
    again = digits(made, make_model=perturbed, config=TrainConfig(lr=1e-3, threads=1))
    assert again.entries == before


def test_changed_code_with_the_same_numbers_only_warns(
    folder: Callable[..., Path], tmp_path: Path
) -> None:
    def written(comment: str) -> Any:
        path = tmp_path / "mine.py"
        body = "    return (outputs.argmax(1) == targets).float()\n"
        path.write_text(f"def right(outputs, targets):{comment}\n{body}")
        scope: dict[str, Any] = {"__name__": "mine"}
        exec(compile(path.read_text(), str(path), "exec"), scope)
        return scope["right"]

    import linecache

    made = folder(metrics={"right": written("")})
    linecache.clearcache()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        digits(made, metrics={"right": written("  # a comment")})
    assert [w for w in caught if "its numbers" in str(w.message)]


def test_data_that_differ_at_each_reading_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    class Noisy(Dataset[Any]):
        """Rows with noise from a generator of the data set's own."""

        random = torch.Generator()
        labels = IMAGES.labels[:300]

        def __len__(self) -> int:
            return 300

        def __getitem__(self, row: int) -> Any:
            image, label = IMAGES[row]
            return image / 255 + torch.rand(1, generator=self.random), label

    options: dict[str, Any] = {"train": Noisy(), "batch_size": 64}
    report = digits(tmp_path, **options)
    assert any(note.startswith("training data") for note in report.notes)
    assert digits(tmp_path, **options).entries == report.entries


def test_a_folder_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"policies": {}, "model": "ab12", "lr": 0.001}')
    with pytest.raises(ValueError, match="choose another folder"):
        digits(tmp_path)
