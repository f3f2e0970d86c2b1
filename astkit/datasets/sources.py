"""Data sets by name, where they are searched, and their splits into three parts."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from astkit.datasets.image_files import decode, find_images, read_images
from astkit.datasets.images import Images
from astkit.files import CHECKOUT, shipped
from astkit.names import resolve
from astkit.rng import permutation

if TYPE_CHECKING:
    import pandas as pd

Parts = tuple[Images, Images | None]
BIKES = "bikes.csv.gz"
RECENT, LATER = 274, 305  # first day of October 2011, and of November
DATA = "ASTKIT_DATA"  # environment variable: a folder of datasets
INPUT = "ASTKIT_INPUT"  # environment variable: input folder instead of Kaggle's
DEPTH = 6  # Kaggle mounts at datasets/<owner>/<slug>/, and datasets may contain subfolders
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION: tuple[str, ...] = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat")
FASHION += ("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DEBIAN = Path("/usr/share/datasets")  # where Debian's packages dataset-* put their files
VALIDATION, TEST = 0.1, 0.2  # shares of the rows of a split
AGAIN = "fetch the data again"


class Bikes(NamedTuple):
    """Bikes rented in each hour of 2011, in order of time; ``bikers`` is the label.

    ``train``: January to September, ``recent``: October, ``test``: November and December.
    """

    train: pd.DataFrame
    recent: pd.DataFrame
    test: pd.DataFrame


@overload
def load(  # type: ignore[overload-overlap]
    name: Literal["bikes"], root: str | Path | None = None
) -> Bikes: ...


@overload
def load(
    name: str = "digits", root: str | Path | None = None, *, size: int | None = None
) -> Parts: ...


def load(
    name: str = "digits", root: str | Path | None = None, *, size: int | None = None
) -> Parts | Bikes:
    """Training and test part of dataset ``name``; the test part is ``None`` if there is none.

    ``"digits"``: 1,797 images of 8x8 pixels, included in scikit-learn. ``"cifar10"`` and
    ``"fashion_mnist"``: searched in `search_places`. ``"folders"``: images in and below
    ``root/<class>/`` or ``root/train|test/<class>/``; ``size`` resizes to that many pixels per
    side. ``"bikes"``: a table, included, as three DataFrames, see `Bikes`.

    Raises ``FileNotFoundError`` for missing data, with every path tried, and ``ValueError`` for
    damaged files, unknown names and arguments that do not apply.
    """
    read: Callable[[Path | None, int | None], Parts | Bikes] = resolve("dataset", name)
    if size is not None and (name != "folders" or size < 1):
        raise ValueError(f"size is {size} for {name!r}; pass 1 or more, and only to 'folders'.")
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


def load_bikes(root: Path | None, size: int | None) -> Bikes:
    """The hours of 2011 of UCI's Bike Sharing data, see data/README.md."""
    import pandas as pd

    if root is not None:
        raise ValueError(f"root is {str(root)!r}, but 'bikes' come with astkit; omit it.")
    hours = pd.read_csv(shipped(f"data/{BIKES}"))
    days = hours["day"]
    parts = (days < RECENT, (days >= RECENT) & (days < LATER), days >= LATER)
    return Bikes(*(hours[part].reset_index(drop=True) for part in parts))


# --- folders of images -----------------------------------------------------------------------


def load_folders(root: Path | None, size: int | None) -> Parts:
    """One folder per class, in ``root`` or ``root/train``; ``root/test`` is the test part."""
    if root is None:
        raise ValueError("root is None; pass the folder with one folder of images per class.")
    parts = {part: _class_files(root / part) for part in ("train", "val", "test")}
    train, test = parts["train"], parts["test"]
    if not train:  # the classes are beside the parts
        train = {name: paths for name, paths in _class_files(root).items() if not parts.get(name)}
    if not train:
        remedy = "put images in root/<class>/ or root/train/<class>/"
        raise FileNotFoundError(f"No class folders with images are in {root}; {remedy}.")
    paths = next(iter(train.values()))
    inner, outer = {path.parent for path in paths}, Path(os.path.commonpath(paths))
    if len(train) == 1 and len(inner) > 1 and outer not in inner:  # a folder around the classes
        one = f"{root} has one class, whose images are in {len(inner)} folders of {outer}"
        raise ValueError(f"{one}; pass root={str(outer)!r} if these are the classes.")
    for name in test:
        if name not in train:
            raise ValueError(
                f"{root / 'test'} has the class {name!r}, which the training part lacks."
            )
    classes = tuple(train)
    folders = [*train.items(), *test.items()]
    pixels = torch.stack(read_images([path for _, paths in folders for path in paths], size))
    labels = torch.tensor([classes.index(name) for name, paths in folders for _ in paths])
    whole = Images(pixels, labels, classes, root.name)
    if not test:
        return whole, None
    rows = torch.arange(len(whole))
    first = sum(map(len, train.values()))
    return whole.subset(rows[:first]), whole.subset(rows[first:])


