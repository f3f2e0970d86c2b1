"""JPEG and PNG files to pixels, with Pillow, which torchvision requires."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")  # Pillow would open any other format under these names, too
MOST_PIXELS = 64 * 2**20  # in one image, which takes 1 GB: a small file may hold any number


def regular(path: Path, remedy: str) -> Path:
    """``path``; raises ``ValueError`` with ``remedy`` unless it is a regular file, or links to one.

    Reading a device or a pipe may never end.
    """
    if not path.is_file():
        fault = "not a regular file" if path.exists() else "missing"
        raise ValueError(f"{path} is {fault}; {remedy}.")
    return path


def decode(data: bytes, where: str, remedy: str) -> Tensor:
    """One encoded PNG or JPEG as uint8 ``[3, height, width]``.

    Raises ``ValueError`` naming ``where`` and ``remedy`` for bytes that are not a whole image of at
    most ``MOST_PIXELS`` pixels.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(BytesIO(data), formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            pixels = np.array(picture.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise ValueError(
            f"{where} has more than {MOST_PIXELS:,} pixels, the most for one image; scale it down."
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        reason = "neither PNG nor JPEG" if isinstance(error, UnidentifiedImageError) else error
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
    named = [(path, at) for at, name in enumerate(classes) for path in image_files(folder / name)]
    pictures: list[Tensor] = []
    for path, _ in named:
        picture = decode(regular(path, remedy).read_bytes(), str(path), remedy)
        picture = picture if size is None else resized(picture, size)
        if pictures and picture.shape != pictures[0].shape:
            first, other = (
                f"{shape[2]}x{shape[1]}" for shape in (pictures[0].shape, picture.shape)
            )
            raise ValueError(
                f"{named[0][0]} is {first} pixels and {path} is {other}; "
                "pass size= (pixels a side) to resize all images."
            )
        pictures.append(picture)
    if not pictures:
        raise ValueError(
            f"{folder} holds no images in its class folders; put {', '.join(SUFFIXES)} files there."
        )
    return torch.stack(pictures), torch.tensor([label for _, label in named])


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
    shape = (size, size)
    return F.interpolate(picture[None], size=shape, mode="bilinear", antialias=True)[0]
