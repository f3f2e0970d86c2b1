"""Parquet files of encoded images, in the layout of Hugging Face: img {bytes, path} and label."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from astkit.datasets.decode import decode

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

AGAIN_FILE = "fetch the file again"


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


@contextmanager
def opened(path: Path) -> Iterator[ParquetFile]:
    """The parquet file at ``path``, memory-mapped; read row groups or batches of it.

    Raises ``ValueError`` for a missing or damaged file, also where the damage shows while reading,
    and ``ModuleNotFoundError`` without pyarrow.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Reading {path} needs pyarrow; install it: pip install 'astkit[data]'."
        ) from error

    try:
        # pre_buffer would hold whole row groups in memory
        with pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            yield file
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing beside its sister files; {AGAIN_FILE}.") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is no whole parquet file ({str(error).splitlines()[0]}); {AGAIN_FILE}."
        ) from error


def image_column(path: Path, names: list[str]) -> str:
    """The name of the column of images; raises ``ValueError`` where it or ``label`` is missing."""
    for column in ("img", "image"):
        if column in names and "label" in names:
            return column
    raise ValueError(
        f"{path} has the columns {', '.join(names)} instead of img (or image) and label; "
        f"{AGAIN_FILE}."
    )


def decoded(item: Any, where: str) -> Tensor:
    """One entry of the image column as uint8 ``[3, height, width]``.

    Raises ``ValueError`` naming ``where`` for anything but an image's bytes.
    """
    data = item.get("bytes") if isinstance(item, dict) else item
    return decode(data if isinstance(data, bytes) else b"", where, AGAIN_FILE)
