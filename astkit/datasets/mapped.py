"""Images that stay on disk: memory-mapped .npy files, read batch by batch."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astkit.datasets.decode import regular
from astkit.datasets.images import Images

IMAGES, LABELS, CLASSES = "images.npy", "labels.npy", "classes.json"
MOST_UNNAMED = 100_000  # classes without a classes.json
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
    pixels, labels = _opened(folder / IMAGES), _opened(folder / LABELS)
    try:
        numbers = _whole(labels[: len(pixels) + 1]).clone()
        named = _class_names(folder / CLASSES, numbers)
        whole = Images(pixels, numbers, named, folder.name if name is None else name)
    except ValueError as error:
        raise ValueError(f"{folder} is unusable: {error} Or {AGAIN}.") from error
    rows = slice(start, stop)
    return MappedImages(pixels[rows], numbers[rows], named, whole.name, folder, start, stop)


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
            labels = _write_parts(file, parts, classes, folder.name)
        np.save(temporary / LABELS, labels)
        if classes is not None:
            (temporary / CLASSES).write_text(json.dumps(list(classes)))
        open_mapped(temporary, name=folder.name)  # refuses bad labels before the folder appears
        for path in temporary.iterdir():
            with open(path, "r+b") as file:
                os.fsync(file.fileno())
        temporary.chmod(0o755)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return open_mapped(folder)


def _write_parts(
    file: BinaryIO, parts: Iterable[Part], classes: Sequence[str] | None, name: str
) -> NDArray[np.int64]:
    """Stream the pixels into one .npy file, whose header is completed last; return the labels."""
    named = ("",) * MOST_UNNAMED if classes is None else tuple(classes)
    labels = bytearray()  # one buffer: small tensors among the parts would keep their memory
    shape: tuple[int, ...] = ()
    for number, part in enumerate(parts):
        try:
            images, numbers = (torch.as_tensor(value).cpu() for value in part)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Part {number} is no pair (images, labels): {error}.") from error
        checked = Images(images, _whole(numbers), named, f"part {number} of {name}")
        if not labels:
            shape = checked.shape
            _write_header(file, 0, shape)
        if checked.shape != shape:
            raise ValueError(
                f"Part {number} has images of shape {list(checked.shape)} after {list(shape)}; "
                "resize all to one shape."
            )
        file.write(images.contiguous().numpy().data)
        labels += checked.labels.numpy().tobytes()
    if not labels:
        raise ValueError("parts is empty; pass at least one pair (images, labels).")
    joined = np.frombuffer(labels, np.int64)
    file.seek(0)
    _write_header(file, len(joined), shape)
    return joined


def _write_header(file: BinaryIO, rows: int, shape: tuple[int, ...]) -> None:
    # numpy leaves room in the header for the first axis to grow, so both headers are equally long
    header = {"descr": "|u1", "fortran_order": False, "shape": (rows, *shape)}
    np.lib.format.write_array_header_1_0(file, header)


def _whole(labels: Tensor) -> Tensor:
    return labels if labels.is_floating_point() else labels.long()  # Images refuses the former


def _opened(path: Path) -> Tensor:
    regular(path, AGAIN)
    try:
        with warnings.catch_warnings():
            # a writable mapping of more than the memory would be refused, so torch's warning must
            # be, and so must numpy's of a shape that is impossible
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            warnings.filterwarnings("ignore", "overflow encountered")
            return torch.from_numpy(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, EOFError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is no whole .npy file ({error}); {AGAIN}.") from error


def _class_names(path: Path, labels: Tensor) -> tuple[str, ...]:
    if path.exists():
        names = json.loads(regular(path, AGAIN).read_text())
        if not isinstance(names, list):
            raise ValueError(f"{path} holds no list of names.")
        return tuple(map(str, names))
    most = int(labels.max()) if len(labels) else 0
    if most >= MOST_UNNAMED:
        raise ValueError(f"{path} is missing, and labels reach {most}; pass classes.")
    return tuple(map(str, range(most + 1)))
