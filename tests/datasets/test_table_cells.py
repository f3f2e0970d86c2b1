"""Cells that can be read in two ways: the right value, and what is told."""

from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from astkit import Table
from astkit.datasets.table_parts import divide_table
from astkit.datasets.table_reader import TableRows, read_table
from astkit.datasets.table_readers import dates, number
from tests.build import refused

PEOPLE = [950, 1234, 12345, 87, 999, 100_200, 640, 7010, 2345, 3456, 4567, 5678]
POINTS = [f"{each:,}".replace(",", ".") for each in PEOPLE]
MONTHS = [f"01/{month:02}/{year}" for year in (2021, 2022, 2023) for month in range(1, 13)]
TIES = ["01/02/2024", "03/04/2024", "07/05/2024", "11/09/2024"]
SIGN = "may stand before decimals or thousands"
DISPROVED = "by a guess that these cells disprove, and may be wrong: read it with dtypes="
DAYS = "days and months may be exchanged"
UNITS = "cells with and without a unit are read alike"
SCALED = "K, M and B multiply by a thousand, a million and a billion"
STRAY = "cells that are no number count as missing"
WORDS = "read as words, as less than 95 % of the cells are of one kind"


def read(folder: Path, cells: list[str], separator: str = ",", other: str = "x") -> TableRows:
    """The column ``a`` of a file with these cells, in which the other column holds ``other``."""
    text = "".join(f'"{cell}"{separator}"{other}"\n' for cell in cells)
    (folder / "table.csv").write_text(f"a{separator}b\n{text}")
    return read_table(folder / "table.csv")


