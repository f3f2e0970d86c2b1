"""Images: the embedded digits, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from astkit.datasets import Images, Loader, split
from astkit.names import resolve
from astkit.tasks.parts import Arguments
from astkit.trainers import TrainConfig


def digits(root: str | Path | None = None) -> Arguments:
    """Images of 8x8 pixels in 10 classes, and a network of two convolutions."""
    parts = split("digits", root)
    arguments = images(parts.train, parts.validation, parts.test, "digits_cnn", ())
    return {**arguments, "config": TrainConfig(lr=3e-3)}


def fashion_mnist(root: str | Path | None = None) -> Arguments:
    """Fashion-MNIST below ``root`` (see data/README.md), and the original's CNN."""
    parts = split("fashion_mnist", root)
    arguments = images(parts.train, parts.validation, parts.test, "simple_cnn", ("flip",))
    return {**arguments, "config": TrainConfig(lr=1e-3)}


def cifar10(root: str | Path | None = None) -> Arguments:
    """CIFAR-10 below ``root`` (see data/README.md), and the original's CNN."""
    parts = split("cifar10", root)
    arguments = images(parts.train, parts.validation, parts.test, "simple_cnn", ("crop", "flip"))
    return {**arguments, "config": TrainConfig(lr=1e-3)}


def images(
    train: Images, validation: Images, test: Images, model: str, augment: tuple[str, ...]
) -> Arguments:
    """The registered ``model`` on normalised images; only training images are augmented."""
    stats = train.channel_stats()
    held = partial(Loader, batch_size=500, shuffle=False, normalize=stats)
    return {
        "make_model": partial(resolve("model", model), train.shape, train.num_classes),
        "train": Loader(train, augment=augment, normalize=stats),
        "validation": held(validation),
        "test": held(test),
    }
