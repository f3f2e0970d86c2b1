"""A pool of data in a file or folder, a target of the same kind, and what writes chosen rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit.datasets.image_files import find_images, read_images
from astkit.datasets.texts import read_text

if TYPE_CHECKING:
    import pandas as pd

SIDE = 32  # pixels to which images are resized
MANY = 100  # largest number of classes, or of words in a column, of a table
Lines = Callable[[Tensor], str]
"""The text of the chosen rows, int64 ``[n]``."""


def read_pool(pool: Path, target: Path, label: str | None) -> tuple[Any, Any, Lines, list[str]]:
    """Rows of the pool and of the target, what writes rows of the pool, and columns of inputs.

    Raises ``ValueError`` for kinds that differ or are not known.
    """
    kinds = {"folder" if path.is_dir() else path.suffix.lower() for path in (pool, target)}
    kind = kinds.pop()
    if kinds or kind not in (".csv", ".jsonl", ".txt", "folder"):
        raise ValueError(
            f"{pool} and {target} are not both .csv, .jsonl or .txt files, or folders of images:"
            " convert one of them"
        )
    if kind == ".csv":
        return tables(pool, target, label)
    if label is not None:
        raise ValueError(f"--label is {label!r}, but only a .csv has columns: leave it out")
    content: Any = {"folder": read_folder, ".jsonl": objects, ".txt": texts}[kind]
    rows, lines = content(pool)
    wanted, _ = content(target)
    check_rows(pool, len(rows))
    check_rows(target, len(wanted))
    written = np.array(lines, object)
    return rows, wanted, lambda chosen: "".join(f"{line}\n" for line in written[chosen.numpy()]), []


def tables(pool: Path, target: Path, label: str | None) -> tuple[Any, Any, Lines, list[str]]:
    """Tables with the columns of both; words become numbers, in both the same."""
    import pandas as pd

    # as one row of many, the header decides how long the others may be
    plain, _ = (_cells(path, header=None, keep_default_na=False) for path in (pool, target))
    frames = [_cells(path) for path in (pool, target)]
    for path, frame in zip((pool, target), frames, strict=True):
        check_rows(path, len(frame))
    if set(frames[0]) != set(frames[1]):
        differ = ", ".join(sorted(map(str, set(frames[0]) ^ set(frames[1]))))
        raise ValueError(f"{pool} and {target} differ in the columns {differ}: give both the same")
    both = pd.concat(frames, ignore_index=True)
    if label is not None and label not in both:
        raise ValueError(f"--label is {label!r}: choose one of {', '.join(map(str, both))}")
    parts = [] if label is None else [_label(both.pop(label), label)]
    if both.columns.empty:
        raise ValueError(f"{pool} has no columns but the one of --label: give it others")
    parts.insert(0, torch.tensor(both.apply(_numbers).to_numpy("float32")))
    count = len(frames[0])
    train, wanted = (
        TensorDataset(*(part[rows] for part in parts))
        for rows in (slice(count), slice(count, None))
    )

    def lines(rows: Tensor) -> str:
        written: str = plain.iloc[[0, *(rows + 1).tolist()]].to_csv(index=False, header=False)
        return written

    return train, wanted, lines, list(map(str, both))


def _cells(path: Path, **options: Any) -> pd.DataFrame:
    """The cells of a table as they are written, strings."""
    import pandas as pd

    try:
        return pd.read_csv(path, dtype=str, **options)
    except ValueError as error:  # also pandas' own
        raise ValueError(
            f"{path} is no table in UTF-8 whose rows are as long as its header"
            f" ({str(error).strip()}): write it anew"
        ) from None


def _numbers(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Numbers that are written in ``cells``; if any is another word, all words are numbered."""
    import pandas as pd

    numbers = pd.to_numeric(cells, errors="coerce")
    if not numbers.isna().equals(cells.isna()):
        numbers = pd.Series(pd.factorize(cells, sort=True)[0], cells.index)
    return numbers


def check_rows(path: Path, rows: int) -> None:
    """Raise ``ValueError`` for a file without rows."""
    if not rows:
        raise ValueError(f"{path} has no rows: give another file")


def _label(values: pd.Series[Any], name: str) -> Tensor:
    import pandas as pd

    if values.isna().any():
        raise ValueError(f"column {name!r} has missing values: fill them in, or drop the rows")
    values = _numbers(values)
    if pd.api.types.is_float_dtype(values):
        return torch.tensor(values.to_numpy("float32"))[:, None]
    codes, names = pd.factorize(values, sort=True)
    check_classes(name, len(names))
    return torch.tensor(codes).long()


def check_classes(column: str, classes: int) -> None:
    """Raise ``ValueError`` for more than `MANY` classes."""
    if classes > MANY:
        raise ValueError(
            f"column {column!r} has {classes} classes, more than {MANY}: write the numbers with a"
            " decimal point for a regression, or give another column"
        )


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
