"""A folder refuses results of another comparison, in one sentence that names what differs.

What a fingerprint sees in general is tested in `tests.trainers.test_fingerprint`.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from astkit import Comparison, InfoBatch, TrainConfig
from tests import build
from tests.build import with_dropout as make_model
from tests.comparison.small_tasks import TEST, TRAIN, run

INPUTS, LABELS = TRAIN.tensors


def compared(out: Path, **options: Any) -> Any:
    return run(**{"policies": ["infobatch"], "seeds": [0], "out": out, **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison."""
    made = tmp_path_factory.mktemp("folder")
    compared(made)
    return made


def refused(folder: Path, what: str, **options: Any) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    with pytest.raises(ValueError, match=f"with other settings .*{what}.*: restore") as caught:
        compared(folder, **options)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before


class Mine(InfoBatch):
    def observe(self, visit: Any) -> None:
        super().observe(visit)


def test_a_policy_whose_code_has_changed(folder: Path, tmp_path: Path) -> None:
    compared(tmp_path, policies=[Mine()])

    class Mine2(InfoBatch):
        def observe(self, visit: Any) -> None:
            super().observe(visit)
            self.losses[visit.index] = visit.losses.square()

    Mine2.__name__ = "Mine"
    refused(tmp_path, "observe.code was", policies=[Mine2()])


def test_other_initial_weights_settings_and_data(folder: Path) -> None:
    def loaded() -> nn.Module:
        model = make_model()
        model.load_state_dict({name: 0.9 * part for name, part in model.state_dict().items()})
        return model

    refused(folder, r"first losses\.0 was", make_model=loaded)
    refused(folder, "lr was 0.02 and is 0.04", config=TrainConfig(lr=4e-2))
    refused(folder, "first losses", train=TensorDataset(0.7 * INPUTS, LABELS))
    refused(folder, r"test\.0 was 24 and is 23", test=TensorDataset(*(p[1:] for p in TEST.tensors)))
    labels = torch.where(LABELS == 2, 1, LABELS)
    refused(folder, r"data\.labels\.1 was", train=TensorDataset(INPUTS, labels))


def test_weights_that_differ_by_rounding_are_the_same(folder: Path) -> None:
    def rounded() -> nn.Module:
        model = make_model()
        model.load_state_dict({n: (1 + 1e-6) * part for n, part in model.state_dict().items()})
        return model

    compared(folder, make_model=rounded)


def test_losses_of_data_that_differ_at_each_reading_are_not_compared(tmp_path: Path) -> None:
    random = torch.Generator()

    def noisy(row: int) -> Any:
        return INPUTS[row] + torch.rand(4, generator=random), LABELS[row]

    data = build.computed(len(INPUTS), noisy, labels=LABELS)
    report = compared(tmp_path, train=data)
    assert compared(tmp_path, train=data).entries == report.entries


def test_a_folder_with_a_name_that_is_no_utf_8(tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"runs\xff")
    report = compared(out)
    assert compared(out).entries == report.entries
    assert Comparison.load(out).verdict == report.verdict


def test_a_tilde_in_the_name_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "taken").touch()
    with pytest.raises(ValueError, match=f"out is {tmp_path}/taken, which is a file"):
        compared(Path("~/taken"))
