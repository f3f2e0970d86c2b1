"""What can be known of a data set before training: labels, repeated rows, rows shared by parts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from itertools import combinations
from numbers import Number
from typing import Any, NamedTuple

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
from astkit.datasets.table import Table
from astkit.rng import restored

NAMES = ("labels", "targets", "label")
"""Attributes and columns in which class labels are looked for."""
TRANSFORMS = ("transform", "transforms")
"""Attributes in which torchvision's data sets, and others like them, keep what changes rows."""
NAMED = "give one number or name a row, such as f'{hospital}/{patient}' or groups.reshape(-1)"
UNNAMED = "name the group of every row; one that depends on no other is a group of its own"
RARE = 5
"""Rows of each class that whole numbers have at least, if they are to be taken for classes."""
SAMPLED = 16
"""Rows that are read to compare their targets with the labels."""


def class_labels(
    data: Any, classes: bool | None = True, ignored: int | None = None
) -> Tensor | None:
    """Class labels of a data set, int64 ``[rows]``, or ``None``.

    The attribute ``labels`` or ``targets``; of a Hugging Face data set, an integer column of this
    name or ``label``; of a TensorDataset, the last of several tensors, if it holds one integer per
    row, each less than their number. Of a DataLoader its data set counts, of a Subset and a
    ConcatDataset their parts.

    ``classes``: whether whole numbers name classes, not counts or ages. Where that is not known,
    ``None``, those of a TensorDataset do if each from 0 to the largest occurs, in `RARE` rows.
    ``ignored``: a label that may stand for none.

    They are compared with the targets of a few rows: ``None`` if these are other numbers, as with a
    ``target_transform`` of torchvision.
    """
    if classes is False:
        return None
    data, rows, _ = underlying(data)
    if rows is not None:
        whole = class_labels(data, classes, ignored)
        return None if whole is None else whole[rows]
    if isinstance(data, ConcatDataset):
        parts = [class_labels(part, classes, ignored) for part in data.datasets]
        known = [labels for labels in parts if labels is not None]
        return torch.cat(known) if len(known) == len(parts) else None
    stored = _stored_labels(data, classes, ignored)
    if stored is not None:
        for row, item in spaced_rows(data) or ():
            if _target(item) not in (None, int(stored[row])):
                return None
    return stored


def labelled_rows(data: Any, ignored: int) -> Tensor | None:
    """Which rows have a label other than ``ignored``, bool ``[rows]``; ``None``: not known.

    Known are class labels, and other whole-number targets of a TensorDataset, of which one of a row
    is enough.
    """
    data, rows, _ = underlying(data)
    if rows is not None:
        whole = labelled_rows(data, ignored)
        return None if whole is None else whole[rows]
    if isinstance(data, ConcatDataset):
        parts = [labelled_rows(part, ignored) for part in data.datasets]
        known = [part for part in parts if part is not None]
        return torch.cat(known) if len(known) == len(parts) else None
    stored = class_labels(data, ignored=ignored)
    if stored is None and isinstance(data, TensorDataset):
        last = data.tensors[-1].cpu()
        stored = None if last.is_floating_point() or last.is_complex() else last
    return None if stored is None else (stored != ignored).unsqueeze(1).flatten(1).any(1)


def row_groups(data: Any, part: str = "data") -> Tensor | None:
    """Groups of rows that depend on each other, as those of one patient: int64 ``[rows]`` from 0.

    The attribute or column ``groups`` of a data set, with one number or name a row, or of what a
    loader, Subset or ConcatDataset holds, at any depth; the outermost counts. Equal names in parts
    of a ConcatDataset are one group. ``None`` without groups. Raises ``ValueError`` for anything
    else than one number or name for every row; ``part`` names the data in the message.
    """
    names = group_names(data, part)
    return None if names is None else torch.from_numpy(np.unique(names, return_inverse=True)[1])


