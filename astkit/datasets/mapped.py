"""Images on disk: memory-mapped .npy files, read batch by batch."""

from __future__ import annotations

import json
import operator
import secrets
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor
from torch.utils.data import Dataset

from astkit.datasets.images import Images

IMAGES, LABELS, CLASSES = "images.npy", "labels.npy", "classes.json"
AGAIN = "write the folder again with write_mapped"


@dataclass(frozen=True, eq=False)
class MappedImages(Images):
    """``Images`` stored in the files of ``folder``; pixels are read when a batch needs them.

    ``images`` is read-only. A worker process reopens the files instead of receiving a copy.
    ``subset`` copies its rows into memory.
    """

    folder: Path

    def __reduce__(self) -> tuple[Callable[..., MappedImages], tuple[Path]]:
        return open_mapped, (self.folder,)


def open_mapped(folder: str | Path) -> MappedImages:
    """The images in ``folder``, as written by ``write_mapped``.

    ``images.npy``: uint8 ``[N, channels, height, width]``; ``labels.npy``: int64 ``[N]``;
    ``classes.json``: a list of names. Raises ``FileNotFoundError`` for missing files and
    ``ValueError`` for damaged or other ones.
    """
    folder = Path(folder).expanduser().absolute()
    pixels, labels = _map(folder / IMAGES), _map(folder / LABELS)
    try:
        names = json.loads((folder / CLASSES).read_text())
        return MappedImages(pixels, labels.clone(), tuple(names), folder.name, folder)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder} is unusable: {error} Or {AGAIN}.") from error


def write_mapped(
    folder: str | Path, data: Images | Dataset[Any], classes: Sequence[str] | None = None
) -> MappedImages:
    """Write the rows of ``data`` to the new ``folder`` and open it.

    ``data``: a map-style dataset of (image, label): uint8 ``[channels, height, width]`` and an
    integer; rows are read one at a time. ``classes``: their names, by default those of ``Images``
    or the numbers of the labels. The folder is created atomically, and not created after an error.
    Raises ``ValueError`` for an existing folder and the errors of `open_mapped`; rows that differ
    in shape or type raise those of numpy.
    """
    folder = Path(folder).expanduser().absolute()
    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another folder or remove it.")
    rows: Any = data
    if not len(rows):
        raise ValueError("data is empty; pass a dataset with at least one row.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        first = torch.as_tensor(rows[0][0]).numpy()
        pixels = open_memmap(temporary / IMAGES, "w+", first.dtype, (len(rows), *first.shape))
        labels = np.empty(len(rows), np.int64)
        for row in range(len(rows)):
            image, label = rows[row]
            np.copyto(pixels[row], torch.as_tensor(image).numpy(), casting="equiv")
            labels[row] = operator.index(label)
        pixels.flush()
        np.save(temporary / LABELS, labels)
        if classes is None:
            numbers = map(str, range(labels.max() + 1))
            classes = data.classes if isinstance(data, Images) else [*numbers]
        (temporary / CLASSES).write_text(json.dumps(list(classes)))
        open_mapped(temporary)  # rejects invalid rows before the folder is created
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return open_mapped(folder)


def _map(path: Path) -> Tensor:
    try:
        with warnings.catch_warnings():
            # a writable mapping larger than memory would fail, hence torch's warning
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(np.load(path, mmap_mode="r"))
    except (EOFError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a complete .npy file ({error}); {AGAIN}.") from error
