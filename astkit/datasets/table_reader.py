"""Tables as people have them: CSV, parquet and DataFrames, as columns of numbers, dates and words.

What a file holds is decided a column at a time, from all of its cells. What cannot be read rightly
is named: faults of the file in one error, cells that count as missing in notes.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = 0.95
"""Share of the cells of a column, those missing aside, from which on the column holds numbers."""
MISSING = ("", "na", "n/a", "nan", "null", "none", "-", "--", "?", ".")
"""What stands for a missing number, in any case. In a column of words only an empty cell does."""
DIGITS = 15
"""Digits that a float64 tells apart: whole numbers of more digits are read as words."""
LARGEST = 3.4e38
"""The largest float32."""
SHOWN = 5
"""Faults of a kind, and cells of a column, that a message names."""
CHUNK = 50_000
OPENERS: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
SEPARATORS = ",;\t|"
SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")

_UNIT = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<before>[^\W\d_]{3}(?=\s)|[$€£¥₹]?)\s*(?P<inner>[-+]?)"
    r"(?P<digits>\d[\d.,'\u00a0\u202f ]*|[.,]\d+)(?P<power>[eE][-+]?\d+)?"
    r"\s*(?P<after>[%‰°$€£¥₹]?[^\W\d_]{0,8}[²³]?(/[^\W\d_]{1,4}[²³]?)?)"
)


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read.

    Attributes:
        kind: "number", "date" or "words".
        comma: whether a comma is the decimal sign of its numbers, otherwise of thousands.
        unit: what stands before or after each number, such as "$" or "kg".
        format: of its dates, as of ``strptime``.
    """

    kind: str
    comma: bool = False
    unit: str = ""
    format: str = ""


@dataclass
class TableRows:
    """A table that was read.

    Attributes:
        frame: numbers as float64, dates as datetime64, words as categories; missing cells are null.
        columns: how each column was read; the same ones read further files alike.
        notes: sentences about cells and columns that were left out.
    """

    frame: pd.DataFrame
    columns: dict[str, Column]
    notes: list[str] = field(default_factory=list)


def read_table(source: Any, columns: Mapping[str, Column] | None = None) -> TableRows:
    """Read a CSV or parquet file, or a DataFrame.

    A CSV may have any of the usual separators, decimal commas, a byte order mark, and be packed by
    gzip, bzip2 or xz. Numbers may have units, currencies and signs of thousands; a column of which
    `NUMBERS` of the cells are numbers is one of numbers, and its other cells count as missing.

    Args:
        source: path, or a pandas DataFrame.
        columns: of a table that was read before, to read this one alike: columns that it lacks are
            missing cells, further ones are left out, and both are named.

    Raises ``ValueError`` with all faults of the file: rows of other lengths than the header, names
    that occur twice, infinite numbers.
    """
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return _read_parts("the table", _FrameSource(source), columns)
    path = Path(source).expanduser()
    if not path.is_file():
        raise ValueError(f"{path} is no file: give a CSV or parquet file, or a DataFrame")
    if path.suffix.lower() == ".parquet":
        frame = pd.read_parquet(path)
        return _read_parts(str(path), _FrameSource(frame), columns)
    return _read_parts(str(path), _TextSource(path), columns)


def _read_parts(
    name: str, source: _FrameSource | _TextSource, columns: Mapping[str, Column] | None
) -> TableRows:
    """Decide about the columns in one pass, and convert them in another."""
    import pandas as pd

    scans = [_Scan(source.comma) for _ in source.names]
    rows = 0
    for cells in source.chunks():
        for scan, part in zip(scans, cells, strict=True):
            scan.add(part)
        rows += len(cells[0]) if cells else 0
    names, notes = _names(source.names, scans, source.faults)
    decided = {n: scan.decide() for n, scan in zip(names, scans, strict=True) if n is not None}
    if columns is not None:
        notes += _differences(name, decided, columns)
        decided = {each: columns[each] for each in decided if each in columns}
    parts: dict[str, list[Any]] = {each: [] for each in decided}
    stray: dict[str, list[tuple[int, str]]] = {each: [] for each in decided}
    first = 0
    for cells in source.chunks():
        for each, part in zip(names, cells, strict=True):
            if each in decided:
                values, odd = convert(part, decided[each])
                parts[each].append(values)
                stray[each] += [(first + row, text) for row, text in odd]
        first += len(cells[0]) if cells else 0
    faults = list(source.faults)
    if not rows and not faults:
        faults.append("it has no rows")
    whole = {each: _joined(parts.pop(each), decided[each]) for each in list(parts)}
    for each, values in whole.items():
        if decided[each].kind == "number":
            faults += _too_large(each, values)
    if faults:
        listed = "".join(f"\n- {fault}" for fault in faults)
        raise ValueError(f"{name} cannot be read:{listed}")
    notes += [_stray(each, odd, decided[each]) for each, odd in stray.items() if odd]
    for each, column in (columns or {}).items():
        if each not in whole:
            whole[each] = _joined([convert([""] * rows, column)[0]], column)
            decided[each] = column
    ordered = whole if columns is None else {each: whole[each] for each in columns}
    return TableRows(pd.DataFrame(ordered), {each: decided[each] for each in ordered}, notes)


