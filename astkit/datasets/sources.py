"""Datasets by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from astkit.datasets.decode import decode, regular, resized
from astkit.datasets.images import Images
from astkit.names import resolve

Parts = tuple[Images, Images | None]
SUFFIXES = (".png", ".jpg", ".jpeg")


def load(
    name: str = "digits",
    root: str | Path | None = None,
    download: bool = False,
    *,
    size: int | None = None,
) -> Parts:
    """Training and test part of dataset ``name``; the test part is ``None`` if there is none.

    ``"digits"``: 1,797 images of 8x8 pixels, included in scikit-learn. ``"cifar10"``: searched in
    ``root``, the folder named by ``ASTKIT_DATA``, and ``data/``; downloaded with ``download`` if
    missing. ``"folders"``: ``root/<class>/*`` or ``root/train|test/<class>/*``; ``size`` resizes to
    that many pixels per side. Raises ``FileNotFoundError`` for missing data, with every path tried,
    and ``ValueError`` for damaged files, unknown names and arguments that do not apply.
    """
    read: Callable[[Path | None, bool, int | None], Parts] = resolve("dataset", name)
    if size is not None and (name != "folders" or size < 1):
        raise ValueError(
            f"size is {size} for {name!r}; pass 1 or more pixels, and only to 'folders'."
        )
    return read(None if root is None else Path(root).expanduser(), download, size)


def load_digits(root: Path | None, download: bool, size: int | None) -> Parts:
    """scikit-learn's digits: uint8 ``[1797, 1, 8, 8]``, 0..16 scaled to 0..255; no test part."""
    try:
        from sklearn.datasets import load_digits as embedded
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "The digits are part of scikit-learn: install the extra 'notebooks' of astkit"
            " (pip install -e '.[notebooks]' in a clone)."
        ) from error

    bunch = embedded()
    pixels = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    return Images(pixels[:, None], labels, tuple("0123456789"), "digits"), None


def load_folders(root: Path | None, download: bool, size: int | None) -> Parts:
    """One folder per class, in ``root`` or in ``root/train`` and ``root/test``."""
    if root is None:
        raise ValueError("root is None; pass the folder with one folder of images per class.")
    inner, test = root / "train", root / "test"
    train = inner if _class_names(inner) else root
    classes = _class_names(train)
    if not classes:
        raise FileNotFoundError(
            f"No class folders with {', '.join(SUFFIXES)} images were found in {inner} or {root}; "
            "put the images in root/<class>/ or root/train/<class>/."
        )
    tested = _class_names(test) if train == inner else []
    unknown = [name for name in tested if name not in classes]
    if unknown:
        raise ValueError(
            f"{test} has the class {unknown[0]!r}, which is missing in {train}; "
            "use the same class folders in both."
        )
    files = [
        (path, label)
        for part in ([train, test] if tested else [train])
        for label, name in enumerate(classes)
        for path in _image_files(part / name)
    ]
    paths, labels = zip(*files, strict=True)
    pixels = torch.stack(_pictures(paths, size))
    whole = Images(pixels, torch.tensor(labels), tuple(classes), root.name)
    if not tested:
        return whole, None
    for_test = torch.tensor([test in path.parents for path in paths])
    return whole.subset(~for_test), whole.subset(for_test)


def _pictures(paths: Sequence[Path], size: int | None) -> list[Tensor]:
    remedy = "replace it or take it out of the folder"
    pictures: list[Tensor] = []
    for path in paths:
        picture = decode(regular(path, remedy).read_bytes(), str(path), remedy)
        pictures.append(picture if size is None else resized(picture, size))
        first, shape = pictures[0].shape, pictures[-1].shape
        if shape != first:
            raise ValueError(
                f"{paths[0]} is {first[2]}x{first[1]} pixels and {path} is {shape[2]}x{shape[1]}; "
                "pass size= (pixels per side) to resize all images."
            )
    return pictures


def _image_files(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if path.suffix.lower() in SUFFIXES)


def _class_names(folder: Path) -> list[str]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in found if _image_files(path))
