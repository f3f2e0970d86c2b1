"""A pool of data in a file or folder, a target of the same kind, and what writes chosen rows."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit.datasets.image_files import find_images, read_images
from astkit.datasets.table import Table
from astkit.datasets.table_encoder import DAY
from astkit.datasets.table_label import Label, without
from astkit.datasets.table_reader import PACKED, TableRows, TextSource, read_parquet, read_tables
from astkit.datasets.texts import read_text

if TYPE_CHECKING:
    import pandas as pd

SIDE = 32  # pixels to which images are resized
FOLDER, TABLE = "folder", "table"
WEIGHT = "weight"
"""Column of weights that is written."""
TABLES = (".csv", ".tsv", ".parquet")


class Pool(NamedTuple):
    """What `astkit select` chooses from.

    Attributes:
        rows, target: data sets of one kind.
        lines: the content of a file of chosen rows, by their numbers in ascending order.
        names: of the columns of a table.
        notes: what was left out of a table, as sentences.
        labelled: reads the rows and the target as tables, if there is a label.
        weighted: the content of a file of all rows with a further column, their weights; of tables.
    """

    rows: Any
    target: Any
    lines: Callable[[Tensor], Iterable[bytes]]
    names: Sequence[str] = ()
    notes: Sequence[str] = ()
    weighted: Callable[[Tensor], Iterable[bytes]] | None = None
    labelled: Callable[[], tuple[Table, Table]] | None = None


def read_pool(pool: Path, target: Path, label: str | None) -> Pool:
    """Rows of the pool and of the target; raises ``ValueError`` for kinds that are not the same."""
    kinds = {_kind(path) for path in (pool, target)}
    kind = kinds.pop()
    if kinds or kind not in (TABLE, ".jsonl", ".txt", FOLDER):
        raise ValueError(
            f"{pool} and {target} are not both tables (.csv, .parquet), .jsonl or .txt files, or"
            " folders of images: convert one of them"
        )
    if kind == TABLE:
        return tables(pool, target, label)
    if label is not None:
        raise ValueError(f"--label is {label!r}, but only a table has columns: leave it out")
    content: Any = {FOLDER: read_folder, ".jsonl": objects, ".txt": texts}[kind]
    rows, lines = content(pool)
    wanted, _ = content(target)
    check_rows(pool, len(rows))
    check_rows(target, len(wanted))
    written = np.array(lines, object)
    return Pool(
        rows, wanted, lambda chosen: (f"{line}\n".encode() for line in written[chosen.numpy()])
    )


def _kind(path: Path) -> str:
    if path.is_dir():
        return FOLDER
    suffixes = path.with_suffix("").suffix if path.suffix.lower() in PACKED else path.suffix
    return TABLE if suffixes.lower() in TABLES else suffixes.lower()


def tables(pool: Path, target: Path, label: str | None) -> Pool:
    """Tables that are read alike, see `read_table`: numbers, dates as days, words by number.

    Words that the pool does not have are missing values. Rows without the label are left out.
    """
    needed = [] if label is None else [label]
    rows, others = read_tables(pool, {"target": target}, needed=needed, needed_of_others=needed)
    wanted = others["target"]
    notes = [*rows.notes, *(f"target: {note}" for note in wanted.notes)]
    both, parts = [rows, wanted], []
    if label is not None:
        kind = Label.of(rows.frame[label], label)
        for place, each in enumerate(both):
            known = kind.known(each.frame[label])
            if not known.all():
                notes.append(without(label, int((~known).sum())))
            both[place] = each.take(np.flatnonzero(known))
        parts = [kind.values(each.frame[label]) for each in both]
        if kind.task == "regression":
            parts = [part[:, None] for part in parts]
    frames = [each.frame.drop(columns=needed) for each in both]
    if frames[0].columns.empty:
        raise ValueError(f"{pool} has no columns but the one of --label: give it others")
    inputs = [_matrix(frame, frames[0]) for frame in frames]
    columns = [inputs, parts] if parts else [inputs]
    train, held = (TensorDataset(*each) for each in zip(*columns, strict=True))
    numbers = both[0].numbers
    lines = partial(_written, pool, rows.encoding, numbers)
    weighted = partial(_weighted, pool, rows.encoding, numbers)
    labelled = None if label is None else partial(_labelled, both[0], both[1], label, kind.task)
    return Pool(train, held, lines, list(map(str, frames[0])), notes, weighted, labelled)


def _matrix(frame: pd.DataFrame, pool: pd.DataFrame) -> Tensor:
    """Float32 ``[rows, columns]``, with NaN for missing cells and for words that ``pool`` lacks."""
    columns = []
    for name in pool:
        column = frame[name]
        if column.dtype.kind == "M":
            moments = column.to_numpy("datetime64[ns]")
            values = np.where(np.isnat(moments), np.nan, moments.astype("int64") / DAY)
        elif column.dtype.kind == "f":
            values = column.to_numpy("float64")
        else:
            codes = column.cat.set_categories(pool[name].cat.categories).cat.codes
            values = np.where(codes < 0, np.nan, codes)
        columns.append(torch.from_numpy(values.astype(np.float32)))
    return torch.stack(columns, 1)


def _written(
    path: Path, encoding: str, numbers: np.ndarray[Any, Any], chosen: Tensor
) -> Iterable[bytes]:
    """Rows as they are in the file, also their quotes and line ends, read once more."""
    rows = numbers[chosen.numpy()]
    if path.suffix.lower() == ".parquet":
        return [read_parquet(path).iloc[rows].to_parquet()]
    return codecs.iterencode(TextSource(path, encoding).texts(rows.tolist()), encoding)


def _labelled(pool: TableRows, target: TableRows, label: str, task: str) -> tuple[Table, Table]:
    """Both as `Table` objects."""
    own = Table(pool, label, task=task)
    return own, Table(target, like=own)


def _weighted(
    path: Path, encoding: str, numbers: np.ndarray[Any, Any], weights: Tensor
) -> Iterable[bytes]:
    """All rows as they are in the file, each with its weight in a last column `WEIGHT`."""
    if path.suffix.lower() == ".parquet":
        table = read_parquet(path)
        _check_unweighted(path, list(map(str, table)))
        return [table.iloc[numbers].assign(**{WEIGHT: weights.numpy()}).to_parquet()]
    source = TextSource(path, encoding)
    _check_unweighted(path, source.names)
    cells = [WEIGHT, *(f"{each:.6g}" for each in weights.tolist())]
    lines = zip(source.texts(numbers.tolist()), cells, strict=True)
    longer = (_longer(line, source.separator, cell) for line, cell in lines)
    return codecs.iterencode(longer, encoding)


def _check_unweighted(path: Path, names: Sequence[str]) -> None:
    if WEIGHT in names:
        raise ValueError(f"{path} has a column {WEIGHT!r} already: rename it")


def _longer(line: str, separator: str, cell: str) -> str:
    """A ``line``, or several of one row, with a further ``cell`` at its end."""
    text = line.rstrip("\r\n")
    return f"{text}{separator}{cell}{line[len(text) :]}"


def check_rows(path: Path, rows: int) -> None:
    """Raise ``ValueError`` for a file without rows."""
    if not rows:
        raise ValueError(f"{path} has no rows: give another file")


def read_folder(folder: Path) -> tuple[TensorDataset, list[str]]:
    """All images in and below ``folder``, uint8 ``[n, 3, SIDE, SIDE]``, and their paths."""
    paths = find_images(folder)
    if not paths:
        raise ValueError(f"{folder} has no images: give another folder")
    return TensorDataset(torch.stack(read_images(paths, SIDE))), [str(path) for path in paths]


def texts(path: Path) -> tuple[list[str], list[str]]:
    """The lines of a file that are not empty, twice: what they say, and what is written of them."""
    # splitlines would also cut within a line, as at U+2028
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    return lines, lines


def objects(path: Path) -> tuple[list[str], list[str]]:
    """The ``text`` of each line, a JSON object, and the lines."""
    _, lines = texts(path)
    said = []
    for line in lines:
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise ValueError(f'{path} has the line {line[:60]!r}: give objects {{"text": "..."}}')
        said.append(text)
    return said, lines