def _names(
    given: Sequence[str], scans: Sequence[_Scan], faults: list[str]
) -> tuple[list[str | None], list[str]]:
    """Names of the columns, ``None`` for those that are left out, and notes about these."""
    names: list[str | None] = [str(each).strip() for each in given]
    for name, count in Counter(names).items():
        if name and count > 1:
            faults.append(f"the name {name!r} stands over {count} columns: rename all but one")
    notes = []
    if names and all(_is_number(each or "x") for each in names):
        faults.append(f"its first line holds numbers, not names ({', '.join(map(str, names[:3]))})")
    for place, (name, scan) in enumerate(zip(names, scans, strict=True)):
        if name and not name.startswith("Unnamed:"):
            continue
        if scan.counts_rows():
            names[place] = None
            notes.append(f"column {place + 1} has no name and counts the rows: left out")
        elif not name:
            names[place] = f"column {place + 1}"
    return names, notes


def _differences(name: str, now: Mapping[str, Column], columns: Mapping[str, Column]) -> list[str]:
    notes = []
    if new := [each for each in now if each not in columns]:
        notes.append(f"{name} has further columns, left out: {', '.join(new)}")
    if lacking := [each for each in columns if each not in now]:
        notes.append(f"{name} lacks columns, which count as missing: {', '.join(lacking)}")
    return notes


def _stray(name: str, odd: Sequence[tuple[int, str]], column: Column) -> str:
    shown = ", ".join(f"{text!r} in row {row + 1}" for row, text in odd[:SHOWN])
    more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
    return f"column {name!r}: cells that are no {column.kind} count as missing: {shown}{more}"


def _too_large(name: str, values: np.ndarray[Any, Any]) -> list[str]:
    rows = np.flatnonzero(np.abs(values) > LARGEST)
    if not len(rows):
        return []
    shown = ", ".join(f"{values[row]:g} in row {row + 1}" for row in rows[:SHOWN])
    return [f"column {name!r} holds numbers beyond those of float32 ({shown}): remove these rows"]


def _joined(parts: list[Any], column: Column) -> Any:
    """The values of all chunks."""
    from pandas.api.types import union_categoricals

    if column.kind == "words":
        return union_categoricals(parts) if parts else _categories([])
    kind = "float64" if column.kind == "number" else "datetime64[ns]"
    return np.concatenate(parts) if parts else np.array([], kind)


# --- cells -----------------------------------------------------------------------------------


def convert(cells: Any, column: Column) -> tuple[Any, list[tuple[int, str]]]:
    """Values of ``cells``, and the place and text of those that are not of the column's kind."""
    import pandas as pd

    if not isinstance(cells, list):
        return cells, []
    codes, words = pd.factorize(np.array(cells, object))
    if column.kind == "words":
        empty: np.ndarray[Any, Any] = np.equal(words, "")
        kept = np.where(empty, -1, np.cumsum(~empty) - 1)
        names: list[str] = words[~empty].tolist()
        return pd.Categorical.from_codes(kept[codes].astype(np.int32), pd.Index(names)), []
    if column.kind == "number":
        values = _numbers(words, column.comma, column.unit)
        known = np.isfinite(values) | np.isinf(values)
    else:
        values = _dates(words, column.format)
        known = ~np.isnat(values)
    missing = np.array([word.lower() in MISSING for word in words], bool)
    odd = np.flatnonzero(~known & ~missing)
    places = [] if not len(odd) else np.flatnonzero(np.isin(codes, odd)).tolist()
    return values[codes], [(place, cells[place]) for place in places]


