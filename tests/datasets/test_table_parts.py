"""Training, validation and test rows of a table: disjoint, read alike, never fitted to the test."""

from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from astkit.datasets.table_parts import TableParts, divide_table
from tests.build import refused

ROWS = 400


def frame(**columns: object) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    made = pd.DataFrame({"x": draw.normal(size=ROWS), "word": draw.choice(["u", "v"], ROWS)})
    return made.assign(y=made["x"] + draw.normal(size=ROWS)).assign(**columns)


def numbers(parts: TableParts) -> list[list[int]]:
    """The rows of each part by their number in the table."""
    return [part.rows.tolist() for part in parts[:3]]


def test_random_parts_are_disjoint_and_the_training_rows_alone_are_fitted() -> None:
    parts = divide_table(frame(), "y")
    assert sorted([*chain(*numbers(parts))]) == list(range(ROWS))
    assert [len(part) for part in parts[:3]] == [289, 51, 60]
    assert parts.sentence == "regression of y: 400 rows, 2 columns"
    train = frame()["x"].to_numpy()[parts.train.rows]
    expected = (frame()["x"].to_numpy()[parts.test.rows] - train.mean()) / train.std()
    assert parts.test.inputs(torch.arange(60))[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert parts.train.label.mean == pytest.approx(parts.train.values.mean().item(), rel=1e-5)
    assert parts.validation.encoder is parts.train.encoder


def test_classes_have_equal_shares_and_rare_ones_are_left_out() -> None:
    kinds = ["a"] * 300 + ["b"] * 96 + ["c"] * 2 + [None] * 2
    parts = divide_table(frame(y=kinds), "y")
    assert parts.train.label.classes == ("a", "b")
    assert parts.test.values.bincount().tolist() == [45, 14]
    assert parts.train.notes == [
        "2 rows without 'y': left out",
        "classes of fewer than 3 rows, left out: c",
    ]
    assert divide_table(frame(y=["a", "b", "c", "NA"] * 100), "y").train.notes == [
        "'NA' is a class, of 100 rows: where it stands for a missing label, empty these cells"
    ]


def test_random_parts_of_a_table_with_dates_are_named() -> None:
    dated = frame(when=pd.date_range("2024", periods=ROWS))
    said = "validation rows are random: with 'when' as date they are those of the last days"
    assert divide_table(dated, "y").train.notes == [f"test and {said}"]
    assert divide_table(dated, "y", test=dated[:5]).train.notes == [said]
    for options in ({"date": "when"}, {"drop": ["when"]}, {"in_order": True}):
        assert divide_table(dated, "y", **options).train.notes == []


def test_parts_by_date_meet_between_two_days() -> None:
    days = np.random.default_rng(1).permutation(ROWS) // 8  # eight rows a day, in no order
    moments = pd.Timestamp("2024-03-01") + pd.to_timedelta(days * 24 + np.arange(ROWS) % 24, "h")
    for values in (moments, days.astype(float), moments.strftime("%d.%m.%Y %H:%M")):
        parts = divide_table(frame(when=values), "y", date="when", drop=["when"])
        train, held, test = ([days[row] for row in rows] for rows in numbers(parts))
        assert max(train) < min(held) <= max(held) < min(test)
        assert train == sorted(train)
        assert [len(part) for part in parts[:3]] == [288, 48, 64]
        assert "when" not in parts.train.frame
    assert "when" in divide_table(frame(when=days), "y", date="when").train.frame


def test_rows_in_order_are_tested_on_the_last() -> None:
    parts = divide_table(frame(), "y", in_order=True)
    assert [*chain(*numbers(parts))] == list(range(ROWS))
    assert [len(part) for part in parts[:3]] == [289, 51, 60]


def test_random_parts_hold_whole_groups() -> None:
    owners = [f"owner {row % 40}" if row != 7 else None for row in range(ROWS)]
    parts = divide_table(frame(owner=owners), "y", groups="owner")
    held = [set(part.groups) for part in parts[:3]]
    assert len(set.union(*held)) == sum(map(len, held)) == 41
    assert 50 <= len(parts.test) <= 70


def test_tables_of_a_part_are_read_as_the_first(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "test.csv", index=False, sep=";", decimal=",")
    parts = divide_table(frame(), "y", test=tmp_path / "test.csv", validation=frame()[:30])
    assert [len(part) for part in parts[:3]] == [ROWS, 30, ROWS]
    assert torch.allclose(parts.test.values, parts.train.values)
    inputs = [part.inputs(torch.arange(30)) for part in parts[:3]]
    assert torch.equal(inputs[0], inputs[1])
    assert torch.allclose(inputs[0], inputs[2])


def test_all_problems_of_all_files_are_one_message(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("x,x,y\n1,2\n")
    test.write_text("x,z\n1,inf\n")
    with pytest.raises(ValueError, match="cannot be read") as caught:
        divide_table(train, "y", date="day", test=test)
    assert str(caught.value).splitlines() == [
        f"{train} cannot be read:",
        "- its header has 3 names, but row 1 has 2 cells",
        "- the name 'x' stands over 2 columns: rename all but one",
        "- there is no column 'day': choose one of x, x, y",
        f"test: {test} cannot be read:",
        "- there is no column 'y': choose one of x, z",
        "- column 'z' holds numbers beyond those of float32 (inf in row 1): leave out these rows,"
        " or the column",
    ]


def test_parts_that_cannot_be_are_refused() -> None:
    for options, words in (
        ({"date": "word"}, "date is 'word', a column of words: give one of dates or numbers"),
        ({"date": "x", "in_order": True}, "date and in_order both order the rows: give one"),
        ({"date": "one"}, "all rows are of one date, so none are left for test"),
        ({"groups": "one"}, "no rows are left for test: give more rows, or more groups"),
        ({"drop": ["y"]}, "drop holds the label 'y'"),
        ({"test": frame(y=None)}, "no row of test has a label 'y'"),
    ):
        refused((partial(divide_table, frame(one=1.0), "y", **options), words))
    refused((lambda: divide_table(frame()[:12], "y"), "12 rows are left: give at least 20"))


def test_what_is_lacking_beside_a_target_is_held_back_of_it() -> None:
    days = pd.date_range("2024-01-01", periods=50)
    target = frame(when=days.repeat(8)).sample(frac=1, random_state=0)
    train = frame(when=days.repeat(8) - pd.Timedelta(days=100))
    parts = divide_table(train, "y", target=target, date="when", drop=["when"])
    assert parts.target is not None
    assert (len(parts.train), len(parts.target)) == (ROWS, 240)
    when = [target["when"].to_numpy()[part.rows] for part in parts[1:]]
    held, test, left = when[0], when[1], when[2]
    assert left.max() < held.min() <= held.max() < test.min()
    assert [len(np.unique(each)) for each in (held, test, left)] == [10, 10, 30]
    assert parts.sentence == "regression of y: 800 rows, 2 columns"
    given = divide_table(train, "y", target=target, test=target[:9], validation=target[:7])
    assert [len(part) for part in given if part is not None] == [ROWS, 7, 9, ROWS]
    with pytest.raises(ValueError, match="no row of target has a label 'y'"):
        divide_table(train, "y", target=target.assign(y=None), test=target, validation=target)
    with pytest.raises(ValueError, match="target has no column 'when'"):
        divide_table(train, "y", target=target.drop(columns="when"), test=target, date="when")
