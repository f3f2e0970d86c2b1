"""Tasks of a comparison from files: image folders."""

from __future__ import annotations

from pathlib import Path

from astkit.datasets import load
from astkit.datasets.sources import carve
from astkit.tasks.images import images
from astkit.tasks.parts import HELD, Arguments


def folder(root: str | Path, size: int = 32) -> Arguments:
    """Images in ``root/train|val|test/<class>/``, or ``root/<class>/``; ``size``: pixels a side.

    Parts without a folder are drawn from the training images. Raises the errors of `load`, and
    ``ValueError`` for parts of other classes and a ``size`` below 4.
    """
    if size < 4:
        raise ValueError(f"size is {size}: give 4 or more pixels, for the network's poolings")
    root = Path(root).expanduser()
    train, test = load("folders", root, size=size)
    validation = None
    if (root / "val").is_dir():
        validation, _ = load("folders", root / "val", size=size)
        if validation.classes != train.classes:
            raise ValueError(
                f"{root}/val holds other classes than the training images: use the same"
            )
    if test is None:
        test, train = carve(train, HELD, "test")
    if validation is None:
        validation, train = carve(train, HELD, "validation")
    return images(train, validation, test, "simple_cnn", ("flip",))