def paired_groups(train: Any, target: Any) -> tuple[Tensor | None, Tensor | None]:
    """Groups of the training data and of the target, of both or of neither.

    Raises ``ValueError`` if one of them alone has groups: the rows of the other would be compared
    with whole groups.
    """
    found = row_groups(train, "training data"), row_groups(target, "target")
    if (found[0] is None) != (found[1] is None):
        have, lack = ("training data", "target")[:: 1 if found[1] is None else -1]
        known = f"groups is known for the {have} and not for the {lack}"
        raise ValueError(f"{known}: give both data sets an attribute groups, or neither")
    return found


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
    """Hashes of the inputs of all rows, int64; none if it is not known which rows are loaded."""
    known = not isinstance(data.loader if isinstance(data, ForeignLoader) else data, list)
    data, rows, told = underlying(data)
    known = known and told and hasattr(data, "__getitem__")
    if not known or isinstance(data, IterableDataset):
        return np.empty(0, np.int64)
    if isinstance(data, Table):  # in which many rows may have the same few words
        return data.hashes() if rows is None else data.hashes()[rows.numpy()]
    numbers = range(len(data)) if rows is None else rows.tolist()
    with restored():
        hashes = [_input_hash(data[row]) for row in numbers]
    return np.array([] if None in hashes else hashes, np.int64)


def _input_hash(item: Any) -> int | None:
    """Hash of the inputs of an item: without its last part, or `NAMES` of a mapping."""
    if isinstance(item, Mapping):
        return hash_of([value for key, value in item.items() if key not in NAMES])
    return hash_of(item[:-1] if isinstance(item, tuple | list) and len(item) > 1 else item)


def hash_of(inputs: Any) -> int | None:
    """A hash of 64 bits of the inputs of a row, the same in each process.

    ``None`` for objects that are neither arrays nor plain values.
    """
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
    return int.from_bytes(digest.digest(), "big", signed=True)


def varies(data: Any) -> bool:
    """Whether inputs differ from one reading of a row to the next, as by random transforms."""
    readings = []
    for number in range(2):
        with restored("cpu", "reading", number):
            readings.append([_input_hash(item) for _, item in spaced_rows(data) or ()])
    return readings[0] != readings[1]


def read_alike(data: Any, target: Any) -> Any:
    """``data`` whose rows are transformed as those of ``target``, if its own transforms are random.

    Those are the attributes `TRANSFORMS` of both; without them ``data`` are unchanged.
    """
    whole, rows, known = underlying(data)
    wanted = underlying(target)[0]
    both = [name for name in TRANSFORMS if hasattr(whole, name) and hasattr(wanted, name)]
    if not known or not both or not varies(whole):
        return data
    alike = copy.copy(whole)
    for name in both:
        setattr(alike, name, getattr(wanted, name))
    if rows is None:
        return alike
    part = Subset(alike, rows.tolist())
    if (groups := row_groups(data)) is not None:
        part.groups = groups  # type: ignore[attr-defined]
    return part


class Within(NamedTuple):
    """What a loader or wrapper holds, its rows there, and whether these are known.

    The rows are ``None`` for all in order, or if a sampler does not tell which it draws.
    """

    data: Any
    rows: Tensor | None = None
    known: bool = True


def within(data: Any) -> Within | None:
    """What ``data`` hold, one level further in; ``None`` for a data set."""
    if isinstance(data, DataLoader):
        sampler = sampler_of(data)
        if isinstance(sampler, SubsetRandomSampler):
            return Within(data.dataset, torch.as_tensor(sampler.indices, dtype=torch.int64))
        # may count the rows of data of its own
        whole = isinstance(sampler, RandomSampler | SequentialSampler)
        inner: Any = data.dataset
        return Within(inner, None, whole and len(sampler) == len(inner))
    if isinstance(data, Loader):
        return Within(data.data)
    if isinstance(data, ForeignLoader):
        return Within(data.loader)
    if hasattr(data, "indexed_data"):
        return Within(data.indexed_data)
    if isinstance(data, Subset):
        return Within(data.dataset, torch.as_tensor(data.indices, dtype=torch.int64))
    return None


def underlying(data: Any) -> tuple[Any, Tensor | None, bool]:
    """The data set within loaders and subsets, its rows in them, and whether these are known.

    A Subset with labels of its own is a data set. See `Within`.
    """
    rows, known = None, True
    while (held := within(data)) is not None:
        if isinstance(data, Subset) and any(hasattr(data, name) for name in NAMES):
            break
        data, known = held.data, known and held.known
        if held.rows is not None:
            rows = held.rows if rows is None else held.rows[rows]
    return data, rows, known


