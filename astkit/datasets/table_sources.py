"""What holds a table: a text in some encoding, maybe packed, a parquet file, or a DataFrame."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from astkit.datasets.table_readers import DIGITS, is_number

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 5
"""Faults of a kind that a message holds."""
CHUNK = 20_000
"""Rows whose cells are in memory at once."""
PACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
SEPARATORS = ",;\t|"
CHECKED = 20
"""Lines that runs of spaces divide into equally many cells, where they separate."""
VALID = 0.9
"""Share of the non-ASCII characters of a file that are valid in its encoding, at least."""
CHANCE = 10
"""Such characters from which on a file cannot be valid UTF-8 by chance."""
BROKEN = "\U0010ffff"
"""What bytes that are not valid are decoded to at first: no text holds this code."""
MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
"""Encodings by their byte order marks."""
ARCHIVES = (*PACKED, ".zip", ".parquet")
DAMAGED = (EOFError, OSError, RuntimeError, zlib.error, lzma.LZMAError, BadZipFile)
"""What unpacking raises, of zip files with a password too."""
BINARY = 0.01
"""Share of control characters from which on a file is no text."""
LONGEST = 2**27
"""Characters of a cell, at most."""

_APART = re.compile(r"/$|^__MACOSX/|(^|/)\.")
_CONTROL = re.compile(r"[\0-\x08\x0e-\x1f]")


def _broken(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return BROKEN, error.end


codecs.register_error("astkit", _broken)


def read_parquet(path: Path) -> pd.DataFrame:
    """The frame in a parquet file, for which pandas needs another package."""
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{path} needs the package pyarrow: install it, or give a CSV file"
        ) from error
    except ValueError as error:  # as pyarrow says of a damaged file, without its path
        raise OSError(str(error)) from error


def listed(texts: Sequence[str], most: int = SHOWN) -> str:
    """The first ``texts``, and how many more there are."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _encoding(path: Path, given: str | None) -> tuple[str, bool, list[str]]:
    """The encoding of a file, whether some of its bytes are not valid in it, and notes.

    That of the byte order mark; UTF-8 if `VALID` of the characters beyond ASCII are, beside a
    ``given`` one only if that cannot be by chance; else the given one, or Windows-1252.
    """
    with unpacked(path, "rb") as file:
        start = file.read(3)
    marked = [name for mark, name in MARKS.items() if start.startswith(mark)]
    try:
        "".encode(given or "cp1252")
        other = codecs.lookup(given or "cp1252").name
    except (LookupError, TypeError) as error:
        known = "give one that Python knows, such as 'cp1251' or 'gbk'"
        raise ValueError(f"encoding is {given!r}: {known}") from error
    for each in marked or dict.fromkeys(("utf-8", other)):
        count, broken = _characters(path, each)
        instead = given is not None and each not in (*marked, other)
        if count - broken < VALID * count or (instead and (broken or count < CHANCE)):
            continue
        notes = [f"read as UTF-8, which it is, although encoding is {given!r}"] * instead
        if given is None and each == "cp1252":
            notes = ["read as Windows-1252, since it is no UTF-8; encoding= if not"]
        return each, broken > 0, notes
    raise ValueError(f"{path} is no {given or 'UTF-8'}: name its encoding, as encoding='gbk'")


def _characters(path: Path, encoding: str) -> tuple[int, int]:
    """Characters of a file beyond ASCII, and those among them that are not valid."""
    count = broken = 0
    with unpacked(path, "rt", encoding=encoding, errors="astkit", newline="") as file:
        while text := file.read(2**20):
            count += len(text) - len(text.encode("ascii", "ignore"))
            broken += text.count(BROKEN)
    return count, broken


def unpacked(path: Path, mode: str, **options: Any) -> Any:
    """The file, unpacked."""
    if path.suffix.lower() != ".zip":
        return PACKED.get(path.suffix.lower(), open)(path, mode, **options)
    with ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not _APART.search(name)]
        if len(names) != 1:
            raise ValueError(f"{path} holds {len(names)} files: unpack it, and give one of them")
        file = archive.open(names[0])
    return file if mode == "rb" else io.TextIOWrapper(file, **options)


