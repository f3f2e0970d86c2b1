"""Tables of people: each kind of cell is read rightly, or named in one message."""

import csv
import gzip
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from astkit.datasets.table_reader import read_table
from tests.build import refused

ROWS = range(80)
COUNTING = "column 1 has no name and counts the rows: left out"


def written(folder: Path, text: str, encoding: str = "utf-8", name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("marks", "others", "said"),
    [
        (["-999"], range(40), "-999 in 1 rows"),
        (["9999", "9999"], range(40), "9999 in 2 rows"),
        (["-99", "-999"], range(40), "-999 in 1 rows, -99 in 1 rows"),
        (["999"], range(980, 1_020), ""),
        (["999"], range(0, 40_000, 1_000), ""),
        (["-999"], range(-990, 30, 10), ""),
        (["1000"], range(40), ""),
        (["99999999"], range(40), "99999999 in 1 rows"),
    ],
)
def test_numbers_that_may_mark_missing_ones_are_named_and_kept(tmp_path, marks, others, said):
    cells = [*marks, *map(str, others)]
    rows = read_table(written(tmp_path, "a,b\n" + "".join(f"{cell},1\n" for cell in cells)))
    assert rows.frame["a"][0] == float(marks[0])
    assert len(rows.notes) == bool(said)
    assert all(note.startswith("column 'a': numbers that") for note in rows.notes)
    assert all(note.endswith(f"empty these cells if so: {said}") for note in rows.notes)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a,b,y\n" + "1,2,3,4\n" * 9, "its header has 3 names, but row 1 has 4"),
        ("a,b,y\n" + "1,2,3\n" * 9 + "1,2\n", "but row 10 has 2 cells"),
        ("a,y,y\n" + "1,2,3\n" * 9, "the name 'y' stands over 2 columns"),
        ("a,y\n" + "1,2\n" * 9 + "inf,2\n", "beyond those of float32 (inf in row 10)"),
        ("a,y\n" + "1,2\n" * 9 + "1e39,2\n", "beyond those of float32 (1e+39 in row 10)"),
        ('a,c,y\n1,"w,2\n3,"v,4\n', "a quoted cell does not end"),
        ("1,2\n" * 9, "its first line holds numbers, not names"),
        ("# made by hand\na,y\n" + "1,2\n" * 9, "its header has 1 names, but row 1 has 2"),
        ("a,y\n", "it has no rows"),
        (
            "a\tb\ty\n" + "1 2 3\n" * 9,
            "; if its cells are not divided by '\\t', give the DataFrame",
        ),
    ],
)
def test_faults_of_a_file_are_named(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="cannot be read") as caught:
        read_table(written(tmp_path, text))
    assert fault in str(caught.value)


def test_all_faults_of_a_file_are_in_one_message(tmp_path: Path) -> None:
    text = "a,y,y\n" + "inf,2,3\n" * 9 + "1,2,3,4\n"
    with pytest.raises(ValueError, match="cannot be read") as caught:
        read_table(written(tmp_path, text))
    assert str(caught.value).count("\n- ") == 3


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(tmp_path: Path, encoding: str, end: str) -> None:
    text = end.join(["größe,y", *(f'"a, {row}",{row}' for row in ROWS)]) + end
    frame = read_table(written(tmp_path, text, encoding)).frame
    assert list(frame) == ["größe", "y"]
    assert frame.shape == (80, 2)
    assert frame["größe"][3] == "a, 3"


CITIES, GUESSED = ["Zürich", "Köln", "Genève"], "read as Windows-1252, since it is no UTF-8"
CYRILLIC, CHINESE = ["Москва", "Киев", "Омск"], ["北京", "上海", "广州"]