def group_names(data: Any, part: str = "data") -> np.ndarray[Any, Any] | None:
    """Numbers or names of the groups of the rows of ``data``, ``[rows]``."""
    if hasattr(data, "column_names"):  # of Hugging Face
        known = hasattr(data, "__len__") and "groups" in data.column_names
        held = data.with_format("numpy")["groups"][:] if known else None
    else:
        held = getattr(data, "groups", None)
    if held is not None:
        return _checked(held, len(data), part)
    if isinstance(data, ConcatDataset):
        found = [group_names(each, part) for each in data.datasets]
        some = [names for names in found if names is not None]
        if some and len(some) < len(found):
            place = next(n for n, names in enumerate(found) if names is None)
            lacks = f"groups of the {part}: part {place} of the ConcatDataset has none"
            raise ValueError(f"{lacks}, and others have: give each an attribute groups")
        return np.concatenate(some) if some else None
    inner = within(data)
    if inner is None:
        return None
    names = group_names(inner.data, part)
    return names if names is None or inner.rows is None else names[inner.rows.numpy()]


def _checked(groups: Any, rows: int, part: str) -> np.ndarray[Any, Any]:
    """``groups`` as an array ``[rows]`` of numbers or names."""
    remedy = NAMED
    if isinstance(groups, Tensor):
        groups = groups.numpy(force=True)
    elif isinstance(groups, list | tuple):  # numpy would make NaN among words a word
        numbers = (each.tolist() if isinstance(each, Tensor) else each for each in groups)
        groups = np.asarray([*numbers], object)
    values = np.asarray(groups)
    wrong = ""
    if not hasattr(groups, "__len__") or isinstance(groups, str | bytes | dict | set):
        wrong = f"is a {type(groups).__name__}, {groups!r:.60}"
    elif values.ndim != 1:
        wrong = f"is of the shape {list(values.shape)}"
    elif len(values) != rows:
        wrong = f"has {len(values)} entries for {rows} rows"
    elif values.dtype.kind in "OfcmM":
        for row, value in enumerate(values):
            if isinstance(value, tuple | list | dict | set | np.ndarray):
                wrong = f"is {value!r:.60} in row {row}"
            # of pandas, whose NA is not even equal to itself or not
            elif value is None or type(value).__name__ == "NAType" or value != value:
                wrong, remedy = f"is {value} in row {row}", UNNAMED
            if wrong:
                break
    if wrong:
        raise ValueError(f"groups of the {part} {wrong}: {remedy}")
    if values.dtype == object and not all(isinstance(value, Number) for value in values):
        return values.astype(str)
    return values


def like_classes(numbers: Tensor) -> bool:
    """Whether whole ``numbers [rows]`` look like classes: none from 0 to the largest is rare.

    Counts and rounded values have rare ones at their ends. Of few rows, a quarter of the mean
    number of rows is enough.
    """
    if not len(numbers) or int(numbers.min()) < 0 or int(numbers.max()) >= len(numbers):
        return False
    counts = numbers.long().bincount()
    return int(counts.min()) >= min(RARE, len(numbers) / len(counts) / 4)


def _stored_labels(data: Any, classes: bool | None, ignored: int | None) -> Tensor | None:
    """Labels in an attribute or column of ``data``, int64 ``[rows]``."""
    columns = [_column(data, name) for name in NAMES]
    if isinstance(data, TensorDataset) and len(data.tensors) > 1 and len(data):
        last = data.tensors[-1]
        if last.shape.numel() == len(last) and not (last.is_floating_point() or last.is_complex()):
            last = last.long().flatten()  # a length may be too large for its type
            real = last if ignored is None else last[last != ignored]
            # other integers, such as counts, may be far larger
            usual = len(real) and int(real.min()) >= 0 and int(real.max()) < len(last)
            columns += [last] if usual and (classes or like_classes(real)) else []
    for column in columns:
        if not hasattr(column, "__len__") or not hasattr(data, "__len__"):
            continue
        try:
            labels = torch.as_tensor(column if isinstance(column, Tensor) else np.array(column))
        except (TypeError, ValueError, RuntimeError):
            continue
        if labels.shape in ((len(data),), (len(data), 1)) and not labels.is_floating_point():
            return labels.cpu().long().flatten()
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


def spaced_rows(data: Any) -> list[tuple[int, Any]] | None:
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
    with suppress(TypeError, ValueError, RuntimeError):
        return float(value.item() if hasattr(value, "item") else value)
    return None
