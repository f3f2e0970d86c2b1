"""Tables keep the differences of large numbers, and all folders of images are used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from astkit.tasks.files import folder, table

PARTS = ("train", "validation", "test")
ROWS = 100


def written(path: Path, *columns: str) -> Path:
    """A CSV file with a column for each of ``columns``, which are formatted by the row's number."""
    names = ",".join("abcdef"[: len(columns)])
    rows = [",".join(column.format(i=i, half=i % 2) for column in columns) for i in range(ROWS)]
    path.write_text("\n".join([names, *rows]))
    return path


@pytest.mark.parametrize("number", ["1700000{i:03}.5", "{i}e39", "{i}e-50"])
def test_large_and_small_numbers_keep_their_differences(number: str, tmp_path: Path) -> None:
    path = written(tmp_path / "table.csv", number, "class {half}")
    for target, column in (("b", 0), ("a", 1)):
        train = table(path, target)["train"].tensors[column]
        assert len(train.unique()) == len(train)
        assert train.std().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("target", ["a", "b"])
def test_rows_in_order_are_tested_on_the_last(target: str, tmp_path: Path) -> None:
    """In the shares of random parts, and scaled by the training rows alone."""
    path = written(tmp_path / "table.csv", "{i}.5", "class {half}")
    parts, random = table(path, target, in_order=True), table(path, target)
    values = [parts[part].tensors[target == "a"].flatten() for part in PARTS]
    assert torch.equal(torch.cat(values).argsort(), torch.arange(ROWS))
    assert values[0].mean().item() == pytest.approx(0, abs=1e-5)
    for part in PARTS:
        assert len(parts[part]) == pytest.approx(len(random[part]), abs=2)


def test_mistakes_in_a_table_are_named(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for content, told in (
        (b"", "table.csv is not a table in UTF-8: No columns"),
        ("a,b\n1,2\n".encode("utf-16"), "table.csv is not a table in UTF-8: 'utf-8' codec"),
        (
            "\n".join(["a,b", *(f"{i},c{i}" for i in range(60))]).encode(),
            "has 60 classes in 60 rows",
        ),
        (
            "\n".join(["day,b", *(f"2026-01-01 {i},{i % 2}" for i in range(120))]).encode(),
            "column 'day' of .* has 120 different words, more than 100: leave it out",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=told):
            table(path, "b")


def test_folders_of_parts_beside_those_of_classes_are_used_or_refused(tmp_path: Path) -> None:
    for place, count in (("", 20), ("val", 3), ("test", 4)):
        for label, level in (("cat", 40), ("dog", 200)):
            (tmp_path / place / label).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (level, count, i)).save(
                    tmp_path / place / label / f"{i}.png"
                )
    made = folder(tmp_path, size=8)
    assert [made[part].num_samples for part in PARTS] == [40, 6, 8]
    with pytest.raises(ValueError, match="size is 3: give 4 or more pixels"):
        folder(tmp_path, size=3)
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "wolf")
    with pytest.raises(ValueError, match="class 'wolf', which is missing in the training part"):
        folder(tmp_path, size=8)
