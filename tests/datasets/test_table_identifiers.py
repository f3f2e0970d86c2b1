"""Columns that name or number the rows are found, and no others."""

import uuid
from typing import Any

import numpy as np
import pandas as pd
import pytest

from astkit import Table
from astkit.aim.explain import explain
from astkit.datasets.table_parts import divide_table
from tests.build import refused

ROWS = 200
DRAW = np.random.default_rng(0)
HEX = [DRAW.bytes(6).hex() for _ in range(ROWS)]


def frame(cells: Any) -> pd.DataFrame:
    made = np.random.default_rng(len(cells)).normal(size=(len(cells), 2))
    return pd.DataFrame(made, columns=["x", "y"]).assign(key=cells)


@pytest.mark.parametrize(
    ("cells", "left_out"),
    [
        ([f"u{row:05}" for row in range(ROWS)], True),
        ([f"INV-{row}" for row in range(ROWS)], True),
        ([f"u{row}" for row in range(50)], True),
        ([f"u{row}" for row in range(49)], False),
        ([str(uuid.UUID(int=row**9)) for row in range(ROWS)], True),
        (HEX, True),
        ([each[:6] for each in HEX], True),
        ([each.lstrip("0123") for each in HEX], True),
        ([f"{row:06}" for row in range(ROWS)], True),
        ([f"{row * 37:06}" for row in range(ROWS)], False),
        (["unknown", *HEX[1:]], True),
        ([HEX[row // 2] for row in range(ROWS)], False),
        ([f"street {row}" for row in range(ROWS)], False),
        (["".join(chr(97 + int(c, 16)) for c in each) for each in HEX], False),
        ([("u%d", "2%dx-", "a%db")[row % 3] % row for row in range(ROWS)], False),
        ([f"{1960 + row // 4}Q{1 + row % 4}" for row in range(ROWS)], False),
        ([f"u{row}@{'ab'[row % 2]}.org" for row in range(ROWS)], False),
    ],
)
def test_words_that_name_each_row_are_no_inputs(cells: list[str], left_out: bool) -> None:
    made = frame(cells)
    found, parts = Table(made, "y"), divide_table(made, "y")
    said = "columns that name or number the rows, left out: key; keep= makes them inputs"
    for table in (found, parts.train):
        assert ("key" in table.frame, said in table.notes) == (not left_out, left_out)
    assert Table(made, like=found).notes == []
    assert "key" in Table(made, "y", keep=["key"]).frame
    assert "key" in divide_table(made, "y", keep=["key"]).train.frame


ORDER, MIXED = np.arange(1, ROWS + 1), DRAW.permutation(ROWS)


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (ORDER, ORDER, False),
        (ORDER, ORDER + ROWS, True),
        (ORDER, ORDER + 2 * ROWS, True),
        (ORDER, MIXED + ROWS + 1, False),
        (MIXED, ORDER + ROWS, False),
        (ORDER, None, False),
        (ORDER[:49], ORDER[:49], True),
        (np.where(ORDER == 9, 10, ORDER), ORDER, True),
        (np.where(ORDER == 9, np.nan, ORDER), ORDER, True),
        (ORDER + 0.5, ORDER + 0.5, True),
        ([f"${each}" for each in ORDER], [f"${each}" for each in MIXED], True),
        (ORDER + 1800, ORDER + 1800, True),
    ],
)
def test_numbers_of_the_rows_are_no_inputs_unless_the_target_goes_on(old, new, kept: bool) -> None:
    first = frame(old)
    target = frame(ORDER).drop(columns="key") if new is None else frame(new)
    found = explain(first, target, "y")
    assert ("key" in set(found.table["column"])) == kept
    assert any("left out: key" in note for note in found.notes) != kept
    parts = divide_table(first, "y", target=target, test=target, validation=target)
    assert ("key" in parts.train.frame) == kept
    assert "key" in divide_table(first, "y", target=target, keep=["key"]).train.frame
    alone = Table(first, "y")
    assert "key" in alone.frame
    said = ["columns that number the rows are inputs: key; drop= leaves them out"]
    assert alone.notes == said * (old is ORDER or old is MIXED)


def test_a_date_is_kept_and_without_a_target_no_number_is() -> None:
    made = frame(ORDER)
    assert "key" not in divide_table(made, "y").train.frame
    assert "key" in divide_table(made, "y", date="key").train.frame
    refused((lambda: Table(made, "y", keep=["kye"]), "there is no column 'kye'"))
    refused((lambda: Table(made, "y", drop=["y"]), "drop holds 'y', which is needed"))
