"""Parquet files of encoded images, in Hugging Face's layout: img {bytes, path} and label."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from astkit.datasets.images import decode, regular

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

AGAIN = "fetch the file again"
READ_ROWS = 256  # rows that pyarrow decompresses at a time
MOST_BYTES = 2**30  # per row group: small files may expand to any size


def image_rows(paths: Sequence[Path], most: int) -> Iterator[tuple[Tensor, object, str]]:
    """The rows of ``paths`` in order, at most ``most``; decoded one by one.

    A row is the image (uint8 ``[3, height, width]``), the label as stored, and the place for error
    messages. Raises ``ValueError`` for files that are missing, damaged, of other columns or without
    rows, for more rows, row groups of more than 1 GiB, and values that are not images.
    """
    total = 0
    for path in paths:
        with _opened(path) as (file, _):
            total += file.metadata.num_rows
    if not 0 < total <= most:
        raise ValueError(
            f"{', '.join(map(str, paths[:3])) or 'the folder'} has {total} rows, not 1 to {most};"
            f" {AGAIN}."
        )
    number = 0
    for path in paths:
        for image, label in _values(path):
            where = f"Row {number} (in {path})"
            content = image.get("bytes") if isinstance(image, dict) else image
            picture = decode(content if isinstance(content, bytes) else b"", where, AGAIN)
            yield picture, label, where
            number += 1


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


def _values(path: Path) -> Iterator[tuple[object, object]]:
    """Image and label of each row, as stored."""
    with _opened(path) as (file, columns):
        for group in range(file.metadata.num_row_groups):
            stored = file.metadata.row_group(group).total_byte_size
            # a dictionary may repeat its largest value in every row, which the metadata do not show
            step = max(1, min(READ_ROWS, MOST_BYTES // max(1, stored)))
            size = 0
            _check_size(path, stored)
            for part in file.iter_batches(
                step, row_groups=[group], columns=columns, use_threads=False
            ):
                size += part.nbytes
                _check_size(path, size)
                images, labels = (part.column(name).to_pylist() for name in columns)
                yield from zip(images, labels, strict=True)


def _check_size(path: Path, size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(
            f"{path} has a row group that expands to {size:,} bytes or more, of which "
            f"{MOST_BYTES:,} are accepted; write it again with a smaller row_group_size."
        )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ParquetFile, list[str]]]:
    """The memory-mapped file and its two columns; pyarrow's errors become a ``ValueError``."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Reading {path} needs pyarrow: install the extra 'data' of astkit"
            " (pip install -e '.[data]' in a clone)."
        ) from error

    regular(path, AGAIN)
    try:
        # pre_buffer would keep whole row groups in memory
        with pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            names = file.schema_arrow.names
            column = "img" if "img" in names else "image"
            if not {column, "label"} <= set(names):
                raise ValueError(
                    f"{path} has the columns {', '.join(names)} instead of img (or image) and "
                    f"label; {AGAIN}."
                )
            yield file, [column, "label"]
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a complete parquet file ({str(error).splitlines()[0]}); {AGAIN}."
        ) from error
