"""Sharded parquet files, streamed: a shuffled pass over images that need not fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astkit.datasets.loaders import Loader
from astkit.datasets.parquet import ParquetImages, shard_files
from astkit.rng import permutation


class ParquetLoader(Loader):
    """A ``Loader`` of parquet files with the columns img (or image) {bytes, path} and label.

    A pass reads the row groups of all files in random order and shuffles windows of ``buffer_rows``
    rows, whose row groups it holds encoded; both orders are functions of (seed, epoch) alone. Rows
    far apart in that stream are never in one batch: raise ``buffer_rows``, or store the rows in
    random order, where neighbours resemble each other. ``index`` numbers the rows in the order of
    ``paths``.

    Args:
        paths: a folder with files ``<part>-*.parquet``, or the files themselves.
        batch_size: rows in a batch.
        part: which files of a folder.
        buffer_rows: rows that are shuffled together.
        size: resize to ``size`` x ``size`` pixels; needed where the images differ in shape.
        options: those of a ``Loader``; ``num_workers`` decode images side by side.

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
        self.buffer_rows = buffer_rows
        self._parquet = ParquetImages(files, size)
        # the groups at both ends of a window lie in it in part only
        largest = max(group.rows for group in self._parquet.groups)
        self._parquet.cached = buffer_rows + 2 * largest
        super().__init__(self._parquet, batch_size, **options)

    @property
    def keyed(self) -> bool:
        """Whether nothing in this process draws from the default generators to make a batch."""
        return True

    def order(self, epoch: int) -> Tensor:
        """The rows of ``epoch`` as they are visited: int64 ``[num_samples]``, on the CPU."""
        if not self.shuffle:
            return super().order(epoch)
        groups = self._parquet.groups
        shuffled = [groups[at] for at in permutation(len(groups), self.seed, "row groups", epoch)]
        stream = torch.cat(
            [torch.arange(group.first, group.first + group.rows) for group in shuffled]
        )
        windows = stream.split(self.buffer_rows)
        return torch.cat(
            [
                window[permutation(len(window), self.seed, "window", epoch, number)]
                for number, window in enumerate(windows)
            ]
        )