@pytest.mark.parametrize(
    ("cells", "separator", "other", "expected", "note"),
    [
        (["950", "1.2K", "15k"], ",", "x", [950, 1200, 15_000], SCALED),
        (["$950", "$1.2K", "-$3M"], ",", "x", [950, 1200, -3e6], SCALED),
        (["950 €", "1,2 Mio. €", "3 B"], ";", "x", ["950 €", "1,2 Mio. €", "3 B"], WORDS),
        (["£950m", "£1.2bn", "£3k"], ",", "x", [950e6, 1.2e9, 3000], SCALED),
        (["950m €", "1,2bn €", "3 €"], ";", "x", [950e6, 1.2e9, 3], SCALED),
        (["$3.5 million", "$1 billion"], ",", "x", [3.5e6, 1e9], SCALED),
        (["950m", "1.2bn"], ",", "x", ["950m", "1.2bn"], WORDS),
        (["1.2K", "15K"], ",", "x", [1.2, 15], ""),
        (["14B", "7A", "12"], ",", "x", ["14B", "7A", "12"], WORDS),
        (["12 kg", "15"], ",", "x", [12, 15], UNITS),
        (["3-bed", "5-star"], ",", "x", ["3-bed", "5-star"], ""),
        (["CHF 12.-", "7.50", "15.-"], ",", "x", [12, 7.5, 15], UNITS),
        (["50%", "0.25", "120%"], ",", "x", [0.5, 0.25, 1.2], "are read as 0.01 times"),
        (["50%", "25"], ",", "x", [50, 25], UNITS),
        (["0.5%", "0.25"], ",", "x", [0.5, 0.25], UNITS),
        (POINTS, "\t", "x", PEOPLE[:4], SIGN),
        ([each.replace(".", ",") for each in POINTS], ";", "x", PEOPLE[:4], SIGN),
        ([f"{each} €" for each in POINTS], "\t", "x", PEOPLE[:4], SIGN),
        (POINTS, "\t", "0.5", [950, 1.234, 12.345], SIGN),  # which proves the point
        (POINTS[:6], "\t", "0,5", PEOPLE[:3], ""),
        (POINTS[:6], "\t", "x", [950, 1.234], SIGN),  # too few
        ([*POINTS, "1234"], "\t", "x", [950, 1.234], SIGN),
        (["1.500", "2.250"], ",", "x", [1.5, 2.25], SIGN),
        (["1.500", "2.250"], ",", "0.5", [1.5, 2.25], ""),
        (["1.500", "0.250"], ";", "x", [1.5, 0.25], ""),
        (["−2.5", "–3", "–"], ",", "x", [-2.5, -3, np.nan], ""),
        (["$(2.50)", "($1,234.50)", "$3"], ",", "x", [-2.5, -1234.5, 3], ""),
        (["(2.50)", "3"], ",", "x", [-2.5, 3], ""),
        (["(2.50)", "(3)"], ",", "x", [2.5, 3], ""),
        (["2.50-", "3"], ",", "x", [-2.5, 3], ""),
        (["2.50-", "3.00-"], ",", "x", [-2.5, -3], ""),
        (["501-", "0-", "7"], ",", "x", [-501, 0, 7], ""),
        (["501-", "1001-"], ",", "x", ["501-", "1001-"], "a minus behind whole numbers"),
        (["0501-", "0702-", "1001-"], ",", "x", ["0501-", "0702-"], ""),
        (["1’234", "12'345.5"], ",", "x", [1234, 12345.5], ""),
        (["1,23,456", "12,34,567.5", "55"], ",", "x", [123_456, 1_234_567.5, 55], ""),
        (["10:30", "22:15:36", "1:45 pm"], ",", "x", [10.5, 22.26, 13.75], ""),
        (["10,000+", "500"], ",", "x", ["10,000+", "500"], WORDS),
        (["12 kg", "500 g"], ",", "x", ["12 kg", "500 g"], WORDS),
        (["2. No", "1. Never"], ",", "x", ["2. No", "1. Never"], ""),
        (["1st", "2nd", "3rd"], ",", "x", ["1st", "2nd", "3rd"], ""),
        ([f"A{row}" for row in range(80)], ",", "x", ["A0", "A1"], ""),
        ([str(10**25 + row) for row in range(80)], ",", "x", [str(10**25)], ""),
        ([f"{row}+2j" for row in range(80)], ",", "x", ["0+2j", "1+2j"], ""),
        (["None", "Full"], ",", "x", ["None", "Full"], ""),
        (["NA", "EU"], ",", "x", ["NA", "EU"], ""),
        (["True", "False"], ",", "x", ["True", "False"], ""),
        (["00501", "10001"], ",", "x", ["00501", "10001"], ""),
        (["05", "10"], ",", "x", ["05", "10"], ""),
        (["00501", "10001"] * 39 + ["00501-1234", "n/a"], ",", "x", ["00501", "10001"], ""),
        (["1,5", "2,25"], ";", "x", [1.5, 2.25], ""),
        (["1,5", "12,25"], ",", "x", [1.5, 12.25], ""),
        (["1,500", "2,250"], ",", "x", [1500, 2250], SIGN),
        (["1,234,567", "12"], ",", "x", [1234567, 12], ""),
        (["1.234,50 €", "7,00 €"], ";", "x", [1234.5, 7], ""),
        (["$1,200.50", "$7"], ",", "x", [1200.5, 7], ""),
        (["-$3", "$+4"], ",", "x", [-3, 4], ""),
        (["12 kg", "1.5 kg"], ",", "x", [12, 1.5], ""),
        (["1e3", "2.5E-1", "1.203e+00"], "\t", "x", [1000, 0.25, 1.203], ""),
        (["3 000", "12 500"], "|", "x", [3000, 12500], ""),
        (["n.a.", *["1.5"] * 30], ",", "x", [np.nan, 1.5], f"{STRAY}: 'n.a.' in row 1, 'n.a.' in"),
        (["1.2.3", *["1.5"] * 30], ",", "x", [np.nan, 1.5], STRAY),
        (["1"] * 9 + ["n.a."], ",", "x", ["1"], f"{WORDS}: 108 of 120 are numbers, not 'n.a.'"),
    ],
)
def test_numbers(tmp_path, cells, separator, other, expected, note):
    rows = read(tmp_path, cells * 12, separator, other)
    found = rows.frame["a"][: len(expected)].tolist()
    words = isinstance(expected[0], str)
    assert found == (expected if words else pytest.approx(expected, nan_ok=True))
    assert [note in each for each in rows.notes] == [True] * bool(note)


