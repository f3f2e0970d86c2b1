"""CIFAR-10 (Krizhevsky 2009), searched in several folders and read from any usual layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from astkit.datasets.images import Images
from astkit.datasets.parquet import image_rows, shard_files
from astkit.datasets.sources import Parts, load_folders
from astkit.files import CHECKOUT

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MOST_ROWS = 50_000  # per part
AGAIN = "fetch CIFAR-10 again (remove the folder and pass download=True)"
DATA = "ASTKIT_DATA"  # environment variable: a folder of datasets
INPUT = "ASTKIT_INPUT"  # environment variable: input folder instead of Kaggle's
DEPTH = 6  # Kaggle mounts at datasets/<owner>/<slug>/, and datasets may contain subfolders
MOST_FOLDERS = 5000
MOST_LISTED = 30


def load_cifar10(root: Path | None, download: bool, size: int | None) -> Parts:
    """Training and test part, uint8 ``[N, 3, 32, 32]``, from the first place that contains them.

    Raises ``FileNotFoundError``, listing every folder searched, if not found, and ``ValueError``
    for damaged or incomplete files.
    """
    places = search_places(root)
    found = find_layout(places)
    if found is None and download:
        _download(places[0])
        found = find_layout(places)
    if found is None:
        names = "; ".join(" or ".join(patterns) for patterns, _ in LAYOUTS.values())
        raise FileNotFoundError(
            f"CIFAR-10 was not found. Looked for {names} in these folders and below them:"
            f"{''.join(map(_listed, places))}\nTo get it, pass download=True, or put one of the"
            " layouts into one of these folders (see data/README.md)."
        )
    folder, layout = found
    _, read = LAYOUTS[layout]
    return read(folder)


def search_places(root: Path | None) -> list[Path]:
    """``root``, else ``ASTKIT_DATA``, ``data/`` of the checkout and of ``.``, Kaggle's input."""
    places = [] if root is None else [root]
    if os.environ.get(DATA):
        places.append(Path(os.environ[DATA]).expanduser())
    if CHECKOUT is not None:
        places.append(CHECKOUT / "data")
    places += [Path.cwd() / "data", Path(os.environ.get(INPUT) or "/kaggle/input")]
    return list(dict.fromkeys(places))


def find_layout(places: list[Path]) -> tuple[Path, str] | None:
    """The folder at or below ``places`` that contains CIFAR-10, and its layout.

    Ties below one place are resolved by the order of ``LAYOUTS``, then by the smallest depth.
    Files train-*.parquet may be of any dataset: below a place, "cifar" must be in their path.
    """
    for place in places:
        ranks = [
            (rank, depth, str(folder), layout)
            for folder, depth in _folders(place)
            for rank, (layout, (patterns, _)) in enumerate(LAYOUTS.items())
            if any(True for pattern in patterns for _ in folder.glob(pattern))
            and (layout != "parquet" or not depth or "cifar" in str(folder).lower())
        ]
        if ranks:
            *_, folder, layout = min(ranks)
            return Path(folder), layout
    return None


def _listed(place: Path) -> str:
    """The folders at and below ``place``, one per line."""
    lines = [f"\n  {folder}" for folder, _ in islice(_folders(place), MOST_LISTED + 1)]
    lines[MOST_LISTED:] = ["\n  ..."] * (len(lines) > MOST_LISTED)
    return "".join(lines) or f"\n  {place} (no such folder)"


def _folders(root: Path) -> Iterator[tuple[Path, int]]:
    """``root`` and the folders below it with their depths, by increasing depth."""
    queue = [(root, 0)] if root.is_dir() else []
    for folder, depth in queue:
        yield folder, depth
        if depth < DEPTH:
            # unlike iterdir, glob passes over a folder without permission to read it
            below = sorted(path for path in folder.glob("[!.]*") if path.is_dir())
            queue += [(path, depth + 1) for path in below]
            del queue[MOST_FOLDERS:]


def _download(place: Path) -> None:
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import download_and_extract_archive

    try:
        download_and_extract_archive(
            CIFAR10.url, str(place), filename=CIFAR10.filename, md5=CIFAR10.tgz_md5
        )
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(
            f"CIFAR-10 was not found locally and its download to {place} failed ({error}); "
            f"fetch {CIFAR10.url} by other means and unpack it there."
        ) from error


def _read_python(folder: Path) -> Parts:
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    class Found(CIFAR10):
        base_folder = ""

        def _load_meta(self) -> None:
            """Skip batches.meta, which contains only the names of the classes."""

    # torchvision unpickles only the published bytes; this names the file that differs
    for name, md5 in CIFAR10.train_list + CIFAR10.test_list:
        if not check_integrity(folder / name, md5):
            raise ValueError(
                f"{folder / name} does not have the published checksum {md5}; {AGAIN}."
            )
    train, test = (
        _images([(torch.from_numpy(part.data).movedim(3, 1), torch.tensor(part.targets))])
        for part in (Found(folder, train=True), Found(folder, train=False))
    )
    return train, test


def _read_parquet(folder: Path) -> Parts:
    # a clone of the Hugging Face repository has its shards one level down
    inner = folder / "plain_text" if shard_files(folder / "plain_text", "train") else folder
    tested = shard_files(inner, "test")
    return _shards(shard_files(inner, "train")), _shards(tested) if tested else None


def _shards(paths: list[Path]) -> Images:
    parts = []
    for picture, label, where in image_rows(paths, MOST_ROWS):
        if picture.shape != (3, 32, 32) or label not in range(len(CLASSES)):
            raise ValueError(
                f"{where} has shape {list(picture.shape)} and label {label}, not "
                f"[3, 32, 32] and 0 to 9, and so is not CIFAR-10; {AGAIN}."
            )
        parts.append((picture[None], torch.tensor([label])))
    return _images(parts)


def _read_folders(folder: Path) -> Parts:
    train, test = load_folders(folder, False, None)
    odd = sorted(set(train.classes) ^ set(CLASSES))
    if odd or train.shape != (3, 32, 32):
        differs = f"the class {odd[0]!r} in one only" if odd else f"shape {list(train.shape)}"
        raise ValueError(
            f"{folder / 'train'} differs from CIFAR-10's ten classes of [3, 32, 32] images"
            f" ({differs}); complete it, or load it as 'folders'."
        )
    return replace(train, name="cifar10"), None if test is None else replace(test, name="cifar10")


def _images(parts: list[tuple[Tensor, Tensor]]) -> Images:
    pixels, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return Images(pixels, labels, CLASSES, "cifar10")


LAYOUTS: dict[str, tuple[tuple[str, str], Callable[[Path], Parts]]] = {
    "python": (("data_batch_[1-5]", "test_batch"), _read_python),
    "parquet": (("train-*.parquet", "plain_text/train-*.parquet"), _read_parquet),
    "folders": (("train/airplane", "train/truck"), _read_folders),
}
"""Names of files or folders that identify a layout, and what reads it."""
