"""What can be known of a data set before training: labels, repeated rows, rows shared by parts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from hashlib import blake2b
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
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

from astkit.datasets.foreign import ForeignLoader, sampler_of
from astkit.datasets.loader import Loader
from astkit.rng import restored

NAMES = ("labels", "targets", "label")
"""Attributes and columns in which class labels are looked for."""
TRANSFORMS = ("transform", "transforms")
"""Attributes in which torchvision's data sets, and others like them, keep what changes rows."""
LARGEST = 2**30
"""Bytes of the largest data of which `distinct_rows` reads all."""
SAMPLED = 16
"""Rows that are read to compare their targets with the labels."""


def class_labels(data: Any) -> Tensor | None:
    """Class labels of a data set, int64 ``[rows]``, or ``None``.

    The attribute ``labels`` or ``targets``; of a Hugging Face data set, an integer column of this
    name or ``label``; of a TensorDataset, the last of several tensors, if it holds one integer per
    row, each less than their number. Of a DataLoader its data set counts, of a Subset and a
    ConcatDataset their parts.

    They are compared with the targets of a few rows: ``None`` if these are other numbers, as with a
    ``target_transform`` of torchvision.
    """
    data, rows, _ = inside(data)
    if rows is not None:
        whole = class_labels(data)
        return None if whole is None else whole[rows]
    if isinstance(data, ConcatDataset):
        parts = [class_labels(part) for part in data.datasets]
        known = [labels for labels in parts if labels is not None]
        return torch.cat(known) if len(known) == len(parts) else None
    stored = _stored_labels(data)
    if stored is not None:
        for row, item in sampled_rows(data) or ():
            if _target(item) not in (None, int(stored[row])):
                return None
    return stored


def row_groups(data: Any) -> Tensor | None:
    """Groups of rows that depend on each other, as those of one patient: int64 ``[rows]`` from 0.

    The attribute or integer column ``groups`` of a data set, with one number or name a row, else
    ``None``; of loaders and Subsets that of their data. Raises ``ValueError`` for another length.
    """
    data, rows, _ = inside(data)
    groups = _column(data, "groups")
    if groups is None:
        return None
    numbers = torch.from_numpy(np.unique(np.asarray(groups), return_inverse=True)[1])
    if len(numbers) != len(data):
        raise ValueError(
            f"groups of the data has {len(numbers)} entries for {len(data)} rows: give one a row"
        )
    numbers = numbers if rows is None else numbers[rows]
    return numbers.unique(return_inverse=True)[1]


def distinct_rows(data: Any) -> int | None:
    """Number of different rows, if the inputs are one tensor in memory of at most `LARGEST` bytes.

    The tensor is the attribute ``images``, or the first of a TensorDataset. Rows are compared by a
    64-bit hash.
    """
    data, rows, _ = inside(data)
    inputs = next(iter(getattr(data, "tensors", ())), getattr(data, "images", None))
    if not isinstance(inputs, Tensor) or inputs.nbytes > LARGEST:
        return None
    inputs = inputs if rows is None else inputs[rows]
    content = inputs.cpu().reshape(len(inputs), -1).contiguous().view(torch.uint8).numpy()
    return len({hash(row.tobytes()) for row in content})


def shared_rows(train: Any, validation: Any, test: Any) -> dict[tuple[str, str], int]:
    """How many rows of one part another one contains, by the names of both; only if there are any.

    Every row is read once, see `read_alike`, and compared by a 64-bit hash of its inputs; none of a
    part whose rows are not known. A part may be ``None``.
    """
    parts = {"train": read_alike(train, test), "validation": validation, "test": test}
    hashed = {name: _hashed(data) for name, data in parts.items()}
    pairs = {}
    for one, other in combinations(hashed, 2):
        # numpy 2.0 overflows where it looks large numbers up in a table
        count = int(np.isin(hashed[one], hashed[other], kind="sort").sum())
        if count:
            pairs[one, other] = count
    return pairs


def _hashed(data: Any) -> np.ndarray[Any, Any]:
    """Hashes of the inputs of all rows, uint64; none if it is not known which rows are loaded."""
    known = not isinstance(data.loader if isinstance(data, ForeignLoader) else data, list)
    data, rows, told = inside(data)
    known = known and told and hasattr(data, "__getitem__")
    if not known or isinstance(data, IterableDataset):
        return np.empty(0, np.uint64)
    numbers = range(len(data)) if rows is None else rows.tolist()
    with restored():
        hashes = [_input_hash(data[row]) for row in numbers]
    return np.array([] if None in hashes else hashes, np.uint64)


