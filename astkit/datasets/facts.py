"""What can be known of a data set before training: labels, repeated rows, rows shared by parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from astkit.datasets.batch import tensors
from astkit.datasets.foreign import ForeignLoader, sampler_of
from astkit.datasets.loader import Loader, as_number, sampled_rows
from astkit.rng import restored

NAMES = ("labels", "targets", "label")
"""Attributes and columns in which class labels are looked for."""
LARGEST = 2**30
"""Bytes of the largest data of which `distinct_rows` reads all."""
MOST_CLASSES = 100
"""Classes of which rows are read to learn what a ``target_transform`` makes of them, at most."""


def class_labels(data: Any, samples: int | None = None) -> Tensor | None:
    """Class labels of a data set, int64 ``[samples]``, or ``None``.

    The attribute ``labels`` or ``targets``; of a Hugging Face data set, an integer column of this
    name or ``label``; of a TensorDataset, the last of several tensors, if it holds one integer per
    row, each less than their number. Of a DataLoader its data set counts, of a Subset and a
    ConcatDataset their parts. ``samples``: by default the length of ``data``.

    They are compared with the targets of a few rows. If these differ, as with a
    ``target_transform`` of torchvision, the classes that the rows have instead are returned, or
    ``None`` if a stored label does not determine them.
    """
    data, rows = inside(data)
    if samples is None:
        samples = len(data if rows is None else rows) if hasattr(data, "__len__") else -1
    if rows is not None:
        whole = class_labels(data)
        return None if whole is None or len(rows) != samples else whole[rows]
    if isinstance(data, ConcatDataset):
        parts = [class_labels(part) for part in data.datasets]
        known = [labels for labels in parts if labels is not None]
        return torch.cat(known) if len(known) == len(parts) and len(data) == samples else None
    stored = _stored_labels(data, samples)
    return None if stored is None else _as_read(data, stored)


def distinct_rows(data: Any) -> int | None:
    """Number of different rows, if the inputs are one tensor in memory of at most `LARGEST` bytes.

    The tensor is the attribute ``images``, or the first of a TensorDataset. Rows are compared by a
    64-bit hash.
    """
    data, rows = inside(data)
    inputs = next(iter(getattr(data, "tensors", ())), getattr(data, "images", None))
    if not isinstance(inputs, Tensor) or inputs.nbytes > LARGEST:
        return None
    inputs = inputs if rows is None else inputs[rows]
    content = inputs.cpu().reshape(len(inputs), -1).contiguous().view(torch.uint8).numpy()
    return len({hash(row.tobytes()) for row in content})


class SharedRows(NamedTuple):
    """Rows of two parts of the data with equal inputs.

    ``first``, ``second``: the rows of either part whose inputs the other one contains, int64;
    ``equal_targets``: how many of ``first`` have the target of such a row as well; ``share``: the
    number of such rows in the smaller part, divided by its size.
    """

    first: Tensor
    second: Tensor
    equal_targets: int
    share: float


def shared_rows(train: Any, validation: Any, test: Any) -> dict[tuple[str, str], SharedRows] | None:
    """Rows that two of the three parts share, by the names of the parts; only pairs that share any.

    Every row is read once, and compared by a 64-bit hash of its inputs. ``None`` if the rows of a
    part are not known, or if a row differs when it is read again, as with random transforms. A part
    may be ``None``.
    """
    hashed: dict[str, _Hashed] = {}
    for name, data in (("train", train), ("validation", validation), ("test", test)):
        if data is None:
            continue
        rows = _hashed(data)
        if rows is None:
            return None
        hashed[name] = rows
    pairs = {}
    for first, second in combinations(hashed, 2):
        one, other = hashed[first], hashed[second]
        in_one = np.isin(one.inputs, other.inputs)
        in_other = np.isin(other.inputs, one.inputs)
        if not in_one.any():
            continue
        smaller = in_one if len(in_one) < len(in_other) else in_other
        pairs[first, second] = SharedRows(
            torch.from_numpy(one.numbers[in_one]),
            torch.from_numpy(other.numbers[in_other]),
            int(np.isin(one.items[in_one], other.items).sum()),
            float(smaller.mean()),
        )
    return pairs


class _Hashed(NamedTuple):
    """Numbers of rows in a data set, and hashes of their inputs and of their inputs and targets."""

    numbers: np.ndarray[Any, np.dtype[np.int64]]
    inputs: np.ndarray[Any, np.dtype[np.uint64]]
    items: np.ndarray[Any, np.dtype[np.uint64]]


def _hashed(data: Any) -> _Hashed | None:
    """Hashes of all rows of ``data``; ``None`` if they are unknown or random."""
    if isinstance(data, ForeignLoader):
        data = data.loader
    drawn = None  # rows that a DataLoader draws
    if isinstance(data, DataLoader):
        sampler = sampler_of(data)
        if isinstance(sampler, SubsetRandomSampler):
            drawn = list(sampler.indices)
        elif not isinstance(sampler, RandomSampler | SequentialSampler):
            return None
    if isinstance(data, list | tuple):  # of batches
        return None
    data, rows = inside(data)
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        return None
    numbers = range(len(data) if rows is None else len(rows)) if drawn is None else drawn
    hashes: list[tuple[int, int]] = []
    with restored():
        for number in numbers:
            row = number if rows is None else int(rows[number])
            if not hashes and _row_hash(data[row]) != _row_hash(data[row]):
                return None
            hashes.append(_row_hash(data[row]))
    inputs, items = np.array(hashes, np.uint64).reshape(-1, 2).T
    return _Hashed(np.array(numbers, np.int64), inputs, items)


def _row_hash(item: Any) -> tuple[int, int]:
    """Hashes of an item's inputs, and of all of it; in a mapping, `NAMES` are targets."""
    if isinstance(item, Mapping):
        parts = [(key in NAMES, value) for key, value in item.items()]
    elif isinstance(item, tuple | list) and len(item) > 1:
        parts = [(number == len(item) - 1, value) for number, value in enumerate(item)]
    else:
        parts = [(False, item)]
    inputs, whole = blake2b(digest_size=8), blake2b(digest_size=8)
    for is_target, value in parts:
        content = b"".join(_bytes(value))
        whole.update(content)
        if not is_target:
            inputs.update(content)
    return int.from_bytes(inputs.digest(), "big"), int.from_bytes(whole.digest(), "big")


