"""Image files: how folders are searched for them, and how they are decoded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")  # as Pillow calls them


def find_images(folder: Path) -> list[Path]:
    """The image files in and below ``folder``, in the order of torchvision's ``ImageFolder``.

    Links to folders are followed. Files and folders whose names begin with a dot are skipped, such
    as the copies of ``.ipynb_checkpoints`` and macOS's ``._1.png``. Raises ``ValueError`` for an
    image of another format than `FORMATS`.
    """
    from PIL import Image

    kinds = Image.registered_extensions()
    paths = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            kind = kinds.get(path.suffix.lower())
            if name.startswith(".") or kind not in Image.OPEN:
                continue
            if kind not in FORMATS:
                raise ValueError(f"{path} is none of {', '.join(FORMATS)}; convert it.")
            paths.append(path)
    return sorted(paths, key=lambda path: (str(path.parent), path.name))


def read_images(paths: Sequence[Path], size: int | None) -> list[Tensor]:
    """The images in files, uint8 ``[3, height, width]``, with ``size`` pixels per side if given.

    Raises ``ValueError`` for damaged files and, without ``size``, for images of different sizes.
    """
    images: list[Tensor] = []
    for path in paths:
        image = decode(path.read_bytes(), str(path))
        if size is not None:
            image = F.interpolate(image[None], (size, size), mode="bilinear", antialias=True)[0]
        images.append(image)
        if image.shape != images[0].shape:
            first, this = ("x".join(map(str, each.shape[:0:-1])) for each in (images[0], image))
            sizes = f"{paths[0]} is {first} pixels and {path} is {this}"
            raise ValueError(f"{sizes}; pass size= (pixels per side) to resize all images.")
    return images


def decode(data: bytes, where: str) -> Tensor:
    """An encoded image as uint8 ``[3, height, width]``, turned as its EXIF orientation says.

    Grey images become RGB, transparency is left out, and of an animation the first image is read.
    Raises ``ValueError`` that names ``where`` for bytes that are not an image of `FORMATS`.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(BytesIO(data), formats=FORMATS) as stored:
            image = ImageOps.exif_transpose(stored)
            if image.mode == "F":
                raise ValueError("its pixels are decimals")
            if image.mode.startswith("I"):  # 16 bits, which convert would clip at 255
                grey = (np.array(image).astype(np.float64) / 257).round().clip(0, 255)
                pixels = np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
            else:
                pixels = np.array(image.convert("RGB"))
    except Exception as error:  # what Pillow's decoders raise is not documented
        unknown = isinstance(error, UnidentifiedImageError)
        reason = f"none of {', '.join(FORMATS)}" if unknown else error
        raise ValueError(f"{where} is damaged or no image ({reason}); replace it.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