def _input_hash(item: Any) -> int | None:
    """Hash of the inputs of an item: without its last part, or `NAMES` of a mapping.

    ``None`` for objects that are neither arrays nor plain values.
    """
    inputs = item
    if isinstance(item, Mapping):
        inputs = [value for key, value in item.items() if key not in NAMES]
    elif isinstance(item, tuple | list) and len(item) > 1:
        inputs = item[:-1]
    digest = blake2b(digest_size=8)
    for leaf in pytree.tree_leaves(inputs):
        value = leaf
        if isinstance(leaf, Tensor):
            real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            # float64 does not tell large integers apart
            wide = torch.float64 if real.is_floating_point() else torch.int64
            value = real.detach().cpu().to(wide).numpy()
        elif hasattr(leaf, "__array_interface__"):  # as PIL's images have
            value = np.asarray(leaf)
        elif not isinstance(leaf, str | bytes | int | float | complex | None):
            return None
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        digest.update(f"|{np.shape(value)}|".encode())  # else the next leaf could go on with it
    return int.from_bytes(digest.digest(), "big")


def varies(data: Any) -> bool:
    """Whether inputs differ from one reading of a row to the next, as by random transforms."""
    readings = []
    for number in range(2):
        with restored("cpu", "reading", number):
            readings.append([_input_hash(item) for _, item in sampled_rows(data) or ()])
    return readings[0] != readings[1]


def read_alike(data: Any, target: Any) -> Any:
    """``data`` whose rows are transformed as those of ``target``, if its own transforms are random.

    Those are the attributes `TRANSFORMS` of both; without them ``data`` are unchanged.
    """
    whole, rows, known = inside(data)
    wanted = inside(target)[0]
    both = [name for name in TRANSFORMS if hasattr(whole, name) and hasattr(wanted, name)]
    if not known or not both or not varies(whole):
        return data
    alike = copy.copy(whole)
    for name in both:
        setattr(alike, name, getattr(wanted, name))
    return alike if rows is None else Subset(alike, rows.tolist())


def inside(data: Any) -> tuple[Any, Tensor | None, bool]:
    """The data set within loaders and subsets, its rows in them, and whether these are known.

    The rows are ``None`` for all in order, or if a sampler does not tell which it draws.
    """
    rows, known = None, True
    while True:
        if isinstance(data, DataLoader):
            sampler, data = sampler_of(data), data.dataset
            if isinstance(sampler, SubsetRandomSampler):
                rows = torch.as_tensor(sampler.indices, dtype=torch.int64)
            else:  # may count the rows of data of its own
                whole = isinstance(sampler, RandomSampler | SequentialSampler)
                known = whole and len(sampler) == len(data)
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
            return data, rows, known


def _stored_labels(data: Any) -> Tensor | None:
    """Labels in an attribute or column of ``data``, int64 ``[rows]``."""
    columns = [_column(data, name) for name in NAMES]
    if isinstance(data, TensorDataset) and len(data.tensors) > 1 and len(data):
        last = data.tensors[-1]
        if last.ndim == 1 and not last.is_floating_point() and not last.is_complex():
            last = last.long()  # a length may be too large for its type
            # other integers, such as counts, may be far larger
            columns += [last] if int(last.min()) >= 0 and int(last.max()) < len(last) else []
    for column in columns:
        if not hasattr(column, "__len__") or not hasattr(data, "__len__"):
            continue
        try:
            labels = torch.as_tensor(column if isinstance(column, Tensor) else np.array(column))
        except (TypeError, ValueError, RuntimeError):
            continue
        if labels.shape == (len(data),) and not labels.is_floating_point():
            return labels.cpu().long()
    return None


def _column(data: Any, name: str) -> Any:
    """Attribute of a data set, or integer column of a Hugging Face one; ``None`` without it."""
    if not hasattr(data, "column_names"):
        return getattr(data, name, None)
    kind = getattr((data.features or {}).get(name), "dtype", "")
    integers = isinstance(kind, str) and "int" in kind and hasattr(data, "__len__")
    return data.with_format("numpy")[name][:] if integers else None  # without a transform


def _target(item: Any) -> float | None:
    """The last part of a row, or the first of `NAMES` in a mapping, if it is a number."""
    if isinstance(item, Mapping):
        return as_number(next((item[name] for name in NAMES if name in item), None))
    return as_number(item[-1]) if isinstance(item, tuple | list) and len(item) > 1 else None


def sampled_rows(data: Any) -> list[tuple[int, Any]] | None:
    """Up to `SAMPLED` evenly spaced rows of ``data`` with their numbers; ``None`` if unreadable.

    Default random generators are restored.
    """
    sized = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, IterableDataset) or not sized or not len(data):
        return None
    places = torch.linspace(0, len(data) - 1, min(SAMPLED, len(data))).long()
    with restored():
        return [(number, data[number]) for number in places.tolist()]


def as_number(value: Any) -> float | None:
    """A number, also as a tensor or array of one element; ``None`` for anything else."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        return None
