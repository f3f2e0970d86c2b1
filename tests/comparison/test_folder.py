"""A folder refuses results of another comparison, in one sentence that names what differs.

What a fingerprint sees in general is tested in `tests.trainers.test_fingerprint`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from astkit import Gate, InfoBatch, Kakurenbo, Metric, TrainConfig
from astkit.gating import LogIntegral
from astkit.gating.policies.auto import Auto
from tests.comparison.small_tasks import TEST, TRAIN, make_model, run

INPUTS, LABELS = TRAIN.tensors
POLICIES = ["infobatch", "auto", "kakurenbo", Gate(0.25)]
FACTOR = {"of": 1.0}  # what a helper of a helper computes with


def compared(out: Path, **options: Any) -> Any:
    return run(**{"policies": ["infobatch"], "seeds": [0], "out": out, **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a comparison with the options given, trained once."""
    made: dict[str, Path] = {}

    def of(**options: Any) -> Path:
        name = str(sorted(options))
        if name not in made:
            made[name] = tmp_path_factory.mktemp("folder")
            compared(made[name], **options)
        return made[name]

    return of


def refused(folder: Path, what: str, **options: Any) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    with pytest.raises(ValueError, match=f"was made with another {what}.*: restore it") as caught:
        compared(folder, **options)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before


def squared(self: Any, visit: Any) -> None:
    self.losses[visit.index] = visit.losses.square()


def half_sure(self: Any, visit: Any) -> None:
    self.sure[visit.index] = visit.index % 2 == 0


@pytest.mark.parametrize(
    ("policy", "kind", "method", "change"),
    [
        ("infobatch", InfoBatch, "observe", squared),
        ("auto", Auto, "observe", squared),
        ("kakurenbo", Kakurenbo, "observe", half_sure),
        (Gate(0.25), LogIntegral, "moved", lambda *arguments: 1.1),
    ],
)
def test_a_policy_that_computes_otherwise(
    policy: Any,
    kind: type,
    method: str,
    change: Any,
    folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = folder(policies=POLICIES)
    monkeypatch.setattr(kind, method, change)
    refused(made, "policy", policies=[policy])


def test_other_initial_weights_settings_and_data(folder: Callable[..., Path]) -> None:
    def loaded() -> nn.Module:
        model = make_model()
        model.load_state_dict({name: 0.9 * part for name, part in model.state_dict().items()})
        return model

    refused(folder(), "model, criterion or metric", make_model=loaded)
    settings = r"settings \(lr was 0.02 and is 0.04, .*"
    refused(folder(), settings, config=TrainConfig(lr=4e-2))
    refused(folder(), "training data", train=TensorDataset(0.7 * INPUTS, LABELS))
    refused(folder(), "test data", test=TensorDataset(*(part[1:] for part in TEST.tensors)))


def test_other_labels_in_a_data_set_without_labels(folder: Callable[..., Path]) -> None:
    class Bare(Dataset[Any]):
        def __init__(self, flipped: int = 0) -> None:
            self.flipped = flipped

        def __len__(self) -> int:
            return len(INPUTS)

        def __getitem__(self, row: int) -> Any:
            return INPUTS[row], (LABELS[row] + (row < self.flipped)) % 3

    refused(folder(train=Bare()), "training data", train=Bare(20))


def helped(values: Tensor) -> Tensor:
    return FACTOR["of"] * values


def metric(outputs: Tensor, targets: Tensor) -> Tensor:
    return helped((outputs.argmax(1) == targets).float())


def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
    return helped(nn.functional.cross_entropy(outputs, targets, reduction="none"))


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("model, criterion or metric", {"metrics": [Metric("right", metric, higher=True)]}),
        ("model, criterion or metric", {"criterion": criterion}),
    ],
)
def test_a_helper_of_a_function_of_the_user(
    what: str,
    options: dict[str, Any],
    folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = folder(**options)
    monkeypatch.setitem(FACTOR, "of", 0.5)
    refused(made, what, **options)


def test_weights_perturbed_by_rounding_and_other_threads_are_the_same(
    folder: Callable[..., Path],
) -> None:
    def perturbed() -> nn.Module:
        model = make_model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 1e-7)
        return model

    made = folder()
    before = json.loads((made / "comparison.json").read_text())["entries"]
    again = compared(made, make_model=perturbed, config=TrainConfig(lr=0.02, threads=1))
    assert again.entries == before


def test_data_that_differ_at_each_reading_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    class Noisy(Dataset[Any]):
        """Rows with noise from a generator of the data set's own."""

        random = torch.Generator()
        labels = LABELS

        def __len__(self) -> int:
            return len(INPUTS)

        def __getitem__(self, row: int) -> Any:
            return INPUTS[row] + torch.rand(4, generator=self.random), LABELS[row]

    report = compared(tmp_path, train=Noisy())
    assert any(note.startswith("training data") for note in report.notes)
    assert compared(tmp_path, train=Noisy()).entries == report.entries


def test_a_folder_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"policies": {}, "model": "ab12", "lr": 0.001}')
    with pytest.raises(ValueError, match="choose another folder"):
        compared(tmp_path)