def _class_files(root: Path) -> dict[str, list[Path]]:
    """The images in and below each folder of ``root``; folders without images are left out."""
    by_class = {folder.name: find_images(folder) for folder in sorted(root.glob("[!.]*/"))}
    return {name: paths for name, paths in by_class.items() if paths}


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
        Layout("data_batch_[1-5].bin", _read_binary),
        Layout("train-*.parquet", _read_parquet, "cifar"),
        Layout("plain_text/train-*.parquet", _read_parquet, "cifar"),  # of Hugging Face
    )
    source = (
        "such as the binary version of https://www.cs.toronto.edu/~kriz/cifar.html (the Python"
        " version is pickled, and is not read)"
    )
    return read_found("CIFAR10", layouts, search_places(root), source)


def load_fashion_mnist(root: Path | None, size: int | None) -> Parts:
    """Fashion-MNIST (Xiao et al. 2017): 60,000 and 10,000 images, uint8 ``[N, 1, 28, 28]``.

    From files as torchvision or Debian's package dataset-fashion-mnist put them.
    """
    layouts = (Layout("train-images-idx3-ubyte*", _read_fashion_mnist, "fashion"),)
    places = [*search_places(root), *([DEBIAN] if root is None else [])]
    source = "such as with torchvision.datasets.FashionMNIST('data', download=True)"
    return read_found("FashionMNIST", layouts, places, source)


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


def _read_binary(folder: Path) -> Parts:
    """CIFAR-10's binary version: a row is a byte with the label, then the pixels."""
    batches = [_binary_rows(folder / f"data_batch_{number}.bin") for number in range(1, 6)]
    train, test = (
        Images(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long(), CIFAR10, "cifar10")
        for rows in (torch.cat(batches), _binary_rows(folder / "test_batch.bin"))
    )
    return train, test


def _binary_rows(path: Path) -> Tensor:
    """uint8 ``[N, 1 + 3 * 32 * 32]``."""
    content = torch.from_numpy(np.fromfile(path, np.uint8))
    width = 1 + 3 * 32 * 32
    if len(content) == 0 or len(content) % width:
        raise ValueError(f"{path} has {len(content):,} bytes, not {width:,} a row; {AGAIN}.")
    return content.view(-1, width)


def _read_parquet(folder: Path) -> Parts:
    train = _read_shards(sorted(folder.glob("train-*.parquet")))
    tested = sorted(folder.glob("test-*.parquet"))
    return train, _read_shards(tested) if tested else None


