"""`joined`: training rows and rows of a target, which may be trained on too, as one data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from astkit.datasets.facts import paired_groups, spaced_rows
from astkit.datasets.foreign import BATCH_SIZE, is_dataset, open_data
from astkit.datasets.images import Images
from astkit.datasets.loader import Loader, old_rows
from astkit.datasets.mapped import MappedImages
from astkit.datasets.table import Table


def joined(train: Any, target: Any) -> Any:
    """One data set of old rows and of those that count: N of ``train``, then M of ``target``.

    Both have the same columns, shapes and types. An epoch has N draws; dense training and policies
    that do not ask for the target see rows 0 to N - 1. ::

        from astkit import Table, Weighted
        from astkit.datasets import load

        bikes = load("bikes")
        train = Table(bikes.train, label="bikers")
        both = joined(train, Table(bikes.recent, like=train))
        policy = Weighted([1.0] * len(both))  # every row alike, old or not
        sampler = policy.sampler(both, epochs=10)

    Args:
        train: a map-style data set, a list of rows, a `Loader`, or a DataLoader that loads each row
            once. Of a loader the result is a `Loader` with its settings, ``collate_fn`` among them.
        target: a map-style data set, a list of rows, or a loader of one, such as
            ``Table(frame, like=train)`` beside a `Table`.

    Raises ``ValueError`` for data that are not alike, or whose rows are not known.
    """
    known = open_data(train)
    if isinstance(known, Loader):
        return known.over(joined(known.data, target))
    whole, more = _rows_of(train, "train"), _rows_of(open_data(target), "target")
    for name, data in (("train", whole), ("target", more)):
        if not len(data):
            raise ValueError(f"{name} has no rows: give at least one")
    paired_groups(whole, more)
    both = _together(whole, more)
    vars(both)["old_rows"] = old_rows(whole)
    return both


def divide_joined(data: Any) -> tuple[Any, Any]:
    """Old rows and target rows of what `joined` returned; of other data all rows, and ``None``."""
    if isinstance(data, Loader):
        parts = divide_joined(data.data)
        return tuple(part if part is None else data.over(part) for part in parts)  # type: ignore[return-value]
    if not hasattr(data, "__len__") or old_rows(data) == len(data):
        return data, None
    rows = torch.arange(len(data)).tensor_split([old_rows(data)])
    if isinstance(data, Table):
        return data.take(rows[0]), data.take(rows[1])
    return Subset(data, rows[0].tolist()), Subset(data, rows[1].tolist())


def _rows_of(data: Any, name: str) -> Any:
    """The data set of a loader, or ``data`` if it is one."""
    if isinstance(data, Loader):
        return data.data
    data = getattr(data, "indexed_data", data)
    rows = isinstance(data, list) or (is_dataset(data) and hasattr(data, "__getitem__"))
    if not rows or isinstance(data, DataLoader) or not hasattr(data, "__len__"):
        raise ValueError(
            f"{name} is a {type(data).__name__}, whose rows are not known: pass a map-style data"
            f" set, or a DataLoader without its own sampler (batches of {BATCH_SIZE} by default)"
        )
    return data


def _together(train: Any, target: Any) -> Any:
    """The rows of both, those of ``train`` first."""
    if isinstance(train, Table):
        return train.extended(target)
    if isinstance(train, Images) and isinstance(target, Images):
        if train.shape != target.shape or train.classes != target.classes:
            raise ValueError(
                f"target is {target!r}, and train {train!r}: give both the same size and classes"
            )
        if not isinstance(train, MappedImages):
            places = target.images.to(train.images.device), target.labels.to(train.labels.device)
            pixels, labels = (
                torch.cat([train.images, places[0]]),
                torch.cat([train.labels, places[1]]),
            )
            return Images(pixels, labels, train.classes, train.name)
    _check_alike(train, target)
    if all(
        type(each) is TensorDataset and vars(each).keys() == {"tensors"} for each in (train, target)
    ):
        return TensorDataset(*map(torch.cat, zip(train.tensors, target.tensors, strict=True)))
    both: ConcatDataset[Any] = ConcatDataset([train, target])
    if hasattr(train, "classes"):
        vars(both)["classes"] = train.classes
    return both


def _check_alike(train: Any, target: Any) -> None:
    """Raise ``ValueError`` if rows of ``target`` have other parts, shapes or types."""
    ours, theirs = _parts_of(train), _parts_of(target)
    if ours.keys() != theirs.keys():
        raise ValueError(
            f"rows of target have the parts {_listed(theirs)}, those of train {_listed(ours)}:"
            " give both the same"
        )
    for name, (kind, shape) in theirs.items():
        own_kind, own_shape = ours[name]
        fits = len(shape) == len(own_shape) and all(
            own in (None, size) for own, size in zip(own_shape, shape, strict=True)
        )
        if kind != own_kind or not fits:
            raise ValueError(
                f"rows of target have {_said(kind, shape)} as{name or ' a row'}, those of train"
                f" {_said(own_kind, own_shape)}: give both the same columns, shapes and types"
            )


Part = tuple[str, tuple[int | None, ...]]
"""Type of a part of a row, and its shape; ``None`` for a side that differs between rows."""


def _parts_of(data: Any) -> dict[str, Part]:
    """The parts of a row by their place, as " [0]" or " ['x']"."""
    found: dict[str, Part] = {}
    for _, item in spaced_rows(data) or ():
        for path, leaf in pytree.tree_flatten_with_path(item)[0]:
            name = f" {pytree.keystr(path)}" if path else ""
            kind, shape = _kind(leaf)
            before = found.get(name, (kind, shape))
            if before[0] == kind and len(before[1]) == len(shape):
                sides = zip(before[1], shape, strict=True)
                shape = tuple(own if own == side else None for own, side in sides)
            found[name] = kind, shape
    return found


def _kind(leaf: Any) -> Part:
    if isinstance(leaf, Tensor | np.ndarray | np.generic):
        return str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)
    return type(leaf).__name__, ()


def _said(kind: str, shape: tuple[int | None, ...]) -> str:
    sides = ", ".join("any" if side is None else str(side) for side in shape)
    return f"{kind} [{sides}]" if shape else kind


def _listed(parts: dict[str, Part]) -> str:
    return ", ".join(name.strip() or "one value" for name in parts) or "none"
