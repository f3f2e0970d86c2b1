"""Decode JPEG and PNG files to pixels, with Pillow, which torchvision requires."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

FORMATS = ("PNG", "JPEG")  # otherwise Pillow would also open other formats with these suffixes
MOST_PIXELS = 64 * 2**20  # per image, which takes 1 GB: small files may decode to any size


def regular(path: Path, remedy: str) -> Path:
    """``path``; raises ``ValueError`` with ``remedy`` unless it is, or links to, a regular file.

    Reading a device or a pipe may block forever.
    """
    if not path.is_file():
        fault = "not a regular file" if path.exists() else "missing"
        raise ValueError(f"{path} is {fault}; {remedy}.")
    return path


def decode(data: bytes, where: str, remedy: str) -> Tensor:
    """One encoded PNG or JPEG as uint8 ``[3, height, width]``.

    Raises ``ValueError`` naming ``where`` and ``remedy`` for bytes that are not a complete image of
    at most ``MOST_PIXELS`` pixels.
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


def resized(picture: Tensor, size: int) -> Tensor:
    """``picture`` (uint8 ``[3, height, width]``) as uint8 ``[3, size, size]``, antialiased."""
    return F.interpolate(picture[None], (size, size), mode="bilinear", antialias=True)[0]
