"""Images on disk: memory-mapped .npy files, read batch by batch."""

from __future__ import annotations

import json
import secrets
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from astkit.datasets.images import Images, regular

IMAGES, LABELS, CLASSES = "images.npy", "labels.npy", "classes.json"
AGAIN = "write the folder again with write_mapped"
MOST = 100_000  # classes without names


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
    ``classes.json``: a list of names. Raises ``ValueError`` for missing or invalid files.
    """
    folder = Path(folder).expanduser().absolute()
    pixels, labels = _opened(folder / IMAGES), _opened(folder / LABELS)
    try:
        labels = labels[: len(pixels) + 1].clone()
        return MappedImages(pixels, labels, _class_names(folder), folder.name, folder)
    except ValueError as error:
        raise ValueError(f"{folder} is unusable: {error} Or {AGAIN}.") from error


def write_mapped(
    folder: str | Path, data: Images | Dataset[Any], classes: Sequence[str] | None = None
) -> MappedImages:
    """Write the rows of ``data`` to the new ``folder`` and open it.

    ``data``: a map-style dataset of (image, label): uint8 ``[channels, height, width]`` and an
    integer; rows are read one at a time. ``classes``: their names, by default those of ``Images``
    or the numbers of the labels, which must then be less than `MOST`. The folder is created
    atomically, and not created after an error. Raises ``ValueError`` for rows of other types or
    different shapes, for labels without a name, and for an existing folder.
    """
    folder = Path(folder).expanduser().absolute()
    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another folder or remove it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        labels = _write_rows(temporary, data)
        if classes is None and isinstance(data, Images):
            classes = data.classes
        if classes is None:
            if labels.max() >= MOST:  # one large label would name millions of classes
                raise ValueError(f"The largest label is {labels.max()}; renumber the labels.")
            classes = tuple(map(str, range(labels.max() + 1)))
        (temporary / CLASSES).write_text(json.dumps(list(classes)))
        open_mapped(temporary)  # rejects invalid labels before the folder is created
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return open_mapped(folder)


def _write_rows(folder: Path, data: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    if not len(data):
        raise ValueError("data is empty; pass a dataset with at least one row.")
    shape = _row(data, 0)[0].shape
    pixels = np.lib.format.open_memmap(folder / IMAGES, "w+", np.uint8, (len(data), *shape))
    labels = np.empty(len(data), np.int64)
    for row in range(len(data)):
        image, label = _row(data, row)
        if image.dtype != torch.uint8 or image.shape != shape or label.is_floating_point():
            raise ValueError(
                f"Row {row} of data has an image of type {image.dtype} and shape "
                f"{list(image.shape)} and a label of type {label.dtype}; pass uint8 images of one "
                f"shape (here {list(shape)}) and integer labels."
            )
        pixels[row], labels[row] = image.numpy(), int(label)
    pixels.flush()
    np.save(folder / LABELS, labels)
    return labels


def _row(data: Any, row: int) -> tuple[Tensor, Tensor]:
    """The image of a row, of any type and shape, and its label, one number of any type."""
    item = data[row]
    try:
        image, label = (torch.as_tensor(part) for part in item)
        return image, label.view(())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"Row {row} of data is no (image, label) of a uint8 tensor and an integer ({error});"
            " convert it."
        ) from None


def _opened(path: Path) -> Tensor:
    regular(path, AGAIN)
    try:
        with warnings.catch_warnings():
            # a writable mapping larger than memory would fail, hence torch's warning;
            # numpy warns of an invalid shape before it raises
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            warnings.filterwarnings("ignore", "overflow encountered")
            array = torch.from_numpy(np.load(path, mmap_mode="r", allow_pickle=False))
        if not array.ndim:
            raise ValueError("it contains a single number")
        return array
    except Exception as error:  # numpy's header parser may raise any exception
        raise ValueError(f"{path} is not a complete .npy file ({error}); {AGAIN}.") from error


def _class_names(folder: Path) -> tuple[str, ...]:
    path = regular(folder / CLASSES, AGAIN)
    try:
        names = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); {AGAIN}.") from error
    if not isinstance(names, list):
        raise ValueError(f"{path} does not contain a list of names.")
    return tuple(map(str, names))
