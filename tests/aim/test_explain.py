"""What differs between two tables is named, column by column."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from astkit import Table
from astkit.aim.explain import explain
from tests import build


def test_alike_tables_are_called_alike() -> None:
    found = explain(build.table(800, 0), build.table(800, 1), "y")
    assert found.auc == pytest.approx(0.5, abs=0.06)
    assert found.sentence.startswith("training rows and target are alike")
    assert (found.table["auc"] < 0.6).all()
    assert found.separating == ()


@pytest.mark.parametrize(
    ("change", "column", "said"),
    [
        (lambda f: f.assign(size=f["size"] + 0.7), "size", "mean"),
        (lambda f: f.assign(size=f["size"] + 20), "size", "100% outside"),
        (lambda f: f.assign(place="harbour"), "place", "never in training: harbour (100%)"),
        (lambda f: f.assign(place="coast"), "place", "coast: 100%, was 2"),
        (lambda f: f.assign(noise=f["noise"].where(f.index % 2 == 0)), "noise", "missing in 50%"),
        (
            lambda f: f.assign(size=f["size"].where(f.index % 2 == 0) + 20),
            "size",
            "in 50%, was 0%; 1",
        ),
        (lambda f: f.assign(place=f["place"].where(f.index % 2 == 0)), "place", "in 50%, was 0%"),
        (lambda f: f.assign(place=None), "place", "missing in 100%, was 0%"),
    ],
)
def test_the_changed_column_is_first_with_what_is_new(change, column: str, said: str) -> None:
    found = explain(build.table(800, 0), change(build.table(800, 1)), "y")
    assert found.table["column"][0] == column
    assert said in found.table["new"][0]
    assert found.auc > 0.6


def test_dates_and_counters_separate() -> None:
    old, target = build.table(400, 0), build.table(400, 1)
    old["when"] = pd.date_range("2023-01-01", periods=400, freq="D")
    target["when"] = pd.date_range("2024-03-01", periods=400, freq="D")
    old["number"], target["number"] = np.arange(400), np.arange(400, 800)
    found = explain(old, target, "y")
    assert set(found.separating) == {"when", "number"}
    row = found.table.set_index("column").loc["when"]
    assert "2024-03-01 to 2025-04-04, was 2023-01-01 to 2024-02-04" in row["new"]


def test_tables_are_compared_without_a_label_and_read_as_said() -> None:
    old, target = build.table(300, 0), build.table(300, 1, shift=1.0)
    old["place"] = old["place"].where(old.index % 5 == 0)
    old.loc[:1, "noise"] = None  # less than a percent
    found = explain(old, target)
    new = found.table.set_index("column")["new"]
    assert new["place"].startswith("missing in 0%, was 80%")
    assert new["noise"].startswith("missing in 0%, was 1%")
    assert set(found.table["column"]) == {*old}
    assert explain(old, old).sentence.endswith(", no better than chance)")  # an AUC of about 0.3
    less = explain(old, target, "y", drop=["size"], task="regression", groups="place")
    assert less.table["column"].tolist() == ["noise"]
    for data, options in ((Table(old, "y"), {"drop": ["size"]}), (["a"] * 9, {"keep": ["a"]})):
        with pytest.raises(
            ValueError, match=r"is \['(size|a)'\], which is of files and DataFrames"
        ):
            explain(data, data, **options)


def test_a_target_without_labels_is_explained_and_drawn() -> None:
    target = build.table(300, 1, shift=1.0).drop(columns="y")
    found = explain(build.table(300, 0), target, "y")
    assert found.table["column"][0] == "size"
    figure = found.plot()
    assert len(figure.axes[0].patches) == 3


def texts(rows: int, seed: int, new: str) -> list[str]:
    """Six of 300 words each, and in every fourth text another one."""
    draw = np.random.default_rng(seed)
    found = [" ".join(f"word{each}" for each in draw.integers(0, 300, 6)) for _ in range(rows)]
    return [f"{text} {new}" if row % 4 == 0 else text for row, text in enumerate(found)]


def test_words_are_named_in_the_order_of_what_they_give_away() -> None:
    old, target = texts(400, 0, "old"), texts(300, 1, "new")
    old[7] += " new"
    found = explain(old, target)
    assert found.table["column"][:2].tolist() == ["old", "new"]
    assert found.table["auc"].tolist()[:2] == [0.625, pytest.approx(0.624, abs=1e-3)]
    assert found.table["new"][0] == "in 0.0% of the target, in 25.0% of training"
    assert found.table["new"][1] == "in 25.0% of the target, in 0.2% of training"
    assert found.auc > 0.6
    assert "most by 'old'" in found.sentence
    assert 7 in found.rows["row"][:40].tolist()
    assert found.rows["text"][399].endswith("old")
    assert found.rows["likeness"].is_monotonic_decreasing
    assert len(found.plot().axes[0].patches) == 12


def test_runs_of_tokens_are_named_by_their_numbers() -> None:
    draw = np.random.default_rng(0)
    parts = [draw.integers(0, 40, (300, 12)) for _ in range(2)]
    parts[1][::3, 4:6] = [7, 9]
    found = explain(*(TensorDataset(torch.from_numpy(part)) for part in parts))
    assert found.table["column"][0] == "7 9"
    assert found.table["auc"][0] == pytest.approx(0.5 + 1 / 6, abs=0.01)


def test_alike_texts_are_called_alike_and_other_data_refused() -> None:
    assert "are alike" in explain(texts(600, 0, "a"), texts(600, 1, "a")).sentence
    images = TensorDataset(torch.zeros(5, 1, 4, 4))
    with pytest.raises(
        ValueError, match=r"hold images .* explain compares two tables, or two data"
    ):
        explain(images, images)


def test_rows_of_a_table_are_in_the_order_of_their_likeness() -> None:
    old = build.table(800, 0).assign(size=np.repeat([0.0, 5.0], 400))
    found = explain(old, build.table(800, 1).assign(size=5.0), "y")
    assert (found.rows["row"][:300] >= 400).all()
    assert (found.rows["row"][-300:] < 400).all()
