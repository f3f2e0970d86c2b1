"""Data sets by name, where they are searched, and their splits into three parts."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from astkit.datasets.images import Images, decode, regular, resized
from astkit.datasets.parquet import image_rows, shard_files
from astkit.files import CHECKOUT
from astkit.names import resolve
from astkit.rng import permutation

Parts = tuple[Images, Images | None]
SUFFIXES = (".png", ".jpg", ".jpeg")
DATA = "ASTKIT_DATA"  # environment variable: a folder of datasets
INPUT = "ASTKIT_INPUT"  # environment variable: input folder instead of Kaggle's
DEPTH = 6  # Kaggle mounts at datasets/<owner>/<slug>/, and datasets may contain subfolders
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_ROWS = 50_000  # at most, per part
FASHION_MNIST = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DEBIAN = Path("/usr/share/datasets")  # where Debian's packages dataset-* put their files
VALIDATION, TEST = 0.1, 0.2  # shares of the rows of a split
AGAIN = "fetch the data again"
DOWNLOAD = "such as with torchvision.datasets.{}('data', download=True)"


def load(
    name: str = "digits",
    root: str | Path | None = None,
    *,
    size: int | None = None,
) -> Parts:
    """Training and test part of dataset ``name``; the test part is ``None`` if there is none.

    ``"digits"``: 1,797 images of 8x8 pixels, included in scikit-learn. ``"cifar10"`` and
    ``"fashion_mnist"``: searched in `search_places`. ``"folders"``: ``root/<class>/*`` or
    ``root/train|test/<class>/*``; ``size`` resizes to that many pixels per side. Raises
    ``FileNotFoundError`` for missing data, with every path tried, and ``ValueError`` for damaged
    files, unknown names and arguments that do not apply.
    """
    read: Callable[[Path | None, int | None], Parts] = resolve("dataset", name)
    if size is not None and (name != "folders" or size < 1):
        raise ValueError(
            f"size is {size} for {name!r}; pass 1 or more pixels, and only to 'folders'."
        )
    return read(None if root is None else Path(root).expanduser(), size)


def load_digits(root: Path | None, size: int | None) -> Parts:
    """scikit-learn's digits: uint8 ``[1797, 1, 8, 8]``, 0..16 scaled to 0..255; no test part."""
    from sklearn.datasets import load_digits as embedded

    if root is not None:
        raise ValueError(f"root is {str(root)!r}, but 'digits' come with scikit-learn; omit it.")
    bunch = embedded()
    pixels = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    return Images(pixels[:, None], labels, tuple("0123456789"), "digits"), None


# --- folders of images -----------------------------------------------------------------------


def load_folders(root: Path | None, size: int | None) -> Parts:
    """One folder per class, in ``root`` or ``root/train``; ``root/test`` is the test part."""
    if root is None:
        raise ValueError("root is None; pass the folder with one folder of images per class.")
    train = _class_files(root / "train") or _class_files(root)
    if not train:
        raise FileNotFoundError(
            f"No class folders with {', '.join(SUFFIXES)} images were found in {root / 'train'} or "
            f"{root}; put the images in root/<class>/ or root/train/<class>/."
        )
    test = _class_files(root / "test")
    for name in test:
        if name not in train:
            raise ValueError(
                f"{root / 'test'} has the class {name!r}, which is missing in the training part; "
                "use the same class folders in both."
            )
    classes = tuple(train)
    files = [
        (path, classes.index(name))
        for part in (train, test)
        for name, paths in part.items()
        for path in paths
    ]
    paths, labels = zip(*files, strict=True)
    whole = Images(
        torch.stack(read_pictures(paths, size)), torch.tensor(labels), classes, root.name
    )
    if not test:
        return whole, None
    rows = torch.arange(len(whole))
    first = sum(map(len, train.values()))
    return whole.subset(rows[:first]), whole.subset(rows[first:])


def _class_files(folder: Path) -> dict[str, list[Path]]:
    """The images in each folder of ``folder``, without folders that have none; no hidden ones.

    Raises ``ValueError`` for images of other formats beside them.
    """
    from PIL import Image

    by_class: dict[str, list[Path]] = {}
    others = []
    for path in sorted(folder.glob("[!.]*/[!.]*")):
        if path.suffix.lower() in SUFFIXES:
            by_class.setdefault(path.parent.name, []).append(path)
        elif path.suffix.lower() in Image.registered_extensions():
            others.append(path)
    if by_class and others:
        raise ValueError(
            f"{others[0]}, one of {len(others)}, is not of {', '.join(SUFFIXES)}; convert it, or "
            "take it out of the folder."
        )
    return by_class


