"""A table divided into training, validation and test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from astkit.datasets.joined import set_aside
from astkit.datasets.sources import hold_back
from astkit.datasets.table import Table, named_groups
from astkit.datasets.table_identifiers import counters, identifiers, left_out
from astkit.datasets.table_label import Label, without
from astkit.datasets.table_reader import TableRows, read_table, read_tables
from astkit.datasets.table_readers import is_missing

if TYPE_CHECKING:
    import pandas as pd

Places = np.ndarray[Any, np.dtype[np.int64]]
HELD = 0.15
"""Share of the test rows, and of the validation rows of those that the test leaves."""
FEWEST = 20
"""Rows of a table."""
FEW = 3
"""Rows of a class, one for each part."""


class TableParts(NamedTuple):
    """Tables that are read alike, the encoding fitted to the training rows alone."""

    train: Table
    validation: Table
    test: Table
    target: Table | None = None

    @property
    def sentence(self) -> str:
        """What is predicted from how much."""
        rows = sum(len(part) for part in self if part is not None)
        columns = self.train.frame.shape[1]
        return f"{self.train.label}: {rows:,} rows, {columns} column{'s' * (columns > 1)}"


def divide_table(
    source: Any,
    label: str,
    *,
    validation: Any = None,
    test: Any = None,
    target: Any = None,
    task: str | None = None,
    drop: Sequence[str] = (),
    date: str | None = None,
    groups: str | None = None,
    in_order: bool = False,
    keep: Sequence[str] = (),
    encoding: str | None = None,
    dtypes: Mapping[Any, Any] | None = None,
) -> TableParts:
    """Read a table, and hold rows back for validation and test where no tables of them are given.

    They are drawn at random, of each class the same share, or in whole groups. With a ``date``, or
    where the rows are ``in_order`` of time, they are the last ones, like the data that a model
    meets next: first the validation rows, then the test rows. Parts meet between two days, or two
    values of a ``date`` that is a number.

    Args:
        source: path of a CSV or parquet file, or a DataFrame, see `Table`.
        validation, test, target: further ones, which are read as the first. Beside a ``target``,
            rows like those that count, a fifth of its units is held back for each of the others
            that is not given, see `joined.set_aside`.
        date: column of dates or numbers that orders the rows; it is an input unless it is dropped.
        keep: columns that are inputs although they seem to be identifiers, or number the rows of
            the first table, each once, unless these are in that order and the target goes on.
        label, task, drop, groups, encoding, dtypes: see `Table`.

    Rows without a label or date, and classes of fewer than `FEW` rows, are left out and named in
    the notes. Raises ``ValueError`` with all problems of the files.
    """
    label, drop = str(label), list(map(str, drop))
    if date is not None and in_order:
        raise ValueError("date and in_order both order the rows: give one of them")
    if label in drop:
        raise ValueError(f"drop holds the label {label!r}: leave it out there")
    needed = [each for each in (label, date, groups, *map(str, keep)) if each is not None]
    rows, given = read_tables(
        source,
        {"validation": validation, "test": test, "target": target},
        needed=needed,
        needed_of_others=[label],
        drop=[each for each in drop if each not in needed],
        encoding=encoding,
        dtypes=dtypes,
    )
    whole = Label.of(rows.frame[label], label, task)
    kept, notes = _kept(rows.frame, whole, date)
    if len(kept) < FEWEST:
        raise ValueError(f"{len(kept)} rows are left: give at least {FEWEST}")
    frame = rows.frame[list(dict.fromkeys(needed))].iloc[kept]
    lacking = [part for part in ("test", "validation") if part not in given]
    ordered = date is not None or in_order
    parts = {"train": kept}
    if target is None:
        units, classes = np.arange(len(kept)), None
        if ordered:
            kept, units = _ordered(frame, kept, date)
        elif groups is not None:
            units = named_groups(frame[groups])
        elif whole.task == "classes":
            classes = whole.values(frame[label])
        of_rows = torch.from_numpy(np.unique(units, return_inverse=True)[1])
        rest, aside = hold_back(of_rows, dict.fromkeys(lacking, HELD), ordered, classes)
        parts = {part: kept[places.numpy()] for part, places in ({"train": rest} | aside).items()}
        if not ordered:
            notes += _dated(rows.frame, parts, (label, groups, *drop))
    numbers = _identifying(rows, given.get("target"), needed)
    dropped = [*(each for each in drop if each in rows.frame), *numbers]
    taken = given | {part: rows.take(places) for part, places in parts.items()}
    said = [*rows.notes, *left_out(numbers)]
    del rows  # else a large table would be in memory twice
    options: dict[str, Any] = {"drop": dropped, "groups": groups, "encoding": encoding}
    train = Table(taken.pop("train"), label, task=whole.task, **options)
    tables: dict[str, Table] = {}
    if target is not None and lacking:
        tables |= _aside(taken.pop("target"), train, lacking, date, in_order)
    tables |= {part: Table(table, like=train) for part, table in taken.items()}
    for part, table in tables.items():
        if not table.labelled:
            raise ValueError(f"no row of {part} has a label {label!r}: give rows that have")
        held = target is not None and part in lacking  # whose notes are the target's
        notes += [f"{part}: {note}" for note in table.notes if not held]
    train.notes = [*said, *train.notes, *notes]
    for table in (train, *tables.values()):
        table.date = date if date in train.frame else None
        table.in_order = True if in_order or (date and not table.date) else None
    return TableParts(train, **tables)


def read_pair(
    old: Any,
    new: Any,
    label: str | None,
    date: str | None = None,
    *,
    task: str | None = None,
    drop: Sequence[str] = (),
    groups: str | None = None,
    keep: Sequence[str] = (),
    **reading: Any,
) -> tuple[Table, Table, list[str]]:
    """Old rows and a target as `Table` objects that are read alike, and notes.

    Args:
        old, new: tables, see `Table`; a target may have no labels.
        label: ``None`` for rows that are only compared.
        date: a column that orders them, if any.
        task, drop, groups, keep: see `divide_table`; ``reading``: further options of `read_table`.
    """
    if isinstance(old, Table) or isinstance(new, Table):
        check_unread(task=task, drop=drop, groups=groups, keep=keep, **reading)
        table = old if isinstance(old, Table) else Table(old, label)
        target = new if isinstance(new, Table) else Table(new, like=table)
        return table, target, [*table.notes, *(f"target: {note}" for note in target.notes)]
    needed = [str(each) for each in (label, groups, *keep) if each is not None]
    rows, given = read_tables(old, {"target": new}, needed=needed, drop=drop, **reading)
    later = given["target"]
    names = _identifying(rows, later, [*needed, str(date)])
    said, drop = left_out(names), [*drop, *names]
    if label is None:
        if lacking := [name for name in later.lacking if name != groups]:  # as the label of a test
            said.append(f"columns that the target lacks are not compared: {', '.join(lacking)}")
            drop += lacking
        label = "(no label)"  # stands for one: numbers that no column holds
        rows.frame[label], later.frame[label] = np.sqrt(np.arange(len(rows.frame))), np.nan
    table = Table(rows, label, task=task, drop=drop, groups=groups)
    target = Table(later, like=table)
    said += [*table.notes, *(f"target: {note}" for note in target.notes)]
    return table, target, said


def read_inputs(source: Any, like: Table) -> Table:
    """Every row of ``source`` as a `Table` ``like`` another, whose label and groups are not read.

    Row i is row i of the source, whatever its label is.
    """
    unread = [name for name in (like.label.name, like.group) if name is not None]
    reading = {**like.reading, "drop": [*like.reading["drop"], *unread]}
    rows = read_table(source, like.columns, **reading)
    rows.lacking = [name for name in rows.lacking if name not in unread]
    return Table(rows, like=like)


def check_unread(**reading: Any) -> None:
    """Raise ``ValueError`` for options of reading where nothing is read."""
    for name, value in reading.items():
        if value:
            raise ValueError(
                f"{name} is {value!r}, which is of files and DataFrames: leave it out, or give"
                f" Table(..., {name}=)"
            )


def _identifying(rows: TableRows, target: TableRows | None, apart: Sequence[str]) -> list[str]:
    """Columns that name the ``rows``, or number them beside those of a ``target``."""
    later = None if target is None else target.frame
    return [*identifiers(rows.frame, apart), *counters(rows, apart, later)]


def _aside(
    rows: TableRows, train: Table, wanted: Sequence[str], date: str | None, in_order: bool
) -> dict[str, Table]:
    """The ``target``, and the parts ``wanted`` that are held back of it, read as ``train``."""
    if date is None and not in_order:
        rest, held = set_aside(Table(rows, like=train), wanted)
        return {"target": rest, **held}
    if date in rows.lacking:
        raise ValueError(f"target has no column {date!r}, which orders its rows: add it")
    known = np.ones(len(rows.frame)) if date is None else rows.frame[date].notna()
    places, moments = _ordered(rows.frame, np.flatnonzero(known), date)
    table = Table(rows.take(places), like=train)  # without rows that lack a label
    labelled = np.isin(rows.numbers[places], table.rows.numpy())
    units = np.unique(moments[labelled], return_inverse=True)[1]
    rest, held = set_aside(table, wanted, units, in_order=True)
    return {"target": rest, **held}


def _kept(frame: pd.DataFrame, label: Label, date: str | None) -> tuple[Places, list[str]]:
    """Places of the rows that are used, and notes about others."""
    wanted, notes = frame[label.name], []
    kept = label.known(wanted)
    if not kept.all():
        notes.append(without(label.name, int((~kept).sum())))
    if date is not None:
        undated = frame[date].isna().to_numpy() & kept
        if undated.any():
            notes.append(without(date, int(undated.sum())))
        kept = kept & ~undated
    if label.task == "classes":
        codes = label.values(wanted).numpy()
        counts = np.bincount(codes[kept], minlength=len(label.classes))
        for each in np.flatnonzero([is_missing(name) for name in label.classes]):
            notes.append(
                f"{label.classes[each]!r} is a class, of {counts[each]:,} rows: where it stands for"
                " a missing label, empty these cells"
            )
        if rare := [label.classes[each] for each in np.flatnonzero(counts < FEW)]:
            notes.append(f"classes of fewer than {FEW} rows, left out: {', '.join(rare)}")
            kept = kept & (counts >= FEW)[codes]
    return np.flatnonzero(kept), notes


def _dated(frame: pd.DataFrame, parts: dict[str, Places], unused: Sequence[Any]) -> list[str]:
    """A note about random ``parts`` of a table with dates."""
    days = [str(name) for name in frame if frame[name].dtype.kind == "M" and name not in unused]
    if len(parts) == 1 or not days:
        return []
    held = " and ".join(part for part in parts if part != "train")
    return [f"{held} rows are random: with {days[0]!r} as date they are those of the last days"]


def _ordered(frame: pd.DataFrame, kept: Places, date: str | None) -> tuple[Places, Any]:
    """Places in order of time, and the day of each."""
    if date is None:
        return kept, np.arange(len(kept))
    moments = frame[date]
    if moments.dtype.kind not in "fM":
        raise ValueError(f"date is {date!r}, a column of words: give one of dates or numbers")
    order = np.argsort(moments.to_numpy(), kind="stable")
    days = moments.dt.floor("D") if moments.dtype.kind == "M" else moments
    return kept[order], days.to_numpy()[order]