def _read_shards(paths: list[Path]) -> Images:
    """CIFAR-10's images in parquet files as on Hugging Face: img {bytes, path} and label."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    pictures: list[Tensor] = []
    labels: list[int] = []
    for path in paths:
        _, of, count = path.stem.rpartition("-of-")  # as in train-00000-of-00002
        if of and int(count) != len(paths):
            raise ValueError(f"{path} is one of {int(count)} files, but {len(paths)} are there.")
        try:
            table = read_table(path)
            images = table["img" if "img" in table.column_names else "image"].to_pylist()
            labels += table["label"].to_pylist()
            for row, image in enumerate(images):
                pictures.append(decode(image["bytes"], f"row {row} of {path}"))
        except (ArrowException, LookupError, OSError, TypeError) as error:
            raise ValueError(f"{path} holds no images with labels ({error}); {AGAIN}.") from error
    for picture, label in zip(pictures, labels, strict=True):
        if picture.shape != (3, 32, 32) or label not in range(len(CIFAR10)):
            found = f"an image of shape {list(picture.shape)} with label {label}"
            raise ValueError(f"{paths[0].parent} has {found}, not [3, 32, 32] and 0 to 9; {AGAIN}.")
    return Images(torch.stack(pictures), torch.tensor(labels), CIFAR10, "cifar10")


def _read_fashion_mnist(folder: Path) -> Parts:
    """Read the four files of ``folder``, see `_idx`."""
    parts = []
    for part in ("train", "t10k"):
        pixels = _idx(folder, f"{part}-images-idx3-ubyte")
        labels = _idx(folder, f"{part}-labels-idx1-ubyte")
        parts.append(Images(pixels[:, None], labels.long(), FASHION, "fashion_mnist"))
    return parts[0], parts[1]


def _idx(folder: Path, name: str) -> Tensor:
    """A file in MNIST's format, gzipped or not: type, number of sizes, sizes, uint8 values."""
    packed = folder / f"{name}.gz"
    try:
        stored = (packed if packed.exists() else folder / name).read_bytes()
        content = gzip.decompress(stored) if packed.exists() else stored
        if content[:3] != b"\x00\x00\x08":
            raise ValueError("it holds no bytes of pixels or labels")
        sizes = np.frombuffer(content, ">u4", content[3], 4)
        values = np.frombuffer(content, np.uint8, offset=4 + sizes.nbytes)
        return torch.from_numpy(values.reshape(sizes).copy())
    except (EOFError, LookupError, OSError, ValueError, zlib.error) as error:
        damaged = f"{folder} does not hold all of Fashion-MNIST ({name}: {error})"
        raise ValueError(f"{damaged}; {AGAIN}.") from error


# --- splits ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Splits:
    """Three disjoint parts: fit on ``train``, select on ``validation``, evaluate ``test`` once."""

    train: Images
    validation: Images
    test: Images

    def __repr__(self) -> str:
        parts = (f"{part} {len(images):,}" for part, images in vars(self).items())
        return f"Splits({self.train.name!r}: {', '.join(parts)} images)"


def split(
    name: str = "digits", root: str | Path | None = None, seed: int = 0, size: int | None = None
) -> Splits:
    """Load dataset ``name`` (see ``load``) and split it.

    A tenth of the training part is for validation; a fifth of the whole for test, if the source has
    no test part. Each class contributes the same share of its rows, to the nearest row. Raises the
    errors of ``load``, and ``ValueError`` for an empty part.
    """
    loaded = load(name, root, size=size)
    if isinstance(loaded, Bikes):
        raise ValueError("'bikes' are divided by time already: pass them to astkit.compare.")
    train, test = loaded
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


def hold_back(
    units: Tensor, parts: Mapping[str, float], in_order: bool, classes: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Rows to train on, and those held back for ``parts``, each int64 and sorted.

    Args:
        units: int64 ``[rows]``: rows of a unit stay together. Of rows ``in_order`` the last units
            are held back, else random ones.
        parts: of each its share of the rows that the parts before it leave.
        classes: int64 ``[rows]``, where each row is a unit: parts hold the same share of each.

    Raises ``ValueError`` where a part or the training has no rows.
    """
    rest, held = units.argsort(stable=True), {}
    for part, share in parts.items():
        own = units[rest]
        if in_order:
            borders = 1 + own.diff().nonzero()[:, 0]
            if not len(borders):
                alike = f"all rows are of one date, so none are left for {part}"
                raise ValueError(f"{alike}: give others")
            nearest = (borders - (1 - share) * len(own)).abs().argmin()
            chosen = torch.arange(len(own)) >= borders[nearest]
        else:
            here = own.unique()
            kinds = torch.zeros_like(here) if classes is None else classes[here]
            chosen = torch.isin(own, here[stratified(kinds, share, 0, part)[0]])
        if not chosen.any() or chosen.all():
            raise ValueError(f"no rows are left for {part}: give more rows, or more groups")
        held[part], rest = rest[chosen].sort().values, rest[~chosen]
    return rest.sort().values, held


def carve(data: Images, fraction: float, part: str, seed: int = 0) -> tuple[Images, Images]:
    """A stratified ``part`` of the rows, and the rest; raises ``ValueError`` for an empty one."""
    chosen, rest = stratified(data.labels, fraction, seed, part)
    if len(chosen) == 0 or len(rest) == 0:
        empty = part if len(chosen) == 0 else "training"
        raise ValueError(f"{part}={fraction} leaves the {empty} part of {data!r} without rows.")
    return data.subset(chosen), data.subset(rest)