def read_pictures(paths: Sequence[Path], size: int | None) -> list[Tensor]:
    """The images in files, uint8 ``[3, height, width]``, with ``size`` pixels per side if given.

    Raises ``ValueError`` for damaged files and, without ``size``, for images of different sizes.
    """
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


# --- data sets that are searched -------------------------------------------------------------


class Layout(NamedTuple):
    """The first file of a layout, as a pattern, and what reads its folder.

    ``word``: must be in the path below the searched folder, since others use the same names.
    """

    pattern: str
    read: Callable[[Path], Any]
    word: str = ""


def load_cifar10(root: Path | None, size: int | None) -> Parts:
    """CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 images, uint8 ``[N, 3, 32, 32]``."""
    layouts = (
        Layout("data_batch_[1-5]", _read_python),
        Layout("train-*.parquet", _read_parquet, "cifar"),
        Layout("plain_text/train-*.parquet", _read_parquet, "cifar"),  # of Hugging Face
    )
    return read_found("CIFAR10", layouts, search_places(root), DOWNLOAD.format("CIFAR10"))


def load_fashion_mnist(root: Path | None, size: int | None) -> Parts:
    """Fashion-MNIST (Xiao et al. 2017): 60,000 and 10,000 images, uint8 ``[N, 1, 28, 28]``.

    From files as torchvision or Debian's package dataset-fashion-mnist put them.
    """
    layouts = (Layout("train-images-idx3-ubyte*", _read_idx, "fashion"),)
    places = [*search_places(root), *([DEBIAN] if root is None else [])]
    return read_found("FashionMNIST", layouts, places, DOWNLOAD.format("FashionMNIST"))


def search_places(root: Path | None) -> list[Path]:
    """``root``, else ``ASTKIT_DATA``, ``data/`` of the checkout and of ``.``, Kaggle's input."""
    places = [] if root is None else [root]
    if os.environ.get(DATA):
        places.append(Path(os.environ[DATA]).expanduser())
    if CHECKOUT is not None:
        places.append(CHECKOUT / "data")
    places += [Path.cwd() / "data", Path(os.environ.get(INPUT) or "/kaggle/input")]
    return list(dict.fromkeys(places))


def read_found(name: str, layouts: Sequence[Layout], places: list[Path], source: str) -> Any:
    """What is read from the folder at or below ``places`` that has one of ``layouts``.

    Ties below one place are resolved by the order of ``layouts``, then by the smallest depth.
    Raises ``FileNotFoundError`` if there is none; ``source`` says where the files come from.
    """
    for place, layout, depth in product(places, layouts, range(DEPTH + 1)):
        for path in sorted(place.glob("[!.]*/" * depth + layout.pattern)):
            if depth == 0 or layout.word in str(path.relative_to(place)).lower():
                return layout.read(path.parent)
    patterns = " or ".join(layout.pattern for layout in layouts)
    lines = [f"\n  {place}{'' if place.is_dir() else ' (no such folder)'}" for place in places]
    raise FileNotFoundError(
        f"{name} was not found. Looked for {patterns} in these folders and below them:"
        f"{''.join(lines)}\nPut one of these layouts into one of the folders (see"
        f" data/README.md), {source}."
    )


def _read_python(folder: Path) -> Parts:
    from torchvision import datasets
    from torchvision.datasets.utils import check_integrity

    class InFolder(datasets.CIFAR10):
        base_folder = ""

        def _load_meta(self) -> None:
            """Skip batches.meta, which contains only the names of the classes."""

    # torchvision unpickles only the published bytes; this names the file that differs
    for name, md5 in InFolder.train_list + InFolder.test_list:
        if not check_integrity(folder / name, md5):
            raise ValueError(
                f"{folder / name} does not have the published checksum {md5}; {AGAIN}."
            )
    train, test = (
        _cifar10([torch.from_numpy(part.data).movedim(3, 1)], part.targets)
        for part in (InFolder(folder, train=True), InFolder(folder, train=False))
    )
    return train, test