@pytest.mark.parametrize(
    ("words", "encoding", "more", "given", "first", "notes"),
    [
        (CITIES, "utf-8", b"K\xc5", None, "Zürich", ["not valid utf-8: 'K\ufffd' in line 32"]),
        (CITIES, "utf-8", b"\xfc" * 3, None, "Zürich", ["'\ufffd\ufffd\ufffd' in line 32"]),
        (CITIES, "utf-8", b"\xfc" * 4, None, "ZÃ¼rich", [GUESSED]),
        (CITIES, "cp1252", b"a", None, "Zürich", [GUESSED]),
        (CITIES, "cp1252", b"\x81", None, "Zürich", [GUESSED, "cp1252: '\ufffd' in line 32"]),
        (CYRILLIC, "cp1251", b"a", None, "Ìîñêâà", [GUESSED]),
        (CYRILLIC, "cp1251", b"a", "cp1251", "Москва", []),
        (CYRILLIC, "utf-8", b"a", "cp1251", "Москва", ["read as UTF-8, which it is"]),
        (CYRILLIC, "utf-8-sig", b"a", "cp1251", "Москва", []),
        (CHINESE, "gbk", b"a", None, "±±¾©", [GUESSED]),
        (CHINESE, "gbk", b"a", "gbk", "北京", []),
    ],
)
def test_an_encoding_is_told_where_it_is_guessed(
    tmp_path, words, encoding, more, given, first, notes
):
    """UTF-8 where nine of ten characters beyond ASCII are valid in it, named where they are not."""
    text = "city,y\n" + "".join(f"{word},1\n" for word in words * 10)
    path = tmp_path / "cities.csv"
    path.write_bytes(text.encode(encoding) + more + b",1\n")
    rows = read_table(path, encoding=given)
    assert rows.frame["city"][0] == first
    assert len(rows.notes) == len(notes)
    assert all(part in said for part, said in zip(notes, rows.notes, strict=True))


def test_unknown_encodings_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n1,2\n")
    for name in ("cp12512", "hex", 5):
        call = partial(read_table, path, encoding=name)
        refused((call, f"encoding is {name!r}: give one that Python knows"))


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("a.csv.gz", lambda text: gzip.compress(text)[:-20], "is no .gz file, or damaged"),
        ("a.parquet", lambda text: text, "is no .parquet file, or damaged"),
        ("a.csv", lambda text: b'"a"(cm),' + text, "has a quote in its header"),
        ("a.csv.gz", lambda text: gzip.compress(text)[:-8] + b"12345678", "CRC check failed"),
        ("a.csv.gz", lambda text: text, "Not a gzipped file"),
        ("a.csv.bz2", lambda text: gzip.compress(text), "Invalid data stream"),
        ("a.csv.xz", lambda text: text, "is no .xz file"),
        ("a.zip", lambda text: b"PK" + text, "is no .zip file"),
        ("a.csv", lambda _: bytes(range(256)), "is no utf-8: name its encoding"),
        ("a.csv", lambda text: text.decode().encode("utf-16-le"), "encoding='utf-16-le'"),
        ("a.csv", lambda text: text + "Київ".encode("cp1251"), "is no utf-8: name its encoding"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_one_sentence(tmp_path, name, damage, said):
    path = tmp_path / name
    path.write_bytes(damage("".join(f"{row * 37 % 101},{row}\n" for row in ROWS).encode()))
    with pytest.raises(ValueError, match="a\\.") as caught:
        read_table(path, encoding="utf-8")
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "first", "notes"),
    [
        ("a, c,y\n" + "1, x ,2,\n" * 80, {"a": 1, "c": "x", "y": 2}, []),
        ("name      age\n" + "  w1       12 \n" * 80, {"name": "w1", "age": 12}, []),
        ("a,b\n" + f"{'w' * 150_000},1\n" * 80, {"a": "w" * 150_000, "b": 1}, []),
        (",a\n" + "".join(f"{row},{row % 7}\n" for row in ROWS), {"a": 0}, [COUNTING]),
        (pd.DataFrame({"Unnamed: 0": ROWS, "a": ROWS}), {"a": 0}, [COUNTING]),
        (",a\n" + "".join(f"{row // 2},{row % 7}\n" for row in ROWS), {"column 1": 0, "a": 0}, []),
    ],
)
def test_names_and_first_cells_of_a_table(tmp_path, text, first, notes) -> None:
    limit = csv.field_size_limit()
    rows = read_table(written(tmp_path, text) if isinstance(text, str) else text)
    assert rows.frame.iloc[0].to_dict() == first
    assert rows.notes == notes
    assert csv.field_size_limit() == limit


