"""Tables of people: each kind of cell is read rightly, or named in one message."""

import csv
import gzip
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from astkit.datasets.table_reader import read_table

ROWS = range(80)


def written(folder: Path, text: str, encoding: str = "utf-8", name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def column(folder: Path, cells: list[str], separator: str = ",") -> pd.Series:
    """The column ``a`` of a file with these cells, quoted, beside another column."""
    lines = [f'"{cell}"{separator}{row}' for row, cell in enumerate(cells)]
    text = "\n".join([f"a{separator}b", *lines]) + "\n"
    return read_table(written(folder, text)).frame["a"]


@pytest.mark.parametrize(
    ("cells", "separator", "expected"),
    [
        (["1,5", "2,25"] * 40, ";", [1.5, 2.25]),
        (["1,5", "12,25"] * 40, ",", [1.5, 12.25]),
        (["1,500", "2,250"] * 40, ",", [1500, 2250]),
        (["1,234,567", "12"] * 40, ",", [1234567, 12]),
        (["1.234,50 €", "7,00 €"] * 40, ";", [1234.5, 7]),
        (["$1,200.50", "$7"] * 40, ",", [1200.5, 7]),
        (["-$3", "$+4"] * 40, ",", [-3, 4]),
        (["12 kg", "1.5 kg"] * 40, ",", [12, 1.5]),
        (["12%", "7%"] * 40, ",", [12, 7]),
        (["1e3", "2.5E-1"] * 40, "\t", [1000, 0.25]),
        (["3 000", "12 500"] * 40, "|", [3000, 12500]),
    ],
)
def test_numbers_are_read_as_they_are_meant(tmp_path, cells, separator, expected):
    assert column(tmp_path, cells, separator)[:2].tolist() == expected


@pytest.mark.parametrize(
    "cells",
    [
        [f"A{row}" for row in ROWS],
        [str(10**25 + row) for row in ROWS],
        [f"{row}+2j" for row in ROWS],
        ["12 kg", "500 g"] * 40,
        ["None", "Full"] * 40,
        ["NA", "EU"] * 40,
        ["True", "False"] * 40,
        ["00501", "10001"] * 40,
        ["05", "10"] * 40,
        ["00501", "10001"] * 39 + ["00501-1234", "n/a"],
    ],
)
def test_words_stay_as_they_are_written(tmp_path: Path, cells: list[str]) -> None:
    assert column(tmp_path, cells).tolist() == cells


@pytest.mark.parametrize("stray", ["n.a.", "kg", "unknown", "1.2.3"])
def test_a_stray_word_among_numbers_is_missing_and_named(tmp_path: Path, stray: str) -> None:
    cells = [stray if row == 3 else str(row * 1.5) for row in ROWS]
    rows = read_table(written(tmp_path, "a,b\n" + "".join(f"{c},1\n" for c in cells)))
    assert np.isnan(rows.frame["a"][3])
    assert rows.frame["a"].notna().sum() == 79
    assert rows.notes == [
        f"column 'a': cells that are no number count as missing: {stray!r} in row 4"
    ]


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


def test_a_long_cell_is_read_and_an_encoding_checked(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    rows = read_table(
        written(tmp_path, "a,b\n" + "".join(f"{'w' * 150_000},{row}\n" for row in ROWS))
    )
    assert rows.frame["a"].str.len().unique().tolist() == [150_000]
    assert csv.field_size_limit() == limit
    for name in ("cp12512", "hex", 5):
        with pytest.raises(ValueError, match=f"encoding is {name!r}: give one that Python knows"):
            read_table(tmp_path / "table.csv", encoding=name)


def test_empty_cells_beyond_the_header_and_spaces_around_cells_go(tmp_path: Path) -> None:
    text = "a, c,y\n" + "".join(f"{row}, {'x ' if row % 2 else 'x'},1,\n" for row in ROWS)
    frame = read_table(written(tmp_path, text)).frame
    assert list(frame) == ["a", "c", "y"]
    assert set(frame["c"]) == {"x"}


def test_columns_may_be_aligned_by_spaces(tmp_path: Path) -> None:
    lines = ["name      age", *(f"  w{row:<8} {row:>3} " for row in ROWS)]
    read = read_table(written(tmp_path, "\n".join(lines)))
    assert read.frame["age"].tolist() == [*ROWS]
    assert read.frame["name"][79] == "w79"


def test_an_index_that_is_asked_for_is_no_column() -> None:
    indexed = pd.DataFrame({"a": ROWS}, index=pd.RangeIndex(80, name="day"))
    with pytest.raises(ValueError, match="no column 'day': it is the index, which reset_index"):
        read_table(indexed, needed=["day"])


def test_a_nameless_column_that_counts_the_rows_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, ",a\n" + "".join(f"{row},{row % 7}\n" for row in ROWS))
    rows = read_table(path)
    assert list(rows.frame) == ["a"]
    assert rows.notes == ["column 1 has no name and counts the rows: left out"]
    assert list(read_table(pd.read_csv(path)).frame) == ["a"]


def test_a_later_table_is_read_as_the_first(tmp_path: Path) -> None:
    first = read_table(written(tmp_path, "a,c,y\n" + '"1,5",x,1\n' * 9, name="first.csv"))
    later = written(tmp_path, "y,new,a\n" + '2,0,"2,5"\n' * 9, name="later.csv")
    rows = read_table(later, first.columns)
    assert list(rows.frame) == ["a", "c", "y"]
    assert rows.frame["a"].tolist() == [2.5] * 9
    assert rows.frame["c"].isna().all()
    assert rows.notes == [f"{later} has further columns, left out: new"]


@pytest.mark.parametrize(
    ("first", "later", "value"),
    [
        (["1.5", "2"], ["1,5", "2"], 1.5),
        (["12,5", "1,5"], ["1,500", "1,500"], 1.5),
        (["2024-01-31", "2024-02-01"], ["31.01.2024", "01.02.2024"], pd.Timestamp("2024-01-31")),
        (["03/04/2024", "13/04/2024"], ["03/04/2024", "04/04/2024"], pd.Timestamp("2024-04-03")),
    ],
)
def test_a_later_table_may_be_written_otherwise(tmp_path, first, later, value):
    """Where the first one's way does not read it; ambiguous cells are read as in the first."""
    paths = []
    for name, cells in (("first", first), ("later", later)):
        text = "a,b\n" + "".join(f'"{cell}",1\n' for cell in cells * 40)
        paths.append(written(tmp_path, text, name=f"{name}.csv"))
    one = read_table(paths[0])
    other = read_table(paths[1], one.columns)
    assert other.notes == []
    assert other.frame["a"][0] == value
    assert other.frame["a"].dtype == one.frame["a"].dtype


def test_columns_of_a_frame_keep_what_they_hold() -> None:
    made = pd.DataFrame(
        {
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "hours": pd.to_timedelta([12, 24, None], "h"),
            "moment": pd.date_range("2024-01-31", periods=3, tz="Europe/Berlin"),
            "flag": [True, False, True],
            "kind": pd.Categorical([" a", "b", None]),
            "zone": pd.Categorical([7.0, None, 12]),
            "list": [None, [2], [1]],
            "pair": [{"a": 1}, {}, None],
            "id": 2**60 + np.arange(3),
        }
    )
    read = read_table(made)
    frame = read.frame
    kinds = ["number"] * 2 + ["date"] + ["words"] * 4
    assert [each.kind for each in read.columns.values()] == kinds
    assert frame["zone"].tolist()[::2] == ["7", "12"]
    assert read_table(made.assign(zone=[12, 7, 7]), read.columns).frame["zone"][0] == "12"
    left_out = "has lists or mappings as cells: left out"
    assert read.notes == [f"column {name!r} {left_out}" for name in ("list", "pair")]
    refused = "there is no column 'list': its cells are lists or mappings"
    with pytest.raises(ValueError, match=refused):
        read_table(made, needed=["list"], drop=["pair"])
    assert frame["hours"].tolist()[:2] == [0.5, 1]
    assert frame["whole"].isna().tolist() == [False, True, False]
    assert frame["moment"][0] == pd.Timestamp("2024-01-30 23:00")  # UTC
    assert frame["kind"].tolist()[:2] == ["a", "b"]
    assert frame["flag"].tolist() == ["True", "False", "True"]
    assert frame["id"].nunique() == 3
    with pytest.raises(ValueError, match="a table is a Series: give a path, or a DataFrame"):
        read_table(made["whole"])


@pytest.mark.parametrize(
    ("kind", "cell", "value"),
    [
        (pa.date32(), date(2024, 1, 5), pd.Timestamp("2024-01-05")),
        (pa.date64(), date(2024, 1, 5), pd.Timestamp("2024-01-05")),
        (pa.timestamp("us", "Europe/Berlin"), pd.Timestamp("2024-01-05"), "2024-01-05"),
        (pa.duration("s"), pd.Timedelta("12h"), 0.5),
        (pa.decimal128(5, 2), Decimal("1.5"), 1.5),
        (pa.int64(), 3, 3.0),
        (pa.bool_(), True, "True"),
        (pa.dictionary(pa.int8(), pa.string()), "x", "x"),
        (pa.list_(pa.int64()), [1], None),
        (pa.struct([("a", pa.int64())]), {"a": 1}, None),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], None),
    ],
)
def test_columns_of_pyarrow_are_read(kind: pa.DataType, cell: Any, value: Any) -> None:
    made = pd.array(pa.array([cell, None] * 10, kind).to_pylist(), dtype=pd.ArrowDtype(kind))
    read = read_table(pd.DataFrame({"a": made, "y": range(20)}))
    if value is None:
        assert read.notes == ["column 'a' has lists or mappings as cells: left out"]
        assert list(read.frame) == ["y"]
    else:
        assert read.frame["a"][0] == (pd.Timestamp(value) if "2024" in str(value) else value)
        assert read.frame["a"].isna().sum() == 10


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
