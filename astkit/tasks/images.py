"""Images: the embedded digits, Fashion-MNIST, CIFAR-10, and folders of your own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from astkit.datasets import Images, Loader, load, split
from astkit.datasets.sources import carve
from astkit.names import resolve
from astkit.trainers import TrainConfig

HELD = 0.15  # share of the validation rows, and of the test rows, if a folder has no such part


def digits(root: str | Path | None = None) -> dict[str, Any]:
    """Images of 8x8 pixels in 10 classes, and a network of two convolutions."""
    parts = images(**vars(split("digits", root)), model="digits_cnn", augment=())
    return {**parts, "config": TrainConfig(lr=3e-3)}


def fashion_mnist(root: str | Path | None = None) -> dict[str, Any]:
    """Fashion-MNIST below ``root`` (see data/README.md), and the original's CNN."""
    parts = images(**vars(split("fashion_mnist", root)), model="simple_cnn", augment=("flip",))
    return {**parts, "config": TrainConfig(lr=1e-3)}


def cifar10(root: str | Path | None = None) -> dict[str, Any]:
    """CIFAR-10 below ``root`` (see data/README.md), and the original's CNN."""
    parts = images(**vars(split("cifar10", root)), model="simple_cnn", augment=("crop", "flip"))
    return {**parts, "config": TrainConfig(lr=1e-3)}


def folder(root: str | Path, size: int = 32) -> dict[str, Any]:
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
            raise ValueError(f"{root}/val holds other classes than the training images")
    if test is None:
        test, train = carve(train, HELD, "test")
    if validation is None:
        validation, train = carve(train, HELD, "validation")
    return images(train, validation, test, "simple_cnn", ("flip",))


def images(
    train: Images, validation: Images, test: Images, model: str, augment: tuple[str, ...]
) -> dict[str, Any]:
    """The registered ``model`` on normalised images; only training images are augmented."""
    stats = train.channel_stats()
    held = partial(Loader, batch_size=500, shuffle=False, normalize=stats)
    return {
        "make_model": partial(resolve("model", model), train.shape, train.num_classes),
        "train": Loader(train, augment=augment, normalize=stats),
        "validation": held(validation),
        "test": held(test),
    }