def test_a_later_table_is_read_as_the_first(tmp_path: Path) -> None:
    first = read_table(written(tmp_path, "a,c,y\n" + '"1,5",x,1\n' * 9, name="first.csv"))
    later = written(tmp_path, "y,new,a\n" + '2,0,"2,5"\n' * 9, name="later.csv")
    rows = read_table(later, first.columns)
    assert list(rows.frame) == ["a", "c", "y"]
    assert rows.frame["a"].tolist() == [2.5] * 9
    assert rows.frame["c"].isna().all()
    assert rows.notes == [f"{later} has further columns, left out: new"]
    assert read_table(later, first.columns, drop=["a"]).frame["a"].isna().all()


def arrow(kind: pa.DataType, cell: Any) -> Any:
    """A column of pyarrow."""
    return pd.array(pa.array([cell, None] * 10, kind).to_pylist(), dtype=pd.ArrowDtype(kind))


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        (arrow(pa.date32(), date(2024, 1, 5)), pd.Timestamp("2024-01-05")),
        (arrow(pa.date64(), date(2024, 1, 5)), pd.Timestamp("2024-01-05")),
        (arrow(pa.timestamp("us", "UTC"), pd.Timestamp("2024")), pd.Timestamp("2024")),
        (arrow(pa.duration("s"), pd.Timedelta("12h")), 0.5),
        (arrow(pa.decimal128(5, 2), Decimal("1.5")), 1.5),
        (arrow(pa.int64(), 3), 3.0),
        (arrow(pa.bool_(), True), "True"),
        (arrow(pa.dictionary(pa.int8(), pa.string()), "x"), "x"),
        (arrow(pa.list_(pa.int64()), [1]), None),
        (arrow(pa.struct([("a", pa.int64())]), {"a": 1}), None),
        (arrow(pa.map_(pa.string(), pa.int64()), [("a", 1)]), None),
        (pd.array([1, None] * 10, dtype="Int64"), 1.0),
        (pd.to_timedelta([12, None] * 10, "h"), 0.5),
        (
            pd.DatetimeIndex(["2024-01-31", None] * 10, tz="Asia/Tokyo"),
            pd.Timestamp("2024-01-30 15"),
        ),
        ([True] * 10 + [None] * 10, "True"),
        (pd.Categorical([" a", None] * 10), "a"),
        (pd.Categorical([7.0, None] * 10), "7"),
        ([None, [2]] * 10, None),
        ([{"a": 1}, None] * 10, None),
        ([str(2**60), None] * 10, str(2**60)),
    ],
)
def test_columns_of_frames_keep_what_they_hold(cells: Any, value: Any) -> None:
    made = pd.DataFrame({"a": cells, "y": range(20)})
    read = read_table(made)
    if value is None:
        assert read.notes == ["column 'a' has lists or mappings as cells: left out"]
        assert list(read.frame) == ["y"]
        lists = "there is no column 'a': its cells are lists or mappings"
        refused((partial(read_table, made, needed=["a"]), lists))
        assert list(read_table(made, drop=["a"]).frame) == ["y"]
    else:
        assert read.frame["a"][0] == value
        assert read.frame["a"].isna().sum() == 10


def test_frames_are_read_alike_and_series_and_an_index_not() -> None:
    made = pd.DataFrame({"zone": pd.Categorical([7.0, None, 12]), "id": 2**60 + np.arange(3)})
    read = read_table(made)
    assert read.frame["id"].nunique() == 3
    assert read_table(made.assign(zone=[12, 7, 7]), read.columns).frame["zone"][0] == "12"
    series = partial(read_table, made["zone"])
    index = partial(read_table, made.rename_axis("day"), needed=["day"])
    refused(
        (series, "a table is a Series: give a path, or a DataFrame"),
        (index, "no column 'day': it is the index, which reset_index"),
    )


def test_frames_parquet_and_packed_files_are_read_alike(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": [1.5, None] * 40, "c": ["x", None] * 40, "d": pd.date_range("2024", periods=80)}
    )
    frame["e"] = frame["d"].dt.tz_localize("Europe/Berlin")
    frame.to_parquet(tmp_path / "t.parquet")
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    with ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.mkdir("folder")
        archive.writestr("folder/t.csv", frame.to_csv(index=False))
        archive.writestr("__MACOSX/folder/._t.csv", b"\0")
    sources = frame, tmp_path / "t.parquet", packed, tmp_path / "t.zip"
    read = [read_table(each).frame for each in sources]
    for other in read[1:]:
        pd.testing.assert_frame_equal(read[0], other, check_dtype=False, check_categorical=False)
