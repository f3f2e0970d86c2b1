"""Tables as people have them: CSV, parquet and DataFrames, as columns of numbers, dates and words.

What a file holds is decided a column at a time, from all of its cells. What cannot be read rightly
is named: faults of the file in one error, cells that count as missing in notes.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np

from astkit.datasets.table_cells import END, NUMBERS, Column, Scan, convert
from astkit.datasets.table_readers import DIGITS, is_number

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 3.4e38
"""The largest float32."""
SHOWN, LISTED = 5, 30
"""Faults of a kind, and names of columns, that a message holds."""
CHUNK = 20_000
"""Rows whose cells are in memory at once."""
PACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
KINDS = {"number": "float64", "date": "datetime64[us]", "words": "int32"}
SEPARATORS = ",;\t|"
CHECKED = 20
"""Lines that runs of spaces divide into equally many cells, where they separate."""


@dataclass
class TableRows:
    """A table that was read.

    Attributes:
        frame: numbers as float64, dates as datetime64, words as categories; missing cells are null.
        columns: how each column was read; the same ones read further files alike.
        notes: sentences about cells and columns that were left out.
        lacking: columns that were asked for and that the table has not: all cells are missing.
        numbers: int64 ``[rows]``, the number of each row in the source.
    """

    frame: pd.DataFrame
    columns: dict[str, Column]
    numbers: np.ndarray[Any, np.dtype[np.int64]]
    notes: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)

    def take(self, rows: np.ndarray[Any, Any]) -> TableRows:
        """The selected ``rows``, int ``[n]``, without the notes."""
        frame = self.frame.iloc[rows].reset_index(drop=True)
        return TableRows(frame, self.columns, self.numbers[rows])


def read_table(
    source: Any,
    columns: Mapping[str, Column] | None = None,
    *,
    needed: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> TableRows:
    """Read a CSV or parquet file, or a DataFrame.

    A CSV may have any of the usual separators, decimal commas, a byte order mark, and be packed by
    gzip, bzip2, xz or zip. Numbers may have units, currencies and signs of thousands; a column of
    which 95 % of the cells are numbers is one of numbers, and its other cells count as
    missing.

    Args:
        source: path, or a pandas DataFrame.
        columns: of a table that was read before, to read this one alike: columns that it lacks are
            missing cells, further ones are left out and named.
        needed: names of columns without which the table is of no use.
        drop: names of columns that are not read; with ``columns`` they may be missing.

    Raises ``ValueError`` with all faults of the file: rows of other lengths than the header, names
    that occur twice, names that are needed and missing, infinite numbers.
    """
    import pandas as pd

    # a DataFrame may have numbers as names
    options = (columns, list(map(str, needed)), list(map(str, drop)))
    if isinstance(source, pd.DataFrame):
        return _read("the table", _FrameSource(source), *options)
    if not isinstance(source, str | Path):
        raise ValueError(f"a table is a {type(source).__name__}: give a path, or a DataFrame")
    path = Path(source).expanduser()
    if not path.is_file():
        raise ValueError(f"{path} is no file: give a CSV or parquet file, or a DataFrame")
    if path.suffix.lower() == ".parquet":
        return _read(str(path), _FrameSource(read_parquet(path)), *options)
    for encoding in encodings(path):
        with suppress(UnicodeDecodeError):
            return _read(str(path), TextSource(path, encoding), *options)
    raise ValueError(f"{path} is no text: give a CSV or parquet file, or a DataFrame")


def read_tables(
    source: Any,
    others: Mapping[str, Any],
    *,
    needed: Sequence[str] = (),
    needed_of_others: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> tuple[TableRows, dict[str, TableRows]]:
    """Read a table, and ``others`` by name, those that are not ``None``, alike.

    Raises ``ValueError`` with the faults of all of them.
    """
    problems: list[str] = []
    first: TableRows | None = None
    read: dict[str, TableRows] = {}
    try:
        first = read_table(source, needed=needed, drop=drop)
    except ValueError as error:
        problems.append(str(error))
    columns = None if first is None else first.columns
    for name, other in others.items():
        try:
            if other is not None:
                read[name] = read_table(other, columns, needed=needed_of_others, drop=drop)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if first is None or problems:
        raise ValueError("\n".join(problems))
    return first, read


def read_parquet(path: Path) -> pd.DataFrame:
    """The frame in a parquet file, for which pandas needs another package."""
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{path} needs the package pyarrow: install it, or give a CSV file"
        ) from error


def _read(
    name: str,
    source: _FrameSource | TextSource,
    columns: Mapping[str, Column] | None,
    needed: Sequence[str],
    drop: Sequence[str],
) -> TableRows:
    """Decide about the columns in one pass, and convert them in another."""
    import pandas as pd

    before = columns or {}
    scans = [Scan(source.comma, _is_nameless(each), before.get(each)) for each in source.names]
    rows = 0
    for cells in source.chunks():
        for scan, part in zip(scans, cells, strict=True):
            scan.add(part)
        rows += len(cells[0]) if cells else 0
    names, notes, faults = _names(source.names, scans, drop)
    faults = [*source.faults, *faults]
    known = {*source.names, *names}
    for each in (*needed, *(drop if columns is None else ())):
        if each not in known:
            some = f"choose one of {_listed(source.names)}"
            if each in source.index:
                some = "it is the index, which reset_index() makes a column"
            faults.append(f"there is no column {each!r}: {some}")
    if not rows and not faults:
        faults.append("it has no rows")
    read = {n: scan for n, scan in zip(names, scans, strict=True) if n is not None}
    proved = {sign for scan in read.values() if (sign := scan.proves())}
    decided = {each: scan.decide(proved) for each, scan in read.items()}
    lacking = [each for each in columns or () if each not in decided]
    if columns is not None:
        if further := [each for each in decided if each not in columns]:
            notes.append(f"{name} has further columns, left out: {_listed(further)}")
        decided = {each: column for each, column in decided.items() if each in columns}
    whole, odd = _converted(source, names, decided, rows)
    for each, values in whole.items():
        if decided[each].kind == "number":
            faults += _too_large(each, values)
    if columns is not None:
        faults += _unlike(odd, columns, {each: scan.cells for each, scan in read.items()})
    if faults:
        listed = f" {faults[0]}" if len(faults) == 1 else "".join(f"\n- {each}" for each in faults)
        raise ValueError(f"{name} cannot be read:{listed}")
    notes += source.notes
    said = [(why, each, _shown(cells)) for why, each, cells in odd if not decided[each].empty]
    said += [(why, each, what) for each in decided for why, what in read[each].notes.items()]
    notes += _one_line_each(said)
    if columns is not None:
        for each in lacking:
            empty = convert([""] * rows, columns[each], {})[0]
            whole[each] = _categories(empty, []) if columns[each].kind == "words" else empty
            decided[each] = columns[each]
        decided = {each: decided[each] for each in columns}
    frame = pd.DataFrame({each: whole[each] for each in decided}, copy=False)
    return TableRows(frame, decided, np.arange(rows), notes, lacking)


def _converted(
    source: _FrameSource | TextSource,
    names: Sequence[str | None],
    columns: Mapping[str, Column],
    rows: int,
) -> tuple[dict[str, Any], list[tuple[str, str, list[tuple[int, str]]]]]:
    """The values of ``columns``; why cells count as missing, in which column, and which ones."""
    whole: dict[str, Any] = {n: np.empty(rows, KINDS[each.kind]) for n, each in columns.items()}
    odd: dict[tuple[str, str], list[tuple[int, str]]] = {}
    words: dict[str, dict[str, int]] = {name: {} for name in columns}
    first = 0
    for cells in source.chunks():
        count = len(cells[0]) if cells else 0
        for name, part in zip(names, cells, strict=True):
            if name is not None and name in columns:
                values, left = convert(part, columns[name], words[name])
                whole[name][first : first + count] = values
                for why, found in left.items():
                    some = odd.setdefault((why, name), [])
                    some += [(first + row, text) for row, text in found]
        first += count
    for name, column in columns.items():
        if column.kind == "words":
            whole[name] = _categories(whole[name], [*words[name]])
    return whole, [(why, name, found) for (why, name), found in odd.items() if found]


def _categories(codes: np.ndarray[Any, np.dtype[np.int32]], words: list[str]) -> Any:
    import pandas as pd

    return pd.Categorical.from_codes(codes, pd.Index(words))


def _names(
    given: Sequence[str], scans: Sequence[Scan], drop: Sequence[str]
) -> tuple[list[str | None], list[str], list[str]]:
    """Names of the columns, ``None`` for those that are left out; notes and faults."""
    names: list[str | None] = [None if each in drop else each for each in given]
    notes, faults = [], []
    for name, count in Counter(names).items():
        if name and count > 1:
            faults.append(f"the name {name!r} stands over {count} columns: rename all but one")
    for place, (name, scan) in enumerate(zip(names, scans, strict=True)):
        if name is None or not _is_nameless(name):
            continue
        if scan.counts_rows():
            names[place] = None
            notes.append(f"column {place + 1} has no name and counts the rows: left out")
        elif not name:
            names[place] = f"column {place + 1}"
    return names, notes, faults


def _is_nameless(name: str) -> bool:
    return not name or name.startswith("Unnamed:")  # as pandas calls them


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _shown(odd: Sequence[tuple[int, str]]) -> str:
    shown = ", ".join(f"{text!r} in row {row + 1}" for row, text in odd[:SHOWN])
    return shown + (f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else "")


def _one_line_each(said: Sequence[tuple[str, str, str]]) -> list[str]:
    """Notes, one for each reason, of which columns it is said and what."""
    notes = []
    for why in dict.fromkeys(why for why, _, _ in said):
        columns = {name: what for reason, name, what in said if reason == why}
        if len(columns) == 1:
            notes += [f"column {name!r}: {why}: {what}" for name, what in columns.items()]
        else:
            notes.append(f"{why}: {_listed([f'{n!r} ({what})' for n, what in columns.items()])}")
    return notes


def _unlike(
    odd: Sequence[tuple[str, str, list[tuple[int, str]]]],
    columns: Mapping[str, Column],
    cells: Mapping[str, int],
) -> list[str]:
    """Columns of which fewer than `NUMBERS` of the cells are read as in the table before."""
    faults = []
    for why, name, stray in odd:
        count, kind = cells[name], columns[name].kind
        if why != END and len(stray) > (1 - NUMBERS) * count and not columns[name].empty:
            two = " and ".join(map(repr, list(dict.fromkeys(text for _, text in stray))[:2]))
            faults.append(
                f"column {name!r}: {len(stray):,} of {count:,} cells, such as {two}, are no {kind} as"
                " in the table it is read like: write them as there, or read both with dtypes="
            )
    return faults


def _too_large(name: str, values: np.ndarray[Any, Any]) -> list[str]:
    rows = np.flatnonzero(np.abs(values) > LARGEST)
    if not len(rows):
        return []
    shown = ", ".join(f"{values[row]:g} in row {row + 1}" for row in rows[:SHOWN])
    return [
        f"column {name!r} holds numbers beyond those of float32 ({shown}): leave out these rows, or"
        " the column"
    ]


# --- sources ---------------------------------------------------------------------------------


def encodings(path: Path) -> tuple[str, ...]:
    """Encodings that a file may have, the most likely first."""
    with unpacked(path, "rb") as file:
        start = file.read(3)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return ("utf-16",)
    return ("utf-8-sig" if start == codecs.BOM_UTF8 else "utf-8", "cp1252")


def unpacked(path: Path, mode: str, **options: Any) -> Any:
    """The file, unpacked."""
    if path.suffix.lower() != ".zip":
        return PACKED.get(path.suffix.lower(), open)(path, mode, **options)
    with ZipFile(path) as archive:
        names = archive.namelist()
        if len(names) != 1:
            raise ValueError(f"{path} holds {len(names)} files: unpack it, and give one of them")
        file = archive.open(names[0])
    return file if mode == "rb" else io.TextIOWrapper(file, **options)


class TextSource:
    """The cells of a CSV file, in chunks of rows.

    Attributes:
        names: of the columns; ``faults`` and ``notes`` are known after a pass over the rows.
        comma: whether the separator suggests decimal commas.
        index: names of what is no column; a file has none.

    Raises ``UnicodeDecodeError`` where the file has another encoding.
    """

    index: Sequence[str] = ()

    def __init__(self, path: Path, encoding: str) -> None:
        self.path, self.encoding = path, encoding
        self.faults: list[str] = []
        self.notes: list[str] = []
        with unpacked(path, "rt", encoding=encoding, newline="") as file:
            sample = file.read(2**16)
        if not sample.strip():
            raise ValueError(f"{path} is empty: give a table with a header")
        self.separator = _separator(sample)
        self.comma = self.separator == ";"
        self.names = [name.strip() for name in next(self._records(), [])]

    def chunks(self) -> Iterator[list[Any]]:
        """Columns of up to `CHUNK` rows, without rows of another length than the header."""
        self.faults, self.notes = [], []
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
            shown = ", ".join(f"row {number} has {cells}" for number, cells in wrong[:SHOWN])
            more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            fault = f"its header has {len(header)} names, but {shown} cells{more}"
            if not right and len(wrong) > 1:
                fault += (
                    f"; if its cells are not divided by {self.separator!r}, give the DataFrame that"
                    " pandas.read_csv returns with the right sep"
                )
            self.faults.append(fault)
        if repeated:
            rows = "1 row repeats" if repeated == 1 else f"{repeated} rows repeat"
            self.notes.append(f"{rows} the header: left out")

    def _records(self) -> Iterator[list[str]]:
        """The header and the rows that are not empty, without empty cells beyond the header."""
        width = None
        with unpacked(self.path, "rt", encoding=self.encoding, newline="") as file:
            sep, aligned = self.separator, self.separator == " "  # runs of spaces divide once
            for record in csv.reader(file, delimiter=sep, skipinitialspace=aligned, strict=True):
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


class _FrameSource:
    """The columns of a DataFrame: numbers and dates as they are, others as they are written."""

    comma = False

    def __init__(self, frame: pd.DataFrame) -> None:
        self.index = [str(name) for name in frame.index.names]
        self.names = [str(name).strip() for name in frame]
        self.faults: list[str] = []
        self.notes: list[str] = []
        self._frame = frame

    def chunks(self) -> Iterator[list[Any]]:
        """All rows."""
        if len(self._frame):
            yield [_typed(self._frame.iloc[:, place]) for place in range(self._frame.shape[1])]


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
    plain = kinds.is_numeric_dtype(column) and not kinds.is_complex_dtype(column)
    if plain and not kinds.is_bool_dtype(column):
        values = column.to_numpy("float64", na_value=np.nan)
        if not kinds.is_integer_dtype(column) or not (np.abs(values) >= 10.0**DIGITS).any():
            return values
    try:
        codes, distinct = pd.factorize(column)
    except TypeError:  # of cells that are lists
        return np.array([str(cell) for cell in column], object)
    words = [str(word).strip() for word in distinct]
    return np.array([*words, ""], object)[codes]