def _numbers(
    words: np.ndarray[Any, Any], comma: bool, unit: str = ""
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Numbers that are written in ``words``; NaN for others."""
    import pandas as pd

    values = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce").to_numpy(
        float, copy=True
    )
    for place in np.flatnonzero(np.isnan(values)).tolist():
        parsed = _parse(words[place], comma)
        if parsed is not None and parsed[1] == unit:
            values[place] = parsed[0]
    if comma:  # pandas took a point for the decimal sign
        for place in np.flatnonzero(["." in word for word in words]).tolist():
            parsed = _parse(words[place], comma)
            values[place] = np.nan if parsed is None else parsed[0]
    return values


def _parse(word: str, comma: bool) -> tuple[float, str] | None:
    """The number in a cell and its unit, or ``None``."""
    found = _UNIT.fullmatch(word)
    if found is None or (found["sign"] and found["inner"]):
        return None
    if found["before"] and found["after"]:
        return None
    digits = re.sub(r"['\u00a0\u202f ]", "", found["digits"])
    thousands, decimal = (".", ",") if comma else (",", ".")
    whole, _, rest = digits.partition(decimal)
    if thousands in rest or decimal in rest:
        return None
    first, *groups = whole.split(thousands)
    if any(len(group) != 3 for group in groups) or (groups and not 1 <= len(first) <= 3):
        return None
    number = float(f"{''.join([first, *groups]) or '0'}.{rest or '0'}{found['power'] or ''}")
    sign = -1.0 if "-" in (found["sign"], found["inner"]) else 1.0
    return sign * number, found["before"] or found["after"]


def _is_number(word: str) -> bool:
    return bool(np.isfinite(_numbers(np.array([word], object), False))[0])


def _dates(words: np.ndarray[Any, Any], form: str) -> np.ndarray[Any, Any]:
    """Dates that are written in ``words`` in the format ``form``; NaT for others."""
    import pandas as pd

    dates = pd.to_datetime(pd.Series(words, dtype=str), format=form, errors="coerce", utc=True)
    values: np.ndarray[Any, Any] = dates.dt.tz_localize(None).to_numpy("datetime64[ns]")
    return values


def _formats(words: Sequence[str]) -> list[str]:
    """Formats in which one of ``words`` may be a date, the month before the day first."""
    from pandas.tseries.api import guess_datetime_format

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of words that fit one order of day and month only
        for first in (False, True):
            guesses = [guess_datetime_format(word, dayfirst=first) for word in words]
            found += [guess for guess in guesses if guess is not None]
    return [form for form, _ in Counter(found).most_common(4)]


def _categories(words: Sequence[str]) -> Any:
    import pandas as pd

    return pd.Categorical(list(words))


class _Scan:
    """What the cells of a column may be, from one look at each."""

    def __init__(self, comma: bool) -> None:
        self.comma = comma  # whether the file's separator suggests decimal commas
        self.rows = self.cells = 0
        self.long = False  # whether a whole number has more than `DIGITS`
        self.plain = self.points = 0  # numbers without a unit; those that a comma would forbid
        self.written: Counter[tuple[str, bool]] = Counter()  # others, by unit and decimal comma
        self.dates: Counter[str] = Counter()
        self.formats: list[str] | None = None
        self.typed: Column | None = None
        self.begin: int | None = 0  # of cells that count the rows

    def add(self, cells: Any) -> None:
        """Look at the ``cells`` of the next rows."""
        import pandas as pd

        self._count(cells)
        if not isinstance(cells, list):
            self.typed = Column("number" if cells.dtype.kind == "f" else "date")
            return
        codes, words = pd.factorize(np.array(cells, object))
        counts = np.bincount(codes, minlength=len(words))
        missing = np.array([word.lower() in MISSING for word in words], bool)
        self.cells += int(counts[~missing].sum())
        self.long = self.long or any(
            len(word) > DIGITS and word.isdecimal() for word in words.tolist()
        )
        values = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce").to_numpy(
            float, copy=True
        )
        plain = ~np.isnan(values) & ~missing
        self.plain += int(counts[plain].sum())
        others = np.flatnonzero(~plain & ~missing)
        for place in others.tolist():
            for comma in (False, True):
                parsed = _parse(words[place], comma)
                if parsed is not None:
                    self.written[parsed[1], comma] += int(counts[place])
        if self.comma or any(comma for _, comma in self.written):
            for place in np.flatnonzero(plain).tolist():
                if "." in words[place] and _parse(words[place], True) is None:
                    self.points += int(counts[place])
        self._add_dates(words[others], counts[others])

    def _count(self, cells: Any) -> None:
        """Look whether the cells go on counting the rows."""
        if self.begin is not None:
            if not self.rows:
                self.begin = int(str(cells[0]) in ("1", "1.0"))
            start = self.begin + self.rows
            numbers = range(start, start + len(cells))
            alike = (
                cells == list(map(str, numbers))
                if isinstance(cells, list)
                else cells.dtype.kind == "f" and np.array_equal(cells, np.array(numbers, float))
            )
            self.begin = self.begin if alike else None
        self.rows += len(cells)

    def _add_dates(self, words: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> None:
        if self.formats is None and len(words):
            self.formats = _formats(words[:50].tolist())
        for form in self.formats or ():
            self.dates[form] += int(counts[~np.isnat(_dates(words, form))].sum())

    def decide(self) -> Column:
        """How the column is read."""
        if self.typed is not None:
            return self.typed
        least = NUMBERS * self.cells
        if not self.long:
            known = {Column("number"): self.plain}
            for (unit, comma), count in self.written.items():
                plain = self.plain - (self.points if comma else 0)
                known[Column("number", comma, unit)] = count + plain
            # of readings that explain as many cells, the decimal sign that goes with the separator
            best = max(known, key=lambda each: (known[each], each.comma == self.comma))
            if known[best] >= least:
                return best
        if self.dates and self.cells:
            form, count = self.dates.most_common(1)[0]
            if count >= least:
                return Column("date", format=form)
        return Column("words")

    def counts_rows(self) -> bool:
        """Whether the cells are the numbers of the rows, from 0 or 1."""
        return self.begin is not None and self.rows > 1


# --- sources ---------------------------------------------------------------------------------


class _TextSource:
    """The cells of a CSV file, in chunks of rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[str] = []
        self.encoding = "utf-8-sig"
        with path.open("rb") as file:
            if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                self.encoding = "utf-16"
        try:
            self._look()
        except UnicodeDecodeError:
            self.encoding = "cp1252"
            self._look()
        self.comma = self.separator == ";"

    def _look(self) -> None:
        """Find the separator, the header, and rows of another length."""
        with self._opened() as file:
            for _ in file:  # decodes all of it
                pass
        with self._opened() as file:
            sample = file.read(2**16)
        if not sample.strip():
            raise ValueError(f"{self.path} is empty: give a table with a header")
        self.separator = _separator(sample)
        self.names = next(self._records())
        self.faults = []
        width = len(self.names)
        wrong = []
        try:
            for number, record in enumerate(self._records()):
                if len(record) != width:
                    wrong.append((number, len(record)))
        except csv.Error as error:
            self.faults.append(f"a quoted cell does not end where the next separator is ({error})")
        if wrong:
            shown = ", ".join(f"row {number} has {cells}" for number, cells in wrong[:SHOWN])
            more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            self.faults.append(f"its header has {width} names, but {shown} cells{more}")

    @contextmanager
    def _opened(self) -> Iterator[TextIO]:
        opener = OPENERS.get(self.path.suffix.lower(), open)
        with opener(self.path, "rt", encoding=self.encoding, newline="") as file:
            yield file

    def _records(self) -> Iterator[list[str]]:
        """The header and the rows that are not empty, without empty cells beyond the header."""
        width = None
        csv.field_size_limit(2**24)
        with self._opened() as file:
            for record in csv.reader(file, delimiter=self.separator, strict=True):
                if not any(record) and len(record) <= 1:
                    continue
                if width is None:
                    width = len(record)
                while len(record) > width and not record[-1].strip():
                    record.pop()
                yield record

    def chunks(self) -> Iterator[list[list[str]]]:
        """Columns of up to `CHUNK` rows, without rows of another length than the header."""
        whole = (each for each in self._records() if len(each) == len(self.names))
        records = islice(whole, 1, None)
        with suppress(csv.Error):  # a fault already
            while chunk := list(islice(records, CHUNK)):
                yield [[cell.strip() for cell in column] for column in zip(*chunk, strict=True)]


def _separator(sample: str) -> str:
    """The separator that divides the header into the most names."""
    header = next(line for line in sample.splitlines() if line.strip())
    counts = {each: len(next(csv.reader([header], delimiter=each))) for each in SEPARATORS}
    best = max(counts, key=lambda each: counts[each])
    if counts[best] > 1:
        return best
    try:
        found = csv.Sniffer().sniff(sample).delimiter
    except csv.Error:  # a single column
        return ","
    return "," if found.isalnum() or found not in header else found


class _FrameSource:
    """The columns of a DataFrame: numbers and dates as they are, others as they are written."""

    comma = False

    def __init__(self, frame: pd.DataFrame) -> None:
        self.names = [str(name) for name in frame]
        self.faults: list[str] = []
        self._frame = frame

    def chunks(self) -> Iterator[list[Any]]:
        """All rows."""
        if len(self._frame):
            yield [_typed(self._frame.iloc[:, place]) for place in range(self._frame.shape[1])]


def _typed(column: pd.Series[Any]) -> Any:
    """Float64 or datetime64 values, or a list of strings."""
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_datetime64_any_dtype(column):
        return column.dt.tz_localize(None).to_numpy("datetime64[ns]")
    if kinds.is_numeric_dtype(column) and not kinds.is_bool_dtype(column):
        if kinds.is_complex_dtype(column):
            return column.astype(str).tolist()
        return column.to_numpy("float64", na_value=np.nan)
    missing = column.isna()
    return ["" if gone else str(value).strip() for value, gone in zip(column, missing, strict=True)]
