"""The bench beside the original's package: what it counts, and what is committed."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from astkit.comparison.statistics import by_arm
from tests.benchmarks import origin


def test_rows_are_counted_by_whether_gradients_are_recorded():
    model = nn.Linear(2, 1)
    rows = origin.Rows(model)
    model(torch.ones(3, 2))
    with torch.no_grad():
        model(torch.ones(5, 2))
    assert (rows.trained, rows.scored) == (3, 5)


def test_the_kit_trains_on_the_rows_that_it_selects(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(origin, "EPOCHS", 1)
    parts = origin.split("digits")
    row = origin.measure("gate", 0, parts)
    offered = len(parts.train.labels)
    assert row["trained"] < 0.5 * offered
    assert row["scored"] >= offered
    assert row["trained"] == pytest.approx(row["rate"] * offered, abs=4)  # two rows are checked


def test_what_is_committed_has_five_seeds_and_every_row_of_the_package_goes_backward():
    content = json.loads(origin.RESULTS.read_text())
    assert content[origin.PACKAGE] == "1.0.1"
    assert content["stamp"]["dirty"] is False
    arms = by_arm(content["rows"])
    assert len({tuple(arm) for arm in arms.values()}) == 1
    assert len(arms["dense"]) >= 5
    for seed, run in arms[origin.PACKAGE].items():
        assert run["trained"] >= content["settings"]["epochs"] * 1295
        assert run["trained"] >= arms["gate"][seed]["trained"] / 0.2
    assert list(origin.table(content["rows"]).index) == ["dense", "gate", origin.PACKAGE]
