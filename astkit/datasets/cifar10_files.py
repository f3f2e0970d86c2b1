"""The four layouts in which CIFAR-10 is commonly stored, and how to read each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from astkit.datasets.decode import regular
from astkit.datasets.images import Images
from astkit.datasets.parquet import ParquetImages, shard_files
from astkit.datasets.sources import Parts, load_folders

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
RECORDS = 10_000  # images in each file of the binary version
RECORD_BYTES = 1 + 3 * 32 * 32  # label, then the red, green and blue plane
MOST_ROWS = 50_000  # in a part
AGAIN = "fetch CIFAR-10 again (remove the folder and pass download=True)"


class Layout(NamedTuple):
    """``patterns``: any of these in a folder tells the layout; ``read``: both parts from there."""

    patterns: tuple[str, ...]
    read: Callable[[Path], Parts]

    def present(self, folder: Path) -> bool:
        """Whether ``folder`` holds files of this layout."""
        return any(True for pattern in self.patterns for _ in folder.glob(pattern))


def looked_for() -> str:
    """All layouts, for messages."""
    return "; ".join(" or ".join(layout.patterns) for layout in LAYOUTS.values())


def _read_python(folder: Path) -> Parts:
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    class Found(CIFAR10):
        base_folder = ""

        def _load_meta(self) -> None:
            """Reads no batches.meta: it holds the names of the classes only."""

    # torchvision unpickles nothing but the published bytes; this says which file differs
    for name, md5 in CIFAR10.train_list + CIFAR10.test_list:
        if not check_integrity(folder / name, md5):
            raise ValueError(f"{folder / name} has not the published checksum {md5}; {AGAIN}.")
    train, test = (
        _images([(torch.from_numpy(part.data).movedim(3, 1), torch.tensor(part.targets))])
        for part in (Found(folder, train=True), Found(folder, train=False))
    )
    return train, test


def _read_binary(folder: Path) -> Parts:
    parts = [_records(folder / f"{name}.bin") for name in NAMES]
    return _images(parts[:-1]), _images(parts[-1:])


def _records(path: Path) -> tuple[Tensor, Tensor]:
    size = regular(path, AGAIN).stat().st_size
    if size != RECORDS * RECORD_BYTES:
        raise ValueError(f"{path} has {size} bytes, not {RECORDS * RECORD_BYTES}; {AGAIN}.")
    table = torch.from_numpy(np.fromfile(path, np.uint8)).view(RECORDS, RECORD_BYTES)
    if int(table[:, 0].max()) >= len(CLASSES):
        raise ValueError(f"{path} has labels outside 0 to 9; {AGAIN}.")
    return table[:, 1:].view(-1, 3, 32, 32), table[:, 0].long()


def _read_parquet(folder: Path) -> Parts:
    # a clone of the Hugging Face repository keeps its shards one level down
    inner = folder / "plain_text" if shard_files(folder / "plain_text", "train") else folder
    tested = shard_files(inner, "test")
    return _shards(shard_files(inner, "train")), _shards(tested) if tested else None


def _shards(paths: list[Path]) -> Images:
    data, parts = ParquetImages(paths), []
    if len(data) > MOST_ROWS:
        raise ValueError(f"{paths[0].parent} has {len(data)} rows, not {MOST_ROWS}; {AGAIN}.")
    for row in range(len(data)):
        picture, label = data[row]
        if picture.shape != (3, 32, 32) or label not in range(len(CLASSES)):
            raise ValueError(
                f"{data.where(row)} has shape {list(picture.shape)} and label {label}, not "
                f"[3, 32, 32] and 0 to 9, and so is not CIFAR-10; {AGAIN}."
            )
        parts.append((picture[None], torch.tensor([label])))
    return _images(parts)


def _read_folders(folder: Path) -> Parts:
    train, test = load_folders(folder, False, None)
    odd = sorted(set(train.classes) ^ set(CLASSES))
    if odd:
        raise ValueError(
            f"{folder / 'train'} has not exactly CIFAR-10's ten classes with images (look at "
            f"{odd[0]!r}); complete it, or load it as 'folders'."
        )
    parts = [train] if test is None else [train, test]
    if any(part.shape != (3, 32, 32) for part in parts):
        raise ValueError(
            f"The images in {folder} have shape {list(train.shape)} instead of [3, 32, 32]; "
            "this is not CIFAR-10: load it as 'folders'."
        )
    named = [replace(part, name="cifar10") for part in parts]
    return named[0], named[1] if test is not None else None


def _images(parts: list[tuple[Tensor, Tensor]]) -> Images:
    pixels, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return Images(pixels, labels, CLASSES, "cifar10")


LAYOUTS = {
    "python": Layout(("data_batch_[1-5]", "test_batch"), _read_python),
    "binary": Layout(("data_batch_[1-5].bin", "test_batch.bin"), _read_binary),
    "parquet": Layout(
        ("train-*.parquet", "test-*.parquet", "plain_text/train-*.parquet"), _read_parquet
    ),
    "folders": Layout(("train/airplane", "train/truck"), _read_folders),
}
