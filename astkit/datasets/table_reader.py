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

from astkit.datasets.table_cells import END, Cells, Column, Scan, asked
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
UNLIKE = " as in the table it is read like: write them as there, or read both with dtypes="
AS_WORDS = "read as words, as less than 95 % of the cells are of one kind"
MARKED = "numbers that may stand for missing ones are read as they are: empty these cells if so"


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

    kept = columns or {}
    # how a later table is read does not depend on its types
    asked = {**dict.fromkeys(source.words, Column("words")), **dtypes} if columns is None else {}
    names = [each or f"column {place}" for place, each in enumerate(source.names, 1)]
    scans = [Scan(source.comma, kept.get(each), asked.get(each)) for each in names]
    rows = 0
    for cells in source.chunks():
        for scan, part in zip(scans, cells, strict=True):
            scan.add(part)
        rows += len(cells[0]) if cells else 0
    faults = _faults(
        source, rows, names, needed, drop, () if columns is not None else (*drop, *dtypes)
    )
    proved = {sign for scan in scans if (sign := scan.proves())}
    read = {n: scan for n, scan in zip(names, scans, strict=True) if n not in drop}
    decided = {n: scan.decide(proved) for n, scan in read.items()}
    lacking = [n for n in kept if n not in decided]
    further = [n for n in decided if n not in kept] if columns is not None else []
    nameless = [n for n, given in zip(names, source.names, strict=True) if _is_nameless(given)]
    decided = {n: each for n, each in decided.items() if n not in further or n in nameless}
    decided |= {n: kept[n] for n in lacking}
    given = [n if n in read else "" for n in names]  # without those that are dropped
    filled = _filled(source, given, decided, rows)
    if unfit := {n: why for n, each in filled.items() if (why := each.unfit)}:
        if columns is not None:
            faults += [f"column {n!r}: {why}{UNLIKE}" for n, why in unfit.items()]
        else:  # as the sample of its cells did not show
            decided |= dict.fromkeys(unfit, Column("words"))
            filled |= _filled(source, given, {n: decided[n] for n in unfit}, rows)
    numbers = {n: each.values for n, each in filled.items() if each.column.kind == "number"}
    for n, values in numbers.items():
        faults += _too_large(n, values)
    if faults:
        every = f" {faults[0]}" if len(faults) == 1 else "".join(f"\n- {each}" for each in faults)
        raise ValueError(f"{name} cannot be read:{every}")
    counting = [n for n in nameless if n in numbers and n not in kept and _counts(numbers[n])]
    held = "has no name and counts the rows: left out"
    notes = [f"column {names.index(n) + 1} {held}" for n in counting]
    if further := [n for n in further if n not in counting]:
        notes.append(f"{name} has further columns, left out: {listed(further, LISTED)}")
    decided = {n: decided[n] for n in columns or decided if n not in counting}
    said = [(AS_WORDS, n, what) for n, what in unfit.items()]
    for n, column in decided.items():
        why = f"cells that are no {column.kind} count as missing"
        said += [(why, n, _shown(filled[n].strays)), (END, n, _shown(filled[n].ends))]
    for n in (each for each in decided if each in read and each not in unfit):
        said += [(why, n, what) for why, what in read[n].notes.items()]
    said += [(MARKED, n, _marks(values)) for n, values in numbers.items() if n in decided]
    notes += [*source.notes, *_one_line_each(said)]
    whole = {
        n: each.values
        if each.column.kind != "words"
        else pd.Categorical.from_codes(each.values, pd.Index([*each.words], dtype="str"))
        for n, each in filled.items()
        if n in decided
    }
    frame = pd.DataFrame({n: whole[n] for n in decided}, copy=False)
    return TableRows(frame, decided, np.arange(rows), notes, lacking)


def _faults(
    source: FrameSource | TextSource,
    rows: int,
    names: Sequence[str],
    needed: Sequence[str],
    drop: Sequence[str],
    named: Sequence[str],
) -> list[str]:
    """What is wrong with a table, of which ``needed`` and ``named`` columns are asked for."""
    faults = list(source.faults)
    for each, count in Counter(source.names).items():
        if each and count > 1 and each not in drop:
            faults.append(f"the name {each!r} stands over {count} columns: rename all but one")
    for each in (*needed, *named):
        if each not in {*source.names, *names} and (each in needed or each not in source.apart):
            some = source.apart.get(each, f"choose one of {listed(source.names, LISTED)}")
            faults.append(f"there is no column {each!r}: {some}")
    return faults if rows or faults else ["it has no rows"]


def _filled(
    source: FrameSource | TextSource,
    names: Sequence[str],
    columns: Mapping[str, Column],
    rows: int,
) -> dict[str, Cells]:
    """The cells of ``columns``."""
    filled = {name: Cells(column, rows) for name, column in columns.items()}
    first = 0
    for cells in source.chunks():
        for name, part in zip(names, cells, strict=True):
            if name in filled:
                filled[name].fill(first, part)
        first += len(cells[0]) if cells else 0
    return filled


def _counts(values: Any) -> bool:
    """Whether ``values`` are the numbers of the rows, from 0 or 1."""
    return len(values) > 1 and values[0] in (0, 1) and bool((np.diff(values) == 1).all())


def _is_nameless(name: str) -> bool:
    return not name or name.startswith("Unnamed:")  # as pandas calls them


def _shown(odd: Sequence[tuple[int, str]]) -> str:
    return listed([f"{text!r} in row {row + 1}" for row, text in odd])


def _one_line_each(said: Sequence[tuple[str, str, str]]) -> list[str]:
    """Notes, one for each reason, of which columns it is said and what."""
    notes = []
    for why in dict.fromkeys(why for why, _, what in said if what):
        columns = {name: what for reason, name, what in said if reason == why and what}
        if len(columns) == 1:
            notes += [f"column {name!r}: {why}: {what}" for name, what in columns.items()]
        else:
            each = [f"{name!r} ({what})" for name, what in columns.items()]
            notes.append(f"{why}: {listed(each, LISTED)}")
    return notes


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