def _bytes(value: Any) -> Iterator[bytes]:
    leaves = list(tensors(value))
    if not leaves:
        yield value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
    for leaf in leaves:
        flat = torch.empty(leaf.numel(), dtype=leaf.dtype)  # one value may keep any stride
        flat.copy_(leaf.detach().reshape(-1))
        yield flat.view(torch.uint8).numpy().tobytes()


def inside(data: Any) -> tuple[Any, Tensor | None]:
    """The data set within loaders and subsets, and its rows in them; ``None`` for all in order."""
    rows = None
    while True:
        if isinstance(data, DataLoader):
            data = data.dataset
        elif isinstance(data, Loader):
            data = data.data
        elif isinstance(data, ForeignLoader):
            data = data.loader
        elif hasattr(data, "indexed_data"):
            data = data.indexed_data
        elif isinstance(data, Subset) and not any(hasattr(data, name) for name in NAMES):
            own = torch.as_tensor(data.indices, dtype=torch.int64)
            data, rows = data.dataset, own if rows is None else own[rows]
        else:
            return data, rows


def _stored_labels(data: Any, samples: int) -> Tensor | None:
    """Labels in an attribute or column of ``data``, int64 ``[samples]``."""
    columns = [_column(data, name) for name in NAMES]
    if isinstance(data, TensorDataset) and len(data.tensors) > 1 and len(data):
        last = data.tensors[-1]  # other integers, such as counts, may be far larger
        columns += [last] if 0 <= last.min() <= last.max() < len(last) else []
    for column in columns:
        if column is None or not hasattr(column, "__len__") or len(column) != samples:
            continue
        try:
            labels = torch.as_tensor(column if isinstance(column, Tensor) else np.array(column))
        except (TypeError, ValueError, RuntimeError):
            continue
        if labels.ndim == 1 and not labels.is_floating_point():
            return labels.cpu().long()
    return None


def _column(data: Any, name: str) -> Any:
    """Attribute of a data set, or integer column of a Hugging Face one; ``None`` without it."""
    if not hasattr(data, "column_names"):
        return getattr(data, name, None)
    kind = getattr((data.features or {}).get(name), "dtype", "")
    integers = isinstance(kind, str) and "int" in kind and hasattr(data, "__len__")
    return data.with_format("numpy")[name][:] if integers else None  # without a transform


def _as_read(data: Any, stored: Tensor) -> Tensor | None:
    """``stored`` labels, or those that the rows of ``data`` have instead; see `class_labels`."""
    read = [(int(stored[row]), _numbers(item)) for row, item in sampled_rows(data) or []]
    if all(numbers[-1] is None for _, numbers in read):
        return stored
    for place in range(min(len(numbers) for _, numbers in read)):
        if all(numbers[place] == label for label, numbers in read):
            return stored
    classes, number = stored.unique(return_inverse=True)
    if len(classes) > MOST_CLASSES:
        return None
    become = torch.empty_like(classes)
    for place in range(len(classes)):
        of_class = (number == place).nonzero().squeeze(1)
        few = of_class[[0, len(of_class) // 2, -1]].tolist()
        with restored():
            targets = {_numbers(data[row])[-1] for row in few}
        target = targets.pop()
        if targets or target is None or target != int(target):
            return None
        become[place] = int(target)
    return become[number] if len(become.unique()) > 1 else None


def _numbers(item: Any) -> list[float | None]:
    """The parts of a row after its first, as numbers; of a mapping, the first of `NAMES`.

    The target is the last one; ``None`` for other values.
    """
    if isinstance(item, Mapping):
        parts = [item[name] for name in NAMES if name in item][:1]
    else:
        parts = list(item[1:]) if isinstance(item, tuple | list) else []
    return [as_number(part) for part in parts] or [None]
