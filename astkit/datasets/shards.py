"""Sharded parquet files, streamed: a shuffled pass over images that need not fit into memory."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from astkit.batch import Batch
from astkit.datasets.augment import Augment
from astkit.datasets.decode import resized
from astkit.datasets.images import check_label_range
from astkit.datasets.loaders import check_start
from astkit.datasets.normalize import Normalize, Statistic
from astkit.datasets.parquet import AGAIN_FILE, decoded, image_column, opened, shard_files
from astkit.rng import permutation

READ_ROWS = 256  # rows that pyarrow decompresses at a time


class _Group(NamedTuple):
    """Row group ``number`` of a file: ``rows`` rows, the first of them row ``first`` of all."""

    path: Path
    number: int
    first: int
    rows: int


class _Entry(NamedTuple):
    """One row as it is stored: its number among all, the encoded image, the label."""

    row: int
    image: Any
    label: Any


class ParquetLoader:
    """Batches streamed from parquet files with the columns img (or image) {bytes, path} and label.

    A pass reads the row groups of all files in random order and shuffles windows of ``buffer_rows``
    rows (rounded down to whole batches), which it holds encoded; both orders are functions of
    (seed, epoch) alone. Rows far apart in that stream never meet in a batch: raise ``buffer_rows``,
    or store the rows in random order, where neighbours resemble each other.

    ``index`` numbers the rows in the order of ``paths``, and ``augment``, ``pad``, ``normalize``,
    ``drop_last`` are a ``Loader``'s, so a row looks as a ``Loader`` over the same images shows it.

    Args:
        paths: a folder with files ``<part>-*.parquet``, or the files themselves.
        batch_size: rows in a batch.
        part: which files of a folder.
        buffer_rows: rows in memory at a time; batches in stored order with ``shuffle=False``.
        size: resize to ``size`` x ``size`` pixels; needed where the images differ in shape.
        num_threads: threads that decode images side by side; 0 for none.

    Raises:
        ValueError: for missing or damaged files and impossible arguments; while iterating, for
            what is no image, images of different shapes, and labels out of range.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        batch_size: int = 128,
        *,
        part: str = "train",
        buffer_rows: int = 8192,
        augment: Sequence[str] = (),
        pad: int = 4,
        size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        normalize: tuple[Statistic, Statistic] | None = None,
        drop_last: bool = False,
        num_threads: int = 0,
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("buffer_rows", buffer_rows, batch_size),
            ("num_threads", num_threads, 0),
            ("size", 1 if size is None else size, 1),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}; pass {least} or more.")
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.drop_last, self.size, self.num_threads = drop_last, size, num_threads
        # windows of whole batches, so that a pass can be resumed at any batch
        self._window = buffer_rows // batch_size if shuffle else 1
        self._groups, self._column, self.classes = _contents(_files(paths, part))
        self._augment = Augment(augment, pad, seed)
        self._normalize = Normalize(normalize, 3)
        self._outputs: int | None = None
        self.to(device)

    def to(self, device: torch.device | str) -> ParquetLoader:
        """Deliver on ``device`` from now on. Returns itself."""
        self.device = torch.device(device)
        self._normalize = self._normalize.on(self.device)
        return self

    @property
    def keyed(self) -> bool:
        """Whether nothing in this process draws from the default generators to make a batch."""
        return True

    @property
    def num_samples(self) -> int:
        """Rows in all files, by their metadata."""
        return self._groups[-1].first + self._groups[-1].rows

    @property
    def num_classes(self) -> int | None:
        """Classes that the files name, ``None`` when they name none."""
        return None if self.classes is None else len(self.classes)

    def __len__(self) -> int:
        whole, rest = divmod(self.num_samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of pass ``epoch`` without the first ``start``, whose images are not decoded.

        Raises ``ValueError`` for an ``order``: a stream has no access to single rows.
        """
        if order is not None:
            raise ValueError(
                "order was given for a stream of parquet files, which cannot reach single rows; "
                "write them with write_mapped and pass the result in a Loader."
            )
        check_start(start)
        return self._deliver(epoch, start)

    def check_labels(self, num_outputs: int) -> None:
        """From now on raise ``ValueError`` at a batch with a label outside ``0..num_outputs-1``."""
        self._outputs = num_outputs

    def _deliver(self, epoch: int, start: int) -> Iterator[Batch]:
        number, done = divmod(start, self._window)
        entries = self._entries(epoch, number * self._window * self.batch_size)
        with ThreadPoolExecutor(self.num_threads) if self.num_threads else nullcontext() as pool:
            convert = pool.map if pool else map
            while window := list(islice(entries, self._window * self.batch_size)):
                shuffled = self._permuted(window, "window", epoch, number)
                window.clear()  # or two windows would be in memory while the next one is read
                for first in range(done * self.batch_size, len(shuffled), self.batch_size):
                    chosen = shuffled[first : first + self.batch_size]
                    if self.drop_last and len(chosen) < self.batch_size:
                        return
                    yield self._batch(chosen, list(convert(self._picture, chosen)), epoch)
                shuffled.clear()
                number, done = number + 1, 0

    def _entries(self, epoch: int, skip: int) -> Iterator[_Entry]:
        """The rows of pass ``epoch`` but the first ``skip``; whole row groups cost no reading."""
        for group in self._permuted(self._groups, "row groups", epoch):
            if skip < group.rows:
                yield from self._rows(group, skip)
            skip = max(0, skip - group.rows)

    def _rows(self, group: _Group, skip: int) -> Iterator[_Entry]:
        row = group.first
        with opened(group.path) as file:
            for part in file.iter_batches(
                READ_ROWS, row_groups=[group.number], columns=[self._column, "label"]
            ):
                kept = part.slice(min(skip, part.num_rows))
                skip, row = skip - part.num_rows + kept.num_rows, row + part.num_rows
                columns = (kept.column(name).to_pylist() for name in (self._column, "label"))
                yield from map(_Entry, range(row - kept.num_rows, row), *columns)

    def _permuted(self, items: list[Any], *key: int | str) -> list[Any]:
        if not self.shuffle:
            return list(items)
        return [items[at] for at in permutation(len(items), self.seed, *key).tolist()]

    def _picture(self, entry: _Entry) -> Tensor:
        picture = decoded(entry.image, self._where(entry.row))
        return picture if self.size is None else resized(picture, self.size)

    def _where(self, row: int) -> str:
        group = self._groups[bisect_right(self._groups, row, key=lambda group: group.first) - 1]
        file = next(other for other in self._groups if other.path == group.path)
        return f"Row {row - file.first} of {group.path}"

    def _batch(self, entries: list[_Entry], pictures: list[Tensor], epoch: int) -> Batch:
        for entry, picture in zip(entries, pictures, strict=True):
            if picture.shape != pictures[0].shape:
                raise ValueError(
                    f"{self._where(entry.row)} is {list(picture.shape)} where "
                    f"{self._where(entries[0].row)} is {list(pictures[0].shape)}; pass size= "
                    "(pixels a side) to resize all images."
                )
            if not isinstance(entry.label, int):
                raise ValueError(
                    f"{self._where(entry.row)} has the label {entry.label!r}; it must be a class "
                    f"number: {AGAIN_FILE}."
                )
        index = torch.tensor([entry.row for entry in entries])
        x, y = torch.stack(pictures), torch.tensor([entry.label for entry in entries])
        if self._outputs is not None:
            check_label_range(y, self._outputs, "a batch")
        if self.device.type == "cuda":
            x = x.pin_memory()
        index, x, y = (part.to(self.device, non_blocking=True) for part in (index, x, y))
        x = self._augment.apply(x, self._augment.draw(index, epoch))
        return Batch(index, self._normalize(x), y)


def _files(paths: str | Path | Sequence[str | Path], part: str) -> list[Path]:
    if not isinstance(paths, str | Path):
        return [Path(path) for path in paths]
    folder = Path(paths)
    return [folder] if folder.is_file() else shard_files(folder, part)


def _contents(paths: list[Path]) -> tuple[list[_Group], str, tuple[str, ...] | None]:
    """Row groups, image column and class names, from the metadata of the files alone."""
    groups: list[_Group] = []
    columns: set[str] = set()
    classes: set[tuple[str, ...] | None] = set()
    first = 0
    for path in paths:
        with opened(path) as file:
            columns.add(image_column(path, file.schema_arrow.names))
            classes.add(_class_names(file.schema_arrow.metadata or {}))
            for number in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                groups.append(_Group(path, number, first, rows))
                first += rows
    if first == 0:
        raise ValueError(
            "paths leads to no parquet file with rows; pass the files, or the folder that holds "
            "them and the part of their names before the hyphen."
        )
    if len(columns) > 1 or len(classes) > 1:
        raise ValueError(
            f"The files from {paths[0]} on differ in image column or classes; {AGAIN_FILE}s of one "
            "version."
        )
    return groups, columns.pop(), classes.pop()


def _class_names(metadata: dict[bytes, bytes]) -> tuple[str, ...] | None:
    """The names that Hugging Face datasets keep in the schema: info.features.label.names."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return tuple(features["label"]["names"])
    except (KeyError, TypeError, ValueError):
        return None