@pytest.mark.parametrize(
    ("cells", "separator", "other", "expected", "note"),
    [
        (MONTHS, ";", "x", "2021-02-01", DAYS),
        ([f"01/{day:02}/2024" for day in range(1, 13)], ",", "x", "2024-01-02", DAYS),
        (TIES, ";", "0,5", "2024-04-03", DAYS),
        (TIES, ";", "x", "2024-03-04", DAYS),
        (["01.02.2024", "03.04.2024"], ",", "x", "2024-04-03", DAYS),
        (["13/02/2024", "03/04/2024"], ",", "x", "2024-04-03", ""),
        (["1/31/2024", "2/1/2024"], ",", "x", "2024-02-01", ""),
        (["31.01.2024 10:30", "01.02.2024 11:00"], ",", "x", "2024-02-01 11:00", ""),
        (["01/01/2024", "02/02/2024"], ",", "x", "2024-02-02", ""),
        (["05-JAN-69", "06-Feb-68"], ",", "x", "2068-02-06", "years of two digits"),
        (["1/31/24", "12/30/23"], ",", "x", "2023-12-30", "years of two digits"),
        (["January 2024", "May 2024"], ",", "x", "2024-05-01", ""),
        (["Jan 2023", "Jan 2024"], ",", "x", "2024-01-01", ""),
        (["2024-01", "2024-02"], ",", "x", "2024-02-01", ""),
        (["20240131", "20240201"], ",", "x", "2024-02-01", "numbers of eight digits"),
        (["20240131", "00000000"], ",", "x", None, "numbers of eight digits"),
        (["20240131", "0"], ",", "x", None, "numbers of eight digits"),
        (["99991231", "20240105"], ",", "x", "2024-01-05", "no end"),
        (["24-01-31", "24-02-01"], ",", "x", "2024-02-01", "days and years may be exchanged"),
        (["31-01-24", "01-02-24"], ",", "x", "2024-02-01", "days and years may be exchanged"),
        (["05/01/24", "17/03/24"], ",", "x", "2024-03-17", "days and years may be exchanged"),
        (["01/02/24", "03/04/24"], ",", "x", "2024-03-04", "days, months and years may be"),
        (["24.01.31", "25.02.28"], ",", "x", "2028-02-25", "days and years may be exchanged"),
        (["24-01-31", "25-02-28"], ",", "x", "2025-02-28", "days and years may be exchanged"),
        (["2024-01-05T10:00:00", "2024-01-05 10:30:00.500"], ",", "x", "2024-01-05 10:30:00.5", ""),
        (["2024-01-05T10:00:00Z", "2024-01-05T10:30+01:00"], ",", "x", "2024-01-05 09:30", ""),
        (["05.01.2024 10.30", "05.01.2024"], ",", "x", "2024-01-05", DAYS),
        (["Jan 5, 2024 10:30 PM", "Feb. 6, 2024"], ",", "x", "2024-02-06", ""),
        ([*["Sat Jan 06 10:30:00 2024"] * 2], ",", "x", "2024-01-06 10:30", ""),
        (["2024-01-05", "1600-02-03"], ",", "x", "1600-02-03", ""),
        (["00", *["2024-01-05"] * 24], ",", "x", "2024-01-05", "cells that are no date"),
        (["2024-01-05", "0000-00-00", "-"], ",", "x", None, ""),
        (["05.01.2024", "00.00.0000", "17.02.2024"], ",", "x", None, ""),
        (["05.01.2024", "31.12.9999", "17.02.2024"], ",", "x", None, "no end"),
        (["20240105", "99991231"], ",", "x", None, "no end"),
    ],
)
def test_dates(tmp_path, cells, separator, other, expected, note):
    rows = read(tmp_path, cells * 12, separator, other)
    assert rows.columns["a"].kind == "date"
    value = rows.frame["a"][1]
    assert pd.isna(value) if expected is None else value == pd.Timestamp(expected)
    assert [each for each in rows.notes if note in each] == rows.notes[: bool(note)]
    assert "NaT" not in "".join(rows.notes)


@pytest.mark.parametrize(
    "mark",
    ["#N/A", "<NA>", "\\N", "-nan", "#DIV/0!", "#NAME?", "####", "NULL", "NaT", "—", ".", "?"],
)
def test_marks_are_missing_in_numbers_dates_and_labels_but_not_in_words(tmp_path, mark):
    for value in ("0.5", "2024-01-31", "house"):
        rows = read(tmp_path, [mark, value] * 40)
        assert rows.frame["a"].isna().sum() == (0 if value == "house" else 40)
        assert rows.notes == []
    label = [mark if row % 5 == 0 else f"{row / 7:.3f}" for row in range(300)]
    parts = divide_table(pd.DataFrame({"x": np.sin(range(300)), "y": label}), "y")
    assert parts.train.label.task == "regression"


MINUTES = [f"0{1 + row // 50}/01/24 10:{row % 60:02}" for row in range(420)]
DECIMALS = [f"{row}.5" for row in range(2_000)]


