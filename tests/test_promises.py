"""The promises of docs/promises.md: each names tests that exist; those without another place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from astkit import Gate, Trainer

DOCS = Path(__file__).resolve().parents[1] / "docs"
CLASSES = (torch.Tensor, nn.Module, nn.Linear, nn.LayerNorm, DataLoader, Dataset)


def test_every_promise_names_tests_that_exist() -> None:
    page = (DOCS / "promises.md").read_text("utf-8").partition("\n## ")[0]
    promises = re.split(r"^\d+\. ", page, flags=re.MULTILINE)[1:]
    assert len(promises) == 10
    for promise in promises:
        named = re.findall(r"((?:`test_\w+`(?:,|\s|and)*)+)in\s+\[[\w.]+\]\((\S+)\)", promise)
        tests = [(name, file) for names, file in named for name in re.findall(r"`(\w+)`", names)]
        assert len(tests) == promise.count("`test_") > 0
        for name, file in tests:
            assert f"\ndef {name}(" in (DOCS / file).read_text("utf-8"), name


def rows(count: int, seed: int) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=random)
    return TensorDataset(x, (x.sum(1) > 0).long())


def trained(policy: Any) -> Trainer:
    """A run on data whose validation rows follow the same law."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    options: dict[str, Any] = {"epochs": 2, "batch_size": 50, "device": "cpu"}
    trainer = Trainer(model, rows(900, 1), rows(240, 2), policy=policy, **options)
    trainer.run()
    return trainer


def weights(trainer: Trainer) -> list[Any]:
    return [value.tolist() for value in trainer.model.state_dict().values()]


@pytest.mark.parametrize("policy", [None, "gate", "infobatch", "auto"])
def test_the_same_seed_gives_the_same_weights_to_the_bit(policy: str | None) -> None:
    assert weights(trained(policy)) == weights(trained(policy))


@pytest.mark.parametrize("policy", ["aim", "auto"])
def test_where_nothing_differs_the_weights_are_those_of_dense_training(policy: str) -> None:
    assert weights(trained(policy)) == weights(trained(None))


def test_the_classes_of_torch_stay_as_they_were() -> None:
    before = [dict(vars(kind)) for kind in CLASSES]
    trained(Gate(0.25))
    assert [dict(vars(kind)) for kind in CLASSES] == before
