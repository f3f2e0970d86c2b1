"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from astkit.datasets.decode import class_names, read_class_folders
from astkit.datasets.images import Images
from astkit.names import resolve

Parts = tuple[Images, Images | None]


def load(
    name: str = "digits",
    root: str | Path | None = None,
    download: bool = False,
    *,
    size: int | None = None,
) -> Parts:
    """The training and test part of data set ``name``; the test part is ``None`` where it has none.

    ``"digits"``: 1,797 images of 8x8 pixels that come with scikit-learn. ``"cifar10"``: searched in
    ``root``, the folder that ``ASTKIT_DATA`` names, and ``data/``; with ``download`` fetched when
    absent. ``"folders"``: ``root/<class>/*`` or ``root/train|test/<class>/*``; ``size`` resizes to
    that many pixels a side. Raises ``FileNotFoundError`` for absent data, with every path tried,
    and ``ValueError`` for damaged files, unknown names and arguments that do not apply.
    """
    read: Callable[[Path | None, bool, int | None], Parts] = resolve("dataset", name)
    if size is not None and (name != "folders" or size < 1):
        raise ValueError(
            f"size is {size} for {name!r}; pass 1 or more pixels, and only to 'folders'."
        )
    return read(None if root is None else Path(root).expanduser(), download, size)


def load_digits(root: Path | None, download: bool, size: int | None) -> Parts:
    """scikit-learn's digits: uint8 ``[1797, 1, 8, 8]``, 0..16 stretched to 0..255; no test part."""
    try:
        from sklearn.datasets import load_digits as embedded
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "The digits come with scikit-learn; install it: pip install 'astkit[notebooks]'."
        ) from error

    bunch = embedded()
    pixels = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    return Images(pixels[:, None], labels, tuple("0123456789"), "digits"), None


def load_folders(root: Path | None, download: bool, size: int | None) -> Parts:
    """One folder a class, in ``root`` or in ``root/train`` and ``root/test``."""
    if root is None:
        raise ValueError("root is None; pass the folder that holds one folder of images a class.")
    inner = root / "train"
    train = inner if class_names(inner) else root
    classes = class_names(train)
    if not classes:
        raise FileNotFoundError(
            f"No class folders with images were found in {inner} or {root}; "
            "put the images in root/<class>/ or root/train/<class>/."
        )
    tested = class_names(root / "test") if train == inner else ()
    for name in tested:
        if name not in classes:
            raise ValueError(
                f"{root / 'test'} has the class {name!r}, which {train} lacks; "
                "use the same class folders in both."
            )
    first = Images(*read_class_folders(train, classes, size), classes, root.name)
    if not tested:
        return first, None
    second = Images(*read_class_folders(root / "test", classes, size), classes, root.name)
    if first.shape != second.shape:
        raise ValueError(
            f"Images in {train} have shape {first.shape} and those in {root / 'test'} "
            f"{second.shape}; pass size= (pixels a side) to resize all images."
        )
    return first, second