@pytest.mark.parametrize(
    ("cells", "last", "first"),
    [
        ([f"({each}.5)" for each in range(900)], "7.5", -0.5),
        ([f"{each + 2}%" for each in range(900)], "0.12", 0.02),
        ([str(each + 1000) for each in range(900)], "0123", "1000"),
        ([f"{each // 100 + 1}.{each % 100:03}" for each in range(900)], "700", 1000),
        ([f"{each}-" for each in range(10, 910)], "7", -10),
    ],
)
def test_the_one_cell_that_decides_is_in_the_sample(monkeypatch, cells, last, first) -> None:
    monkeypatch.setattr("astkit.datasets.table_cells.DIFFERENT", 100)
    for place in (0, 450, 900):
        column = read_table(pd.DataFrame({"a": [*cells[:place], last, *cells[place:]]})).frame["a"]
        assert column.drop(place).iloc[0] == first


def test_days_that_pandas_wrote_as_floats_are_days() -> None:
    cells = ["20240131.0", "", "20240229.0"]
    column = read_table(pd.DataFrame({"a": cells})).frame["a"]
    assert column.dropna().tolist() == [pd.Timestamp("2024-01-31"), pd.Timestamp("2024-02-29")]


def test_bands_and_signs_alone_are_words_without_a_note() -> None:
    assert not read_table(pd.DataFrame({"a": ["<=50K", ">50K"] * 100})).notes


@pytest.mark.parametrize(
    ("cells", "kind", "note"),
    [
        (DECIMALS, "number", ""),
        (MINUTES, "date", "years of two digits"),
        ([*DECIMALS, *["x y"] * 105], "number", f"{STRAY}: 'x y' in row 2001"),
        ([*DECIMALS, *["x y"] * 108], "words", f"{WORDS}: 108 of 2,108 cells, such as 'x y', are"),
        ([*DECIMALS, *["x y"] * 140], "words", f"{WORDS}: 995 of 1,060 of a sample are numbers"),
    ],
)
def test_of_many_different_words_a_sample_is_looked_at(monkeypatch, tmp_path, cells, kind, note):
    """What it says is checked on all cells."""
    monkeypatch.setattr("astkit.datasets.table_cells.DIFFERENT", 200)
    rows = read(tmp_path, cells)
    assert rows.columns["a"].kind == kind
    assert [note in each for each in rows.notes][-1:] == [True] * bool(note)


def test_dates_without_an_end_are_left_out_by_date_and_an_input_says_so():
    days = np.where(np.arange(200) % 4 == 0, "9999-12-31", "2024-01-05").astype("datetime64[us]")
    days[1::2] += np.arange(100).astype("timedelta64[D]")
    made = pd.DataFrame({"until": days, "x": np.arange(200.0), "y": np.arange(200) / 7})
    assert "until day missing" in divide_table(made, "y").train.names
    parts = divide_table(made, "y", date="until")
    assert sum(map(len, parts[:3])) == 150
    assert "50 rows without 'until': left out" in parts.train.notes


def test_notes_of_one_kind_are_one_line() -> None:
    made = pd.DataFrame({name: ["1.5"] * 39 + ["kg"] for name in "abc"})
    said = "cells that are no number count as missing: 'a' ('kg' in row 40), 'b' ('kg' in row 40)"
    assert read_table(made[["a", "b"]]).notes == [said]


def test_numbers_of_python_are_no_texts_with_thousands() -> None:
    cells = [Decimal(87), *(Decimal(each) / 1000 for each in range(1001, 1100, 2) if each % 10)]
    assert read_table(pd.DataFrame({"a": cells})).frame["a"][1] == 1.001


def test_a_reader_works_alone() -> None:
    assert number("1.234,5 €", True) == (1234.5, "€", 1.0, False, False)
    assert number("1.234,5 €", False) is None
    words = np.array(["31.12.9999", "31.12.2024 10:30", "x"], object)
    found = dates(words, "%d.%m.%Y").astype("M8[m]").astype(str).tolist()
    assert found == ["9999-12-31T00:00", "2024-12-31T10:30", "NaT"]


@pytest.mark.parametrize(
    ("cells", "kind", "expected"),
    [
        (TIES, "%d/%m/%Y", "2024-04-03"),
        (["x", "05.01.2024 10:30"], "%d.%m.%Y %H:%M", "2024-01-05 10:30"),
        (["31Jan2024", "01Feb2024"], "%d%b%Y", "2024-02-01"),
        (["1", "1.500"], "1.234,5", 1500),
        (["1", "1.500 €"], "1,234.5", 1.5),
        (["20240131", "20240201"], "number", 20_240_201),
        (["00501", "10001"], "number", 10_001),
        (["x", "5"], float, 5),
        (["x", "00501"], str, "00501"),
        (["1", "2"], "category", "2"),
    ],
)
def test_dtypes_decide_how_a_column_is_read(tmp_path, cells, kind, expected):
    read(tmp_path, cells * 12)
    rows = read_table(tmp_path / "table.csv", dtypes={"a": kind})
    date = isinstance(kind, str) and kind.startswith("%")
    assert rows.frame["a"][1] == (pd.Timestamp(expected) if date else expected)
    named = "cells that are no" in "".join(rows.notes)
    assert named == ("x" in cells and kind is not str)


