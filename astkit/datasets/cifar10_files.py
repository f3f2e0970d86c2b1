"""The four layouts in which CIFAR-10 is commonly stored, and how to read each."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from astkit.datasets.decode import class_names, read_class_folders
from astkit.datasets.parquet import AGAIN_FILE, decoded, image_column, opened, shard_files

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"
RECORDS = 10_000  # images in each file of the binary version
RECORD_BYTES = 1 + 3 * 32 * 32  # label, then the red, green and blue plane
AGAIN = "fetch CIFAR-10 again (remove the folder and pass download=True)"

Rows = tuple[Tensor, Tensor]
Parts = tuple[Rows, Rows | None]


class Layout(NamedTuple):
    """``look_for``: words for messages; ``present``: is it in this folder; ``read``: both parts."""

    look_for: str
    present: Callable[[Path], bool]
    read: Callable[[Path], Parts]


def _read_python(folder: Path) -> Parts:
    known = _checksums()
    train = [_unpickled(folder / name, known[name]) for name in TRAIN_FILES]
    return _joined(train), _unpickled(folder / TEST_FILE, known[TEST_FILE])


def _checksums() -> dict[str, str]:
    from torchvision.datasets import CIFAR10

    return dict(CIFAR10.train_list + CIFAR10.test_list)


def _unpickled(path: Path, md5: str) -> Rows:
    content = _content(path)
    # a pickle can run any code, so only the published bytes are unpickled
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise ValueError(f"{path} does not have the published checksum {md5}; {AGAIN}.")
    entry = pickle.loads(content, encoding="latin1")
    pixels = torch.from_numpy(entry["data"]).reshape(-1, 3, 32, 32)
    return pixels, torch.tensor(entry["labels"])


def _read_binary(folder: Path) -> Parts:
    train = [_records(folder / f"{name}.bin") for name in TRAIN_FILES]
    return _joined(train), _records(folder / f"{TEST_FILE}.bin")


def _records(path: Path) -> Rows:
    content = _content(path)
    if len(content) != RECORDS * RECORD_BYTES:
        raise ValueError(
            f"{path} has {len(content)} bytes instead of {RECORDS * RECORD_BYTES}; {AGAIN}."
        )
    table = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(RECORDS, RECORD_BYTES)
    labels = table[:, 0].long()
    _check_labels(labels, path)
    return table[:, 1:].reshape(-1, 3, 32, 32), labels


def _read_parquet(folder: Path) -> Parts:
    inner = _parquet_folder(folder)
    train = [_decoded(path) for path in shard_files(inner, "train")]
    test = [_decoded(path) for path in shard_files(inner, "test")]
    if not train:
        raise ValueError(f"{inner} has test-*.parquet but no train-*.parquet; {AGAIN_FILE}.")
    return _joined(train), _joined(test) if test else None


def _parquet_folder(folder: Path) -> Path:
    # a clone of the Hugging Face repository keeps its shards one level down
    plain = folder / "plain_text"
    return plain if shard_files(plain, "train") else folder


def _decoded(path: Path) -> Rows:
    pixels: list[Tensor] = []
    labels: list[int] = []
    with opened(path) as file:
        column = image_column(path, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=1000, columns=[column, "label"]):
            labels.extend(batch.column("label").to_pylist())
            for item in batch.column(column).to_pylist():
                pixels.append(decoded(item, f"Row {len(pixels)} of {path}"))
    if not pixels:
        raise ValueError(f"{path} has no rows; {AGAIN_FILE}.")
    try:
        labelled = torch.tensor(labels, dtype=torch.int64)
        stacked = torch.stack(pixels)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is not CIFAR-10 ({error}); {AGAIN_FILE}.") from error
    _check_labels(labelled, path)
    return stacked, labelled


def _read_folders(folder: Path) -> Parts:
    parts: list[Rows] = []
    for part in ("train", "test"):
        names = class_names(folder / part)
        if names and names != CLASSES:
            odd = sorted(set(names) ^ set(CLASSES))[0]
            raise ValueError(
                f"{folder / part} has not exactly CIFAR-10's ten classes with images (look at "
                f"{odd!r}); complete it, or load it as 'folders'."
            )
        if names:
            parts.append(read_class_folders(folder / part, CLASSES, None))
    return parts[0], parts[1] if len(parts) > 1 else None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing beside its sister files; {AGAIN}.") from error


def _check_labels(labels: Tensor, path: Path) -> None:
    if int(labels.min()) < 0 or int(labels.max()) >= len(CLASSES):
        raise ValueError(f"{path} has labels outside 0 to 9; {AGAIN_FILE}.")


def _joined(parts: list[Rows]) -> Rows:
    try:
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    except RuntimeError as error:
        raise ValueError(f"The files hold images of different sizes; {AGAIN_FILE}.") from error


def _any_file(folder: Path, suffix: str) -> bool:
    return any((folder / f"{name}{suffix}").is_file() for name in (*TRAIN_FILES, TEST_FILE))


def _has_parquet(folder: Path) -> bool:
    inner = _parquet_folder(folder)
    return any(inner.glob("train-*.parquet")) or any(inner.glob("test-*.parquet"))


LAYOUTS: dict[str, Layout] = {
    "python": Layout(
        "cifar-10-batches-py/data_batch_*", lambda folder: _any_file(folder, ""), _read_python
    ),
    "binary": Layout(
        "cifar-10-batches-bin/data_batch_*.bin",
        lambda folder: _any_file(folder, ".bin"),
        _read_binary,
    ),
    "parquet": Layout("train-*.parquet and test-*.parquet", _has_parquet, _read_parquet),
    "folders": Layout(
        "train/<class>/*.png or *.jpg",
        lambda folder: any((folder / "train" / name).is_dir() for name in CLASSES),
        _read_folders,
    ),
}