class TextSource:
    """The cells of a CSV file, in chunks of rows.

    Attributes:
        names: of the columns; ``faults`` and ``notes`` are known after a pass over the rows.
        comma: whether the separator suggests decimal commas.
        apart: names of what is no column, and why; a file has none.
        words: names of columns that are declared as words; a file has none.
    """

    apart: Mapping[str, str] = {}
    words: Sequence[str] = ()

    def __init__(self, path: Path, encoding: str | None) -> None:
        self.path = path
        self.encoding, self._broken, self._read_as = _encoding(path, encoding)
        self.faults: list[str] = []
        self.notes: list[str] = []
        self._invalid: list[str] = []
        with self._text() as file:
            sample = file.read(2**16)
        if not sample.strip():
            raise ValueError(f"{path} is empty: give a table with a header")
        if len(_CONTROL.findall(sample)) > BINARY * len(sample):
            raise ValueError(
                f"{path} is no text: give a CSV (packed ones named .gz, .bz2, .xz or .zip), a"
                " DataFrame, or its encoding, such as encoding='utf-16-le'"
            )
        self.separator = _separator(sample)
        self.comma = self.separator == ";"
        try:
            self.names = [name.strip() for name in next(self._records(), [])]
        except csv.Error as error:
            raise ValueError(
                f"{path} has a quote in its header that does not end before a separator ({error}):"
                " give a CSV file whose first line has the names of its columns"
            ) from error

    def chunks(self) -> Iterator[list[Any]]:
        """Columns of up to `CHUNK` rows, without rows of another length than the header."""
        self.faults, self.notes, self._invalid = [], [*self._read_as], []
        if all(map(is_number, self.names)):
            shown = ", ".join(self.names[:3])
            self.faults.append(f"its first line holds numbers, not names ({shown})")
        rows = self._rows()
        while chunk := list(islice(rows, CHUNK)):
            yield list(zip(*chunk, strict=True))

    def _rows(self) -> Iterator[list[str]]:
        """The rows below the header that have its length."""
        wrong: list[tuple[int, int]] = []
        right = repeated = 0
        records = self._records()
        header = next(records)
        try:
            for number, record in enumerate(records, 1):
                if len(record) == len(header) and record != header:
                    right += 1
                    yield record
                elif len(record) == len(header):
                    repeated += 1
                else:
                    wrong.append((number, len(record)))
        except csv.Error as error:
            self.faults.append(f"a quoted cell does not end where the next separator is ({error})")
        if wrong:
            shown = listed([f"row {number} has {cells} cells" for number, cells in wrong])
            fault = f"its header has {len(header)} names, but {shown}"
            if not right and len(wrong) > 1:
                fault += (
                    f"; if its cells are not divided by {self.separator!r}, give the DataFrame that"
                    " pandas.read_csv returns with the right sep"
                )
            self.faults.append(fault)
        if repeated:
            rows = "1 row repeats" if repeated == 1 else f"{repeated} rows repeat"
            self.notes.append(f"{rows} the header: left out")
        if self._invalid:
            cells = listed(self._invalid)
            self.notes.append(f"cells with bytes that are not valid {self.encoding}: {cells}")

    def _text(self) -> Any:
        return unpacked(self.path, "rt", encoding=self.encoding, errors="astkit", newline="")

    def _records(self) -> Iterator[list[str]]:
        """The header and the rows that are not empty, without empty cells beyond the header."""
        width = None
        with self._text() as file:
            sep, aligned = self.separator, self.separator == " "  # runs of spaces divide once
            rows = csv.reader(file, delimiter=sep, skipinitialspace=aligned, strict=True)
            for record in rows:
                if self._broken and BROKEN in "".join(record):
                    record = [cell.replace(BROKEN, "\ufffd") for cell in record]
                    for cell in record:
                        if "\ufffd" in cell:  # of all but the first only the number is told
                            few = len(self._invalid) < SHOWN
                            shown = f"{cell[:60]!r} in line {rows.line_num}"
                            self._invalid.append(shown if few else "")
                if len(record) <= 1 and not any(record):
                    continue
                if width is None:
                    width = len(record)
                while len(record) > width and not record[-1].strip():
                    record.pop()
                yield record