def test_dtypes_that_say_nothing_are_refused(tmp_path):
    read(tmp_path, ["1"] * 9)
    for dtypes, words in (
        ({"zip": "words"}, "there is no column 'zip': choose one of a, b"),
        ({"a": "wort"}, r"dtypes\['a'\] is 'wort': give a format of dates such as '%d/%m/%Y'"),
        ({"a": "1.234"}, r"dtypes\['a'\] is '1.234': give"),
        ({"a": "%Q"}, r"dtypes\['a'\] is '%Q': give"),
        ("words", "dtypes is 'words': give a mapping of columns"),
    ):
        refused((partial(read_table, tmp_path / "table.csv", dtypes=dtypes), words))
    frame = pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30) % 7})
    train = Table(frame, label="b", dtypes={"a": "words"})
    assert train.columns["a"].kind == "words"
    again = partial(Table, frame, like=train, dtypes={"a": "number"})
    refused((again, "beside like, whose readings"))


@pytest.mark.parametrize(
    ("cells", "later", "expected", "note"),
    [
        (["950", "1.2K"], ["2K"], 2000, SCALED),
        (["50%", "0.5", "120%"], ["50%"], 0.5, ""),
        (["50%", "0.5", "120%"], ["0.2"], 0.2, ""),
        (["12%"], ["0.2"], 0.2, f"{UNITS}: '0.2', in the table before with %"),
        (["12%"], [0.2], 0.2, f"{UNITS}: '0.2', in the table before with %"),
        (["12 kg"], [500.0], 500, f"{UNITS}: '500', in the table before with kg"),
        (["(5)", "3"], ["(5)"], -5, ""),
        (MONTHS, ["02/01/2024"], "2024-01-02", ""),
        (["13/02/2024"], ["01/02/2024"], "2024-02-01", ""),
        (TIES, ["13/02/2024"], "2024-02-13", DISPROVED),
        (["1.500"], ["2.500,5", "1.500"], 2500.5, DISPROVED),
        (["1,500"], ["2,50", "1,500"], 2.5, DISPROVED),
        (["1.500"], ["2,500.5"], 2500.5, ""),
        (["(2.5)", "(3)"], ["(2.5)", "3"], -2.5, f"{DISPROVED}: '(2.5)' as -2.5"),
        (["(2.5)", "(3)"], ["(2.5)", "(4)"], 2.5, ""),
        (["1.5", "2"], ["1,5", "2"], 1.5, ""),
        (["12,5", "1,5"], ["1,500", "1,500"], 1.5, ""),
        (["2024-01-31", "2024-02-01"], ["31.01.2024", "01.02.2024"], "2024-01-31", ""),
        (["03/04/2024", "13/04/2024"], ["03/04/2024", "04/04/2024"], "2024-04-03", ""),
        (["1.2K", "15K"], ["950"], "36 of 36 cells, such as '950', are no number", ""),
        (["300 K"], [950.0], "36 of 36 cells, such as '950', are no number", ""),
        (["12 kg"], ["500 g"], "36 of 36 cells, such as '500 g', are no number", ""),
        (["1.5"], ["1.5"] * 9 + ["x"], "36 of 360 cells, such as 'x', are no number", ""),
        (["2024-01-31"], ["x", "y"], "72 of 72 cells, such as 'x' and 'y', are no date", ""),
    ],
)
def test_a_later_table_takes_the_readings_of_the_first_or_is_refused(
    tmp_path, cells, later, expected, note
):
    columns = read(tmp_path, cells * 3).columns
    if isinstance(later[0], str):
        read(tmp_path, later * 36)
    table = tmp_path / "table.csv" if isinstance(later[0], str) else pd.DataFrame({"a": later * 36})
    if isinstance(expected, str) and "cells" in expected:
        refused((partial(read_table, table, columns), expected))
    else:
        rows = read_table(table, columns)
        value = rows.frame["a"][0]
        assert value == (pd.Timestamp(expected) if isinstance(expected, str) else expected)
        assert [note in each for each in rows.notes] == [True] * bool(note)
