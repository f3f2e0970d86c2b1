"""Tables as people have them: CSV, parquet and DataFrames, as columns of numbers, dates and words.

What a file holds is decided a column at a time, from all of its cells. What cannot be read rightly
is named: faults of the file in one error, cells that count as missing in notes.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from astkit.datasets.table_cells import END, NUMBERS, Column, Scan, asked, convert
from astkit.datasets.table_sources import (
    ARCHIVES,
    DAMAGED,
    LONGEST,
    SHOWN,
    FrameSource,
    TextSource,
    listed,
    read_parquet,
)

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 3.4e38
"""The largest float32."""
MARKS = [-99.0, *(sign * (10.0**digits - 1) for digits in range(3, 9) for sign in (-1, 1))]
"""Numbers that may stand for a missing one: -99, -999, 999, 9999 and so on."""
LISTED = 30
"""Names of columns that a message holds."""
KINDS = {"number": "float64", "date": "datetime64[us]", "words": "int32"}


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
    encoding: str | None = None,
    dtypes: Mapping[Any, Any] | None = None,
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
        encoding: of a CSV without a byte order mark that is no UTF-8; Windows-1252 by default.
        dtypes: how columns are read, by name: a format of dates such as "%d/%m/%Y", a number as it
            is written, such as "1.234,5", "number" or ``float``, "words", ``str`` or "category".
            Cells that do not fit are named, and missing; with ``columns`` these hold.

    Raises ``ValueError`` with all faults of the file: rows of other lengths than the header, names
    that occur twice, names that are needed and missing, infinite numbers.
    """
    import pandas as pd

    if both := [each for each in needed if each in drop]:
        raise ValueError(f"drop holds {both[0]!r}, which is needed: leave it out there")
    # a DataFrame may have numbers as names
    if dtypes is not None and not isinstance(dtypes, Mapping):
        raise ValueError(f"dtypes is {dtypes!r}: give a mapping of columns, as {{'zip': 'words'}}")
    kinds = {str(each): asked(str(each), kind) for each, kind in (dtypes or {}).items()}
    options = (columns, list(map(str, needed)), list(map(str, drop)), kinds)
    if isinstance(source, pd.DataFrame):
        return _read("the table", FrameSource(source), *options)
    if not isinstance(source, str | Path):
        raise ValueError(f"a table is a {type(source).__name__}: give a path, or a DataFrame")
    path = Path(source).expanduser()
    if not path.is_file():
        raise ValueError(f"{path} is no file: give a CSV or parquet file, or a DataFrame")
    limit = csv.field_size_limit(LONGEST)
    try:
        packed = path.suffix.lower() == ".parquet"
        file = FrameSource(read_parquet(path)) if packed else TextSource(path, encoding)
        return _read(str(path), file, *options)
    except DAMAGED as error:
        if path.suffix.lower() not in ARCHIVES or getattr(error, "errno", None):
            raise
        why = " ".join(str(error).split())
        damaged = f"{path} is no {path.suffix} file, or damaged ({why:.120})"
        raise ValueError(f"{damaged}: bring it anew, or rename it") from error
    finally:
        csv.field_size_limit(limit)


def read_tables(
    source: Any,
    others: Mapping[str, Any],
    *,
    needed: Sequence[str] = (),
    needed_of_others: Sequence[str] = (),
    **reading: Any,
) -> tuple[TableRows, dict[str, TableRows]]:
    """Read a table, and ``others`` by name, those that are not ``None``, alike.

    ``reading``: further options of `read_table`. Raises ``ValueError`` with the faults of all.
    """
    problems: list[str] = []
    first: TableRows | None = None
    read: dict[str, TableRows] = {}
    try:
        first = read_table(source, needed=needed, **reading)
    except ValueError as error:
        problems.append(str(error))
    columns = None if first is None else first.columns
    for name, other in others.items():
        try:
            if other is not None:
                read[name] = read_table(other, columns, needed=needed_of_others, **reading)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if first is None or problems:
        raise ValueError("\n".join(problems))
    return first, read