def _separator(sample: str) -> str:
    """The separator that divides the header into the most names."""
    header = next(line for line in sample.splitlines() if line.strip())
    counts = {each: len(next(csv.reader([header], delimiter=each))) for each in SEPARATORS}
    best = max(counts, key=lambda each: counts[each])
    if counts[best] > 1:
        return best
    first = csv.reader(sample.splitlines()[:CHECKED], delimiter=" ", skipinitialspace=True)
    widths = {len([cell for cell in record if cell]) for record in first} - {0}
    if len(widths) == 1 and widths != {1}:
        return " "
    try:
        found = csv.Sniffer().sniff(sample).delimiter
    except csv.Error:  # a single column
        return ","
    return "," if found.isalnum() or found not in header else found


class FrameSource:
    """The columns of a DataFrame: numbers and dates as they are, others as they are written."""

    comma = False

    def __init__(self, frame: pd.DataFrame) -> None:
        import pandas as pd

        why = "it is the index, which reset_index() makes a column"
        self.apart = dict.fromkeys(map(str, frame.index.names), why)
        self.names, self.words = list[str](), list[str]()
        self.faults, self.notes = list[str](), list[str]()
        self._columns: list[pd.Series[Any]] = []
        for place, name in enumerate(str(each).strip() for each in frame):
            column = frame.iloc[:, place]
            days = "date" in str(column.dtype)
            if isinstance(column.dtype, pd.ArrowDtype) and (days or column.dtype.kind in "Om"):
                cells = column.array.__arrow_array__().to_pylist()
                column = pd.Series(cells)  # also durations and lists
            first = column.dropna().iloc[:1].tolist() if column.dtype == object else []
            if any(isinstance(cell, list | tuple | dict | set | np.ndarray) for cell in first):
                self.apart[name] = "its cells are lists or mappings"
                self.notes.append(f"column {name!r} has lists or mappings as cells: left out")
                continue
            self.names.append(name)
            self._columns.append(column)
            if isinstance(column.dtype, pd.CategoricalDtype):
                self.words.append(name)

    def chunks(self) -> Iterator[list[Any]]:
        """All rows."""
        if self._columns and len(self._columns[0]):
            yield list(map(_typed, self._columns))


def _typed(column: pd.Series[Any]) -> Any:
    """Float64 or datetime64 values, or an array of strings."""
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_datetime64_any_dtype(column):
        if column.dt.tz is not None:  # as in files, where offsets may differ between rows
            column = column.dt.tz_convert("UTC").dt.tz_localize(None)
        return column.to_numpy("datetime64[us]")
    if kinds.is_timedelta64_dtype(column):
        return column.dt.total_seconds().to_numpy("float64") / 86_400
    numbers = ("decimal", "floating", "mixed-integer-float")
    if column.dtype == object and kinds.infer_dtype(column, skipna=True) in numbers:
        return column.to_numpy("float64", na_value=np.nan)
    plain = kinds.is_numeric_dtype(column) and not kinds.is_complex_dtype(column)
    if plain and not kinds.is_bool_dtype(column):
        values = column.to_numpy("float64", na_value=np.nan)
        if not kinds.is_integer_dtype(column) or not (np.abs(values) >= 10.0**DIGITS).any():
            return values
    known = column.notna()
    cells = ["" if gone else as_written(cell) for cell, gone in zip(column, ~known, strict=True)]
    return np.array(cells, object)


def as_written(value: Any) -> str:
    """A number or a word as in a file: whole numbers without a decimal point."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)
