"""Parquet files of encoded images, in Hugging Face's layout: img {bytes, path} and label."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from astkit.datasets.images import decode, regular

AGAIN = "fetch the file again"
MOST_BYTES = 2**30  # per row group: small files may expand to any size


def image_rows(paths: Sequence[Path], most: int) -> Iterator[tuple[Tensor, object, str]]:
    """The rows of ``paths`` in order, at most ``most``; decoded one by one.

    A row is the image (uint8 ``[3, height, width]``), the label as stored, and the place for error
    messages. Raises ``ValueError`` for files that are missing, damaged, of other columns or without
    rows, for more rows, row groups of more than 1 GiB, and values that are not images.
    """
    number = 0
    for path in paths:
        for image, label in _values(path):
            where = f"Row {number} (in {path})"
            if number == most:
                raise ValueError(f"{where} is one more than the {most} rows of the data; {AGAIN}.")
            content = image.get("bytes") if isinstance(image, dict) else image
            picture = decode(content if isinstance(content, bytes) else b"", where, AGAIN)
            yield picture, label, where
            number += 1
    if not number:
        raise ValueError(f"{', '.join(map(str, paths)) or 'the folder'} has no rows; {AGAIN}.")


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
    """Image and label of each row, as stored; pyarrow's errors become a ``ValueError``."""
    import pyarrow
    import pyarrow.parquet

    regular(path, AGAIN)
    try:
        # pre_buffer would keep whole row groups in memory
        with pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            names = file.schema_arrow.names
            columns = ["img" if "img" in names else "image", "label"]
            if not set(columns) <= set(names):
                raise ValueError(
                    f"{path} has the columns {', '.join(names)} instead of img (or image) and "
                    f"label; {AGAIN}."
                )
            for group in range(file.metadata.num_row_groups):
                if file.metadata.row_group(group).total_byte_size > MOST_BYTES:
                    raise ValueError(
                        f"{path} has a row group of more than {MOST_BYTES:,} bytes; write it again"
                        " with a smaller row_group_size."
                    )
            # row by row: a dictionary may repeat its largest value in every row
            for row in file.iter_batches(1, columns=columns, use_threads=False):
                image, label = (row.column(name)[0].as_py() for name in columns)
                yield image, label
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a complete parquet file ({str(error).splitlines()[0]}); {AGAIN}."
        ) from error