def _read(
    name: str,
    source: FrameSource | TextSource,
    columns: Mapping[str, Column] | None,
    needed: Sequence[str],
    drop: Sequence[str],
    dtypes: Mapping[str, Column],
) -> TableRows:
    """Decide about the columns in one pass, and convert them in another."""
    import pandas as pd

    # how a later table is read does not depend on its types
    before = columns or {}
    own = {**dict.fromkeys(source.words, Column("words")), **dtypes} if columns is None else {}
    called = [each or f"column {place}" for place, each in enumerate(source.names, 1)]
    scans = [
        Scan(source.comma, _is_nameless(given), before.get(each), own.get(each))
        for given, each in zip(source.names, called, strict=True)
    ]
    rows = 0
    for cells in source.chunks():
        for scan, part in zip(scans, cells, strict=True):
            scan.add(part)
        rows += len(cells[0]) if cells else 0
    names, notes, faults = _names(source.names, scans, drop)
    faults = [*source.faults, *faults]
    known = {*source.names, *names}
    for each in (*needed, *((*drop, *dtypes) if columns is None else ())):
        if each not in known and (each in needed or each not in source.apart):
            some = source.apart.get(each, f"choose one of {listed(source.names, LISTED)}")
            faults.append(f"there is no column {each!r}: {some}")
    if not rows and not faults:
        faults.append("it has no rows")
    read = {n: scan for n, scan in zip(names, scans, strict=True) if n is not None}
    proved = {sign for scan in scans if (sign := scan.proves())}
    decided = {each: scan.decide(proved) for each, scan in read.items()}
    lacking = [each for each in columns or () if each not in decided]
    if columns is not None:
        if further := [each for each in decided if each not in columns]:
            notes.append(f"{name} has further columns, left out: {listed(further, LISTED)}")
        decided = {each: column for each, column in decided.items() if each in columns}
    whole, odd = _converted(source, names, decided, rows)
    for each, values in whole.items():
        if decided[each].kind == "number":
            faults += _too_large(each, values)
    if columns is not None:
        faults += _unlike(odd, columns, {each: scan.cells for each, scan in read.items()})
    if faults:
        every = f" {faults[0]}" if len(faults) == 1 else "".join(f"\n- {each}" for each in faults)
        raise ValueError(f"{name} cannot be read:{every}")
    notes += source.notes
    said = [(why, each, _shown(cells)) for why, each, cells in odd]
    said += [(why, each, what) for each in decided for why, what in read[each].notes.items()]
    marks = {each: _marks(whole[each]) for each in decided if decided[each].kind == "number"}
    why = "numbers that may stand for missing ones are read as they are: empty these cells if so"
    said += [(why, each, what) for each, what in marks.items() if what]
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
    source: FrameSource | TextSource,
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


def _shown(odd: Sequence[tuple[int, str]]) -> str:
    return listed([f"{text!r} in row {row + 1}" for row, text in odd])


def _one_line_each(said: Sequence[tuple[str, str, str]]) -> list[str]:
    """Notes, one for each reason, of which columns it is said and what."""
    notes = []
    for why in dict.fromkeys(why for why, _, _ in said):
        columns = {name: what for reason, name, what in said if reason == why}
        if len(columns) == 1:
            notes += [f"column {name!r}: {why}: {what}" for name, what in columns.items()]
        else:
            each = [f"{name!r} ({what})" for name, what in columns.items()]
            notes.append(f"{why}: {listed(each, LISTED)}")
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
        if why != END and len(stray) > (1 - NUMBERS) * count and not columns[name].loose:
            two = " and ".join(map(repr, list(dict.fromkeys(text for _, text in stray))[:2]))
            faults.append(
                f"column {name!r}: {len(stray):,} of {count:,} cells, such as {two}, are no {kind}"
                " as in the table it is read like: write them as there, or read both with dtypes="
            )
    return faults


def _marks(values: np.ndarray[Any, Any]) -> str:
    """`MARKS` that lie farther from all other numbers than these do from each other."""
    marked = np.isin(values, MARKS)
    others = values[~marked & np.isfinite(values)]
    if not marked.any() or not len(others):
        return ""
    spread = others.max() - others.min()
    away = np.maximum(others.min() - values, values - others.max())
    found, counts = np.unique(values[marked & (away > spread)], return_counts=True)
    return listed([f"{each:.10g} in {n:,} rows" for each, n in zip(found, counts, strict=True)])


def _too_large(name: str, values: np.ndarray[Any, Any]) -> list[str]:
    rows = np.flatnonzero(np.abs(values) > LARGEST)
    if not len(rows):
        return []
    shown = ", ".join(f"{values[row]:g} in row {row + 1}" for row in rows[:SHOWN])
    return [
        f"column {name!r} holds numbers beyond those of float32 ({shown}): leave out these rows, or"
        " the column"
    ]
