"""JPEG and PNG files to pixels, through Pillow, which torchvision brings along."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SUFFIXES = (".png", ".jpg", ".jpeg")


def decode(data: bytes, where: str, remedy: str) -> Tensor:
    """One encoded image as uint8 ``[3, height, width]``.

    Raises ``ValueError`` naming ``where`` and ``remedy`` for bytes that are not a whole image.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(BytesIO(data)) as picture:
            pixels = np.array(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        reason = "no known format" if isinstance(error, UnidentifiedImageError) else error
        raise ValueError(f"{where} is damaged or no image ({reason}); {remedy}.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def read_class_folders(
    folder: Path, classes: tuple[str, ...], size: int | None
) -> tuple[Tensor, Tensor]:
    """The images of ``folder/<class>/*`` in the order of their names: pixels and labels.

    uint8 ``[N, 3, height, width]`` and int64 ``[N]``. ``size``: resize to ``size`` x ``size``
    pixels. Raises ``ValueError`` for a damaged file, unequal sizes without ``size``, or no images.
    """
    remedy = "replace it or take it out of the folder"
    pictures: list[Tensor] = []
    labels: list[int] = []
    first: Path | None = None
    for label, name in enumerate(classes):
        for path in image_files(folder / name):
            picture = decode(path.read_bytes(), str(path), remedy)
            if size is not None:
                picture = resized(picture, size)
            first = first or path
            _check_same_size(first, pictures[0] if pictures else picture, path, picture)
            pictures.append(picture)
            labels.append(label)
    if not pictures:
        raise ValueError(
            f"{folder} holds no images in its class folders; put {', '.join(SUFFIXES)} files there."
        )
    return torch.stack(pictures), torch.tensor(labels)


def image_files(folder: Path) -> list[Path]:
    """The image files directly in ``folder``, sorted by name; none where there is no folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def class_names(folder: Path) -> tuple[str, ...]:
    """Sorted names of the folders in ``folder`` that hold images."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(path.name for path in folder.iterdir() if image_files(path)))


def resized(picture: Tensor, size: int) -> Tensor:
    """``picture`` (uint8 ``[3, height, width]``) as uint8 ``[3, size, size]``, antialiased."""
    scaled = F.interpolate(
        picture[None].float(), size=(size, size), mode="bilinear", antialias=True
    )
    return scaled[0].round().clamp(0, 255).to(torch.uint8)


def _check_same_size(first: Path, expected: Tensor, path: Path, picture: Tensor) -> None:
    if picture.shape != expected.shape:
        sizes = [f"{shape[2]}x{shape[1]}" for shape in (expected.shape, picture.shape)]
        raise ValueError(
            f"{first} is {sizes[0]} pixels and {path} is {sizes[1]}; "
            "pass size= (pixels a side) to resize all images."
        )
