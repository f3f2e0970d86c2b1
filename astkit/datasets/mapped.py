"""Images that stay on disk: memory-mapped .npy files, read batch by batch."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astkit.datasets.images import Images
from astkit.files import write_atomic

IMAGES, LABELS, CLASSES = "images.npy", "labels.npy", "classes.json"
AGAIN = "write the folder again with write_mapped"

Part = tuple[Tensor | NDArray[Any], Tensor | NDArray[Any] | Sequence[int]]


@dataclass(frozen=True, eq=False)
class MappedImages(Images):
    """``Images`` whose pixels lie in ``folder`` and are read when a batch asks for them.

    Used like any ``Images``, except that ``images`` must not be written to. What was read is the
    system's page cache, which gives way where memory runs short. A worker process opens the files
    anew instead of receiving a copy. ``subset`` copies its rows into memory.
    """

    folder: Path
    start: int
    stop: int | None

    def __reduce__(self) -> tuple[Callable[..., MappedImages], tuple[object, ...]]:
        return open_mapped, (self.folder, self.start, self.stop, self.name)


def open_mapped(
    folder: str | Path, start: int = 0, stop: int | None = None, name: str | None = None
) -> MappedImages:
    """Rows ``start`` to ``stop - 1`` of the images in ``folder``, as ``write_mapped`` leaves them.

    ``images.npy``: uint8 ``[N, channels, height, width]``; ``labels.npy``: integers ``[N]``;
    ``classes.json``: a list of names, the label numbers themselves where the file is missing.
    ``name``: the folder's by default. Raises ``ValueError`` for missing or unusable files.
    """
    folder = Path(folder).absolute()
    pixels = _opened(folder / IMAGES)
    labels = np.asarray(_opened(folder / LABELS))
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or not pixels.flags.c_contiguous:
        raise ValueError(
            f"{folder / IMAGES} holds {pixels.dtype} of shape {list(pixels.shape)}; it must hold "
            f"uint8 [N, channels, height, width] in C order: {AGAIN}."
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != pixels.shape[:1]:
        raise ValueError(
            f"{folder / LABELS} holds {labels.dtype} of shape {list(labels.shape)}; it must hold "
            f"one integer for each of {len(pixels)} images: {AGAIN}."
        )
    with warnings.catch_warnings():
        # a writable mapping of more than the memory would be refused, so torch's warning must be
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        images = torch.from_numpy(pixels)
    numbers = torch.from_numpy(labels.astype(np.int64))
    return MappedImages(
        images[start:stop],
        numbers[start:stop],
        _class_names(folder / CLASSES, numbers),
        folder.name if name is None else name,
        folder,
        start,
        stop,
    )


def write_mapped(
    folder: str | Path, parts: Iterable[Part], classes: Sequence[str] | None = None
) -> MappedImages:
    """Write ``parts`` to the new ``folder`` one after the other and open it.

    Each part is ``(images, labels)``: uint8 ``[B, channels, height, width]`` and integers ``[B]``,
    arrays or tensors; no more than one is held in memory. The folder appears when all is written,
    and not at all after an error. Raises ``ValueError`` for parts that are not such pairs or differ
    in shape, for labels that ``classes`` does not name, and for a folder that exists already.
    """
    folder = Path(folder).absolute()
    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another folder or remove it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with open(temporary / IMAGES, "wb") as file:
            labels = _write_parts(file, parts)
            file.flush()
            os.fsync(file.fileno())
        content = BytesIO()
        np.save(content, labels)
        write_atomic(temporary / LABELS, content.getvalue())
        if classes is not None:
            write_atomic(temporary / CLASSES, json.dumps(list(classes)))
        open_mapped(temporary, name=folder.name)  # refuses bad labels before the folder appears
        temporary.chmod(0o755)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return open_mapped(folder)


def _write_parts(file: BinaryIO, parts: Iterable[Part]) -> NDArray[np.int64]:
    """Stream the pixels into one .npy file, whose header is completed last; return the labels."""
    shape: tuple[int, ...] | None = None
    labels: list[NDArray[np.int64]] = []
    for number, part in enumerate(parts):
        images, numbers = _checked(part, number)
        if shape is None:
            shape = images.shape[1:]
            _write_header(file, 0, shape)
        if images.shape[1:] != shape:
            raise ValueError(
                f"Part {number} has images of shape {list(images.shape[1:])} after "
                f"{list(shape)}; resize all to one shape."
            )
        file.write(np.ascontiguousarray(images).data)
        labels.append(numbers.astype(np.int64))
    if shape is None:
        raise ValueError("parts is empty; pass at least one pair (images, labels).")
    joined = np.concatenate(labels)
    file.seek(0)
    _write_header(file, len(joined), shape)
    return joined


def _write_header(file: BinaryIO, rows: int, shape: tuple[int, ...]) -> None:
    # numpy leaves room in the header for the first axis to grow, so both headers are equally long
    header = {"descr": "|u1", "fortran_order": False, "shape": (rows, *shape)}
    np.lib.format.write_array_header_1_0(file, header)


def _checked(part: Part, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        images, labels = (
            value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
            for value in part
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"Part {number} is no pair (images, labels): {error}.") from error
    whole = np.issubdtype(labels.dtype, np.integer)
    if images.dtype != np.uint8 or images.ndim != 4 or not whole or labels.ndim != 1:
        raise ValueError(
            f"Part {number} has {images.dtype} images of shape {list(images.shape)} and "
            f"{labels.dtype} labels of shape {list(labels.shape)}; pass uint8 "
            "[B, channels, height, width] and integers [B]."
        )
    if len(images) != len(labels):
        raise ValueError(
            f"Part {number} has {len(images)} images and {len(labels)} labels; pass one for each."
        )
    return images, labels


def _opened(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing; {AGAIN}.") from error
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is no whole .npy file ({error}); {AGAIN}.") from error


def _class_names(path: Path, labels: Tensor) -> tuple[str, ...]:
    if path.exists():
        return tuple(json.loads(path.read_text()))
    return tuple(str(label) for label in range(int(labels.max()) + 1)) if len(labels) else ("0",)