def _read_parquet(folder: Path) -> Parts:
    tested = shard_files(folder, "test")
    return read_shards(shard_files(folder, "train")), read_shards(tested) if tested else None


def read_shards(paths: list[Path]) -> Images:
    """CIFAR-10's images in parquet files; ``ValueError`` for other images or labels."""
    pictures: list[Tensor] = []
    labels: list[Any] = []
    for picture, label, where in image_rows(paths, CIFAR10_ROWS):
        if picture.shape != (3, 32, 32) or label not in range(len(CIFAR10)):
            raise ValueError(
                f"{where} has shape {list(picture.shape)} and label {label}, not "
                f"[3, 32, 32] and 0 to 9, and so is not CIFAR-10; {AGAIN}."
            )
        pictures.append(picture[None])
        labels.append(label)
    return _cifar10(pictures, labels)


def _cifar10(pictures: list[Tensor], labels: list[int]) -> Images:
    return Images(torch.cat(pictures), torch.tensor(labels), CIFAR10, "cifar10")


def _read_idx(folder: Path) -> Parts:
    train, test = (
        Images(
            _idx(folder, f"{part}-images-idx3-ubyte", (rows, 28, 28))[:, None],
            _idx(folder, f"{part}-labels-idx1-ubyte", (rows,)).long(),
            FASHION_MNIST,
            "fashion_mnist",
        )
        for part, rows in (("train", 60_000), ("t10k", 10_000))
    )
    return train, test


def _idx(folder: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    """The uint8 array of the given ``shape`` in an idx file, plain or gzipped.

    Format: LeCun's description of the MNIST files: two zero bytes, the type (8: uint8), the number
    of dimensions, their sizes as big-endian uint32, then the values.
    """
    compressed = folder / f"{name}.gz"
    path = regular(compressed if compressed.exists() else folder / name, AGAIN)
    header = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
    try:
        with gzip.open(path) if path == compressed else open(path, "rb") as file:
            # a small file may expand to any size
            content = file.read(len(header) + prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); {AGAIN}.") from error
    if content[: len(header)] != header or len(content) != len(header) + prod(shape):
        raise ValueError(f"{path} is not an idx file of {list(shape)} bytes; {AGAIN}.")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[len(header) :].view(shape)


# --- splits ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Splits:
    """Three disjoint parts: fit on ``train``, select on ``validation``, evaluate ``test`` once."""

    train: Images
    validation: Images
    test: Images


def split(
    name: str = "digits",
    root: str | Path | None = None,
    seed: int = 0,
    size: int | None = None,
) -> Splits:
    """Load dataset ``name`` (see ``load``) and split it.

    A tenth of the training part is for validation; a fifth of the whole for test, if the source has
    no test part. Each class contributes the same share of its rows, to the nearest row. Raises the
    errors of ``load``, and ``ValueError`` for an empty part.
    """
    train, test = load(name, root, size=size)
    if test is None:
        test, train = carve(train, TEST, "test", seed)
    chosen, train = carve(train, VALIDATION, "validation", seed)
    return Splits(train, chosen, test)


def stratified(labels: Tensor, fraction: float, *key: int | str) -> tuple[Tensor, Tensor]:
    """Split rows of ``labels`` (int64 ``[N]``) into ``(chosen, rest)``, int64, each sorted.

    From each class ``round(fraction * count)`` rows are drawn, deterministically for a ``key``.
    Raises ``ValueError`` for a ``fraction`` outside (0, 1).
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}; pass a fraction between 0 and 1.")
    labels = labels.cpu()
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().squeeze(1)
        order = permutation(len(rows), *key, label)
        mask[rows[order[: round(fraction * len(rows))]]] = True
    return mask.nonzero().squeeze(1), (~mask).nonzero().squeeze(1)


def carve(data: Images, fraction: float, part: str, seed: int = 0) -> tuple[Images, Images]:
    """A stratified ``part`` of the rows, and the rest; raises ``ValueError`` for an empty one."""
    chosen, rest = stratified(data.labels, fraction, seed, part)
    if len(chosen) == 0 or len(rest) == 0:
        empty = part if len(chosen) == 0 else "training"
        raise ValueError(
            f"{part}={fraction} leaves the {empty} part of {data.name!r} empty "
            f"({len(data)} rows in {data.num_classes} classes); pass more rows of each class."
        )
    return data.subset(chosen), data.subset(rest)
