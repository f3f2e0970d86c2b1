"""Parquet files of encoded images, in Hugging Face's layout: img {bytes, path} and label."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from astkit.datasets.decode import decode, regular, resized
from astkit.datasets.loaders import Loader
from astkit.rng import permutation

if TYPE_CHECKING:
    from pyarrow import Table
    from pyarrow.parquet import ParquetFile

AGAIN = "fetch the file again"
READ_ROWS = 256  # rows that pyarrow decompresses at a time
MOST_BYTES = 2**30  # per row group in memory: small files may expand to any size


class ParquetLoader(Loader):
    """A ``Loader`` of parquet files with the columns img (or image) {bytes, path} and label.

    An epoch reads the row groups of all files in random order and shuffles windows of
    ``buffer_rows`` rows, whose row groups are kept in memory, encoded; both orders depend only on
    (seed, epoch). Rows further apart in that order are never in one batch: increase
    ``buffer_rows``, or store the rows in random order. ``index`` numbers the rows in the order of
    ``paths``.

    Args:
        paths: a folder with files ``<part>-*.parquet``, or the files themselves.
        batch_size: rows per batch.
        part: prefix of the files in a folder.
        buffer_rows: rows per shuffling window.
        size: resize to ``size`` x ``size`` pixels; required if the images differ in shape.
        options: arguments of ``Loader``; ``num_workers`` decode images in parallel.

    Raises:
        ValueError: for missing or damaged files, row groups of more than 1 GiB and invalid
            arguments; during iteration, for a value that is not an image, images of different
            shapes, and labels out of range.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        batch_size: int = 128,
        *,
        part: str = "train",
        buffer_rows: int = 8192,
        size: int | None = None,
        **options: Any,
    ) -> None:
        for name, value in (("buffer_rows", buffer_rows), ("size", 1 if size is None else size)):
            if value < 1:
                raise ValueError(f"{name} is {value}; pass 1 or more.")
        if not isinstance(paths, str | Path):
            files = [Path(path) for path in paths]
        else:
            files = [Path(paths)] if Path(paths).is_file() else shard_files(Path(paths), part)
            if not files:
                raise ValueError(
                    f"{paths} contains no file {part}-*.parquet; pass its folder or files."
                )
        self.buffer_rows = buffer_rows
        self._parquet = ParquetImages(files, size)
        # a window may contain only parts of its first and last group
        largest = max(group.rows for group in self._parquet.groups)
        self._parquet.cached = buffer_rows + 2 * largest
        super().__init__(self._parquet, batch_size, **options)

    @property
    def keyed(self) -> bool:
        """Always true: forming a batch does not use the default random generators."""
        return True

    def order(self, epoch: int) -> Tensor:
        """The rows of ``epoch`` in order: int64 ``[num_samples]``, on the CPU."""
        if not self.shuffle:
            return super().order(epoch)
        groups = self._parquet.groups
        shuffled = [groups[at] for at in permutation(len(groups), self.seed, "row groups", epoch)]
        rows = torch.cat([torch.arange(part.first, part.first + part.rows) for part in shuffled])
        return torch.cat(
            [
                window[permutation(len(window), self.seed, "window", epoch, number)]
                for number, window in enumerate(rows.split(self.buffer_rows))
            ]
        )


class Group(NamedTuple):
    """Row group ``number`` of a file; its first row is row ``first`` over all files.

    ``size``: bytes according to the file's metadata.
    """

    path: Path
    number: int
    first: int
    rows: int
    size: int


class ParquetImages(Dataset[tuple[Tensor, int]]):
    """Images (uint8 ``[3, height, width]``) and labels, numbered in the order of ``paths``.

    A row group is read when one of its rows is requested; the most recent ones stay in memory,
    encoded, up to ``cached`` rows. ``size``: resize to ``size`` x ``size`` pixels.
    """

    channels = 3

    def __init__(self, paths: Sequence[Path], size: int | None = None, cached: int = 0) -> None:
        self.size, self.cached = size, cached
        self.groups: list[Group] = []
        for path in paths:
            self._add(path)
        if not len(self):
            raise ValueError(
                f"paths contains no parquet file with rows ({', '.join(map(str, paths[:3]))}); pass"
                " the files, or the folder that contains them and the part of their names before"
                " the hyphen."
            )
        self._read: OrderedDict[int, Table] = OrderedDict()

    def __len__(self) -> int:
        return self.groups[-1].first + self.groups[-1].rows if self.groups else 0

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        at = self._group_of(row)
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
                    f"{list(items[0][0].shape)}; pass size= (pixels per side) to resize all images."
                )
        return items

    def where(self, row: int) -> str:
        """``row`` and its file, for error messages."""
        return f"Row {row} (in {self.groups[self._group_of(row)].path})"

    def _group_of(self, row: int) -> int:
        return bisect_right(self.groups, row, key=lambda group: group.first) - 1

    def _add(self, path: Path) -> None:
        """Append the row groups of ``path``, using only its metadata."""
        first = len(self)
        with _opened(path) as file:
            _columns(path, file)
            for number in range(file.metadata.num_row_groups):
                stored = file.metadata.row_group(number)
                group = Group(path, number, first, stored.num_rows, stored.total_byte_size)
                _check_size(group, group.size)
                self.groups += [group] if group.rows else []
                first += group.rows

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

    Raises ``ValueError`` if files are missing according to the number in their names.
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
    pool.release_unused()  # otherwise it keeps several times its content
    parts, size = [], 0
    # a dictionary may repeat its largest value in every row, which the metadata do not show
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
    """The memory-mapped file; pyarrow's errors become a ``ValueError`` that names it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Reading {path} needs pyarrow; install it: pip install 'astkit[data]'."
        ) from error

    regular(path, AGAIN)
    try:
        # pre_buffer would keep whole row groups in memory
        with pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a complete parquet file ({str(error).splitlines()[0]}); {AGAIN}."
        ) from error


def _columns(path: Path, file: ParquetFile) -> list[str]:
    names = file.schema_arrow.names
    for column in ("img", "image"):
        if column in names and "label" in names:
            return [column, "label"]
    raise ValueError(
        f"{path} has the columns {', '.join(names)} instead of img (or image) and label; {AGAIN}."
    )
