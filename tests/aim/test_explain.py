"""What differs between two tables is named, column by column."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from astkit.aim.explain import explain
from tests.aim.tables import made


def test_alike_tables_are_called_alike() -> None:
    found = explain(made(800, 0), made(800, 1), "y")
    assert found.auc == pytest.approx(0.5, abs=0.06)
    assert found.sentence.startswith("training rows and target are alike")
    assert (found.table["auc"] < 0.6).all()
    assert found.telling == ()


@pytest.mark.parametrize(
    ("change", "column", "said"),
    [
        (lambda f: f.assign(size=f["size"] + 0.7), "size", "mean"),
        (lambda f: f.assign(size=f["size"] + 20), "size", "100% outside"),
        (lambda f: f.assign(place="harbour"), "place", "never in training: harbour (100%)"),
        (lambda f: f.assign(place="coast"), "place", "coast: 100%, was 2"),
        (lambda f: f.assign(noise=f["noise"].where(f.index % 2 == 0)), "noise", "missing in 50%"),
    ],
)
def test_the_changed_column_is_first_with_what_is_new(change, column: str, said: str) -> None:
    found = explain(made(800, 0), change(made(800, 1)), "y")
    assert found.table["column"][0] == column
    assert said in found.table["new"][0]
    assert found.auc > 0.6


def test_dates_and_counters_are_telling() -> None:
    old, target = made(400, 0), made(400, 1)
    old["when"] = pd.date_range("2023-01-01", periods=400, freq="D")
    target["when"] = pd.date_range("2024-03-01", periods=400, freq="D")
    old["number"], target["number"] = np.arange(400), np.arange(400, 800)
    found = explain(old, target, "y")
    assert set(found.telling) == {"when", "number"}
    row = found.table.set_index("column").loc["when"]
    assert "2024-03-01 to 2025-04-04, was 2023-01-01 to 2024-02-04" in row["new"]


def test_a_target_without_labels_is_explained_and_drawn() -> None:
    target = made(300, 1, shift=1.0).drop(columns="y")
    found = explain(made(300, 0), target, "y")
    assert found.table["column"][0] == "size"
    figure = found.plot()
    assert len(figure.axes[0].patches) == 3
