"""Parquet files of encoded images, in the layout of Hugging Face: img {bytes, path} and label."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from astkit.datasets.decode import decode, regular, resized

if TYPE_CHECKING:
    from pyarrow import Table
    from pyarrow.parquet import ParquetFile

AGAIN = "fetch the file again"
READ_ROWS = 256  # rows that pyarrow decompresses at a time
MOST_BYTES = 2**30  # that a row group may expand to: a small file may hold any number of zeros


class Group(NamedTuple):
    """Row group ``number`` of a file, whose first row is row ``first`` of all.

    ``start``: the same of the file's first row; ``size``: bytes by the file's metadata.
    """

    path: Path
    number: int
    start: int
    first: int
    rows: int
    size: int


class ParquetImages(Dataset[tuple[Tensor, int]]):
    """Pictures (uint8 ``[3, height, width]``) and labels, numbered in the order of ``paths``.

    Row groups are read when one of their rows is asked for; the last ones stay in memory, encoded,
    as long as they hold at most ``cached`` rows. ``size``: resize to ``size`` x ``size`` pixels.
    Raises ``ValueError`` for missing or damaged files, row groups of more than ``MOST_BYTES``, what
    is no image, images of different shapes, and labels that are no numbers.
    """

    channels = 3

    def __init__(self, paths: Sequence[Path], size: int | None = None, cached: int = 0) -> None:
        self.size, self.cached = size, cached
        self.groups: list[Group] = []
        named = [self._add(path) for path in paths]
        if not len(self):
            raise ValueError(
                "paths leads to no parquet file with rows; pass the files, or the folder that holds"
                " them and the part of their names before the hyphen."
            )
        if len(set(named)) > 1:
            raise ValueError(
                f"The files from {paths[0]} on differ in their classes; fetch one version of all."
            )
        self.classes = named[0]
        self._read: OrderedDict[int, Table] = OrderedDict()

    def __len__(self) -> int:
        return self.groups[-1].first + self.groups[-1].rows if self.groups else 0

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        at = bisect_right(self.groups, row, key=lambda group: group.first) - 1
        images, labels = self._table(at).columns
        image, label = (part[row - self.groups[at].first].as_py() for part in (images, labels))
        data = image.get("bytes") if isinstance(image, dict) else image
        picture = decode(data if isinstance(data, bytes) else b"", self.where(row), AGAIN)
        if not isinstance(label, int):
            raise ValueError(
                f"{self.where(row)} has the label {label!r}; it must be a class number: {AGAIN}."
            )
        return picture if self.size is None else resized(picture, self.size), label

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Tensor, int]]:
        items = [self[row] for row in rows]
        for row, (picture, _) in zip(rows, items, strict=True):
            if picture.shape != items[0][0].shape:
                raise ValueError(
                    f"{self.where(row)} is {list(picture.shape)} where {self.where(rows[0])} is "
                    f"{list(items[0][0].shape)}; pass size= (pixels a side) to resize all images."
                )
        return items

    def where(self, row: int) -> str:
        """``row`` as messages name it."""
        at = bisect_right(self.groups, row, key=lambda group: group.first) - 1
        return f"Row {row - self.groups[at].start} of {self.groups[at].path}"

    def _add(self, path: Path) -> tuple[str, ...] | None:
        """Take in the row groups of ``path``, by its metadata alone; the classes it names."""
        start = first = len(self)
        with _opened(path) as file:
            _columns(path, file)
            for number in range(file.metadata.num_row_groups):
                stored = file.metadata.row_group(number)
                group = Group(path, number, start, first, stored.num_rows, stored.total_byte_size)
                _check_size(group, group.size)
                self.groups += [group] if group.rows else []
                first += group.rows
            return _class_names(file.schema_arrow.metadata or {})

    def _table(self, at: int) -> Table:
        if at not in self._read:
            room = self.cached - self.groups[at].rows
            while self._read and sum(map(len, self._read.values())) > room:
                self._read.popitem(last=False)
            self._read[at] = _read_group(self.groups[at])
        self._read.move_to_end(at)
        return self._read[at]


def shard_files(folder: Path, part: str) -> list[Path]:
    """The files ``part-*.parquet`` of ``folder``, sorted by name.

    Raises ``ValueError`` when their names say how many there are and some are missing.
    """
    paths = sorted(folder.glob(f"{part}-*.parquet"))
    for path in paths:
        numbered = re.fullmatch(rf"{part}-\d+-of-(\d+)", path.stem)
        if numbered and len(paths) != int(numbered[1]):
            raise ValueError(
                f"{folder} has {len(paths)} files {part}-*.parquet, but {path.name} says there are "
                f"{int(numbered[1])}; fetch all shards of one version."
            )
    return paths


def _read_group(group: Group) -> Table:
    import pyarrow

    pool = pyarrow.default_memory_pool()
    pool.release_unused()  # it would keep several times what it holds
    parts, size = [], 0
    # a dictionary may repeat its largest value in every row, which no metadata tells
    step = max(1, min(READ_ROWS, MOST_BYTES // max(1, group.size)))
    with _opened(group.path) as file:
        columns = _columns(group.path, file)
        for part in file.iter_batches(
            step, row_groups=[group.number], columns=columns, use_threads=False
        ):
            parts.append(part)
            size += part.nbytes
            _check_size(group, size)
    pool.release_unused()
    return pyarrow.Table.from_batches(parts).select(columns)


def _check_size(group: Group, size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(
            f"{group.path} has a row group that expands to {size:,} bytes or more, of which "
            f"{MOST_BYTES:,} are accepted; write it again with a smaller row_group_size."
        )


@contextmanager
def _opened(path: Path) -> Iterator[ParquetFile]:
    """The file, memory-mapped; damage that shows while it is read is a ``ValueError`` as well."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Reading {path} needs pyarrow; install it: pip install 'astkit[data]'."
        ) from error

    regular(path, AGAIN)
    try:
        # pre_buffer would hold whole row groups in memory
        with pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is no whole parquet file ({str(error).splitlines()[0]}); {AGAIN}."
        ) from error


def _columns(path: Path, file: ParquetFile) -> list[str]:
    names = file.schema_arrow.names
    for column in ("img", "image"):
        if column in names and "label" in names:
            return [column, "label"]
    raise ValueError(
        f"{path} has the columns {', '.join(names)} instead of img (or image) and label; {AGAIN}."
    )


def _class_names(metadata: dict[bytes, bytes]) -> tuple[str, ...] | None:
    """The names that Hugging Face datasets keep in the schema: info.features.label.names."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return tuple(features["label"]["names"])
    except (KeyError, TypeError, ValueError):
        return None
