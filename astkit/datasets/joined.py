"""`joined`: training rows and rows of a target, which may be trained on too, as one data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from astkit.datasets.dependence import autocorrelation_time
from astkit.datasets.facts import (
    class_labels,
    group_names,
    paired_groups,
    row_groups,
    shared_rows,
    spaced_rows,
    underlying,
)
from astkit.datasets.foreign import is_dataset, open_data
from astkit.datasets.images import Images
from astkit.datasets.loader import Loader, old_rows
from astkit.datasets.mapped import MappedImages
from astkit.datasets.sources import hold_back
from astkit.datasets.table import Table

SHARE = 0.2
"""Of the units of a target, set aside for validation where no other rows are given."""
FEWEST_UNITS = 10
"""Units of a target of which some are set aside."""
NAMED = 3
"""Groups and days that a sentence names."""


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
        old, new = divide_joined(data.data)
        return (data, None) if new is None else (data.over(old), data.over(new))
    if not hasattr(data, "__len__") or old_rows(data) == len(data):
        return data, None
    parts: Any = getattr(data, "datasets", ())
    if type(data) is ConcatDataset and len(parts[0]) == old_rows(data):
        return parts[0], parts[1]
    old, new = torch.arange(len(data)).tensor_split([old_rows(data)])
    return some_rows(data, old), some_rows(data, new)


def some_rows(data: Any, rows: Tensor) -> Any:
    """The selected ``rows``, int64 ``[n]``, of a data set."""
    if isinstance(data, Table):
        return data.take(rows)
    if isinstance(data, Images) and not isinstance(data, MappedImages):
        return data.subset(rows)
    return Subset(data, rows.tolist())


def set_aside(
    target: Any, parts: Sequence[str], units: Any = None, in_order: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Hold a fifth of ``target`` back for each of ``parts``, such as "validation".

    Units, groups of rows where there are any, stay whole. Held back are random ones, of each
    class the same share; or the last ones, where rows are ``in_order``, as rows of a table are
    taken to be if neighbours depend on each other. Returns the other rows, and the parts.

    Args:
        target: a data set, or a loader of one.
        units: int ``[rows]``, rising: rows that stay together, such as those of a day.

    Raises ``ValueError`` for fewer than `FEWEST_UNITS` units.
    """
    data = _rows_of(open_data(target), "target")
    groups, labels = row_groups(data, "target"), class_labels(data)
    if units is None:
        units = torch.arange(len(data)) if groups is None else groups
    units = torch.as_tensor(units)
    count = int(units.max()) + 1
    if count < FEWEST_UNITS:
        raise ValueError(
            f"target has {count} rows, groups or dates, too few to set some aside for {parts[0]}:"
            f" pass {' and '.join(f'{part}=' for part in parts)}, or at least {FEWEST_UNITS}"
        )
    if isinstance(data, Table) and groups is None and not in_order:
        in_order = autocorrelation_time(data.values.double().numpy()) > 1
    # a fifth of all rows, not of those that an earlier part left
    shares = {part: SHARE / (1 - SHARE * place) for place, part in enumerate(parts)}
    rest, held = hold_back(units, shares, in_order, labels if groups is None else None)
    return some_rows(data, rest), {part: some_rows(data, rows) for part, rows in held.items()}


def shared_with_target(target: Any, **others: Any) -> list[str]:
    """Rows, groups and days that the ``target`` has in common with ``others``, as sentences.

    Others are data sets by their names; ``None`` is left out. Rows have equal inputs, see
    `shared_rows`; days are those of the columns of dates of a `Table`.
    """
    said = []
    for name, other in others.items():
        if other is None:
            continue
        found = []
        rows = shared_rows(target, None, other).get(("train", "test"), 0)
        if rows:
            found.append(f"{rows:,} rows with equal inputs")
        for kind, of in (("groups", group_names), ("days", _days)):
            mine, theirs = of(target), of(other)
            if mine is None or theirs is None:
                continue
            both = np.intersect1d(mine.astype(str), theirs.astype(str)).tolist()
            if both:
                more = f" and {len(both) - NAMED} more" if len(both) > NAMED else ""
                found.append(f"{kind} {', '.join(both[:NAMED])}{more}")
        if found:
            said.append(
                f"target and {name} share {'; '.join(found)}: what is trained on says nothing of"
                " new rows"
            )
    return said


def _days(data: Any) -> Any:
    """Days in the columns of dates of a `Table`; ``None`` of other data."""
    whole, rows, _ = underlying(data)
    if not isinstance(whole, Table):
        return None
    frame = whole.frame if rows is None else whole.frame.iloc[rows.numpy()]
    dates = [frame[name].dropna() for name in frame if frame[name].dtype.kind == "M"]
    days = [np.unique(each.to_numpy("datetime64[D]")) for each in dates]
    return np.concatenate(days) if days else None


def _rows_of(data: Any, name: str) -> Any:
    """The data set of a loader, or ``data`` if it is one."""
    if isinstance(data, Loader):
        return data.data
    data = getattr(data, "indexed_data", data)
    rows = isinstance(data, list) or (is_dataset(data) and hasattr(data, "__getitem__"))
    if not rows or isinstance(data, DataLoader) or not hasattr(data, "__len__"):
        unknown = f"{name} is a {type(data).__name__}, whose rows are not known"
        raise ValueError(f"{unknown}: pass a map-style data set, or a DataLoader without a sampler")
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
            pixels = torch.cat([train.images, target.images.to(train.images.device)])
            labels = torch.cat([train.labels, target.labels.to(train.labels.device)])
            return Images(pixels, labels, train.classes, train.name)
    _check_alike(train, target)
    plain = [
        type(each) is TensorDataset and [*vars(each)] == ["tensors"] for each in (train, target)
    ]
    if all(plain):
        return TensorDataset(*map(torch.cat, zip(train.tensors, target.tensors, strict=True)))
    both: ConcatDataset[Any] = ConcatDataset([train, target])
    if hasattr(train, "classes"):
        vars(both)["classes"] = train.classes
    return both


def _check_alike(train: Any, target: Any) -> None:
    """Raise ``ValueError`` if rows of ``target`` have other parts, shapes or types."""
    ours, theirs = _parts_of(train), _parts_of(target)
    if ours.keys() != theirs.keys():
        mine, other = (", ".join(n.strip() or "one value" for n in each) for each in (ours, theirs))
        raise ValueError(f"rows of target have the parts {other}, those of train {mine}")
    for name, (kind, shape) in theirs.items():
        own_kind, own_shape = ours[name]
        # a side that differs between old rows may have any size
        fits = [None if own is None else side for own, side in zip(own_shape, shape, strict=False)]
        if kind != own_kind or len(shape) != len(own_shape) or tuple(fits) != own_shape:
            other, mine = _said(kind, shape), _said(own_kind, own_shape)
            unlike = f"rows of target have {other} as{name or ' a row'}, those of train {mine}"
            raise ValueError(f"{unlike}: give both the same columns, shapes and types")


Part = tuple[str, tuple[int | None, ...]]
"""Type of a part of a row, and its shape; ``None`` for a side that differs between rows."""


def _parts_of(data: Any) -> dict[str, Part]:
    """The parts of a row by their place, as " [0]" or " ['x']"."""
    found: dict[str, Part] = {}
    for _, item in spaced_rows(data) or ():
        for path, leaf in pytree.tree_flatten_with_path(item)[0]:
            name = f" {pytree.keystr(path)}" if path else ""
            typed = isinstance(leaf, Tensor | np.ndarray | np.generic)
            kind = str(leaf.dtype).removeprefix("torch.") if typed else type(leaf).__name__
            shape: tuple[int | None, ...] = tuple(leaf.shape) if typed else ()
            before = found.get(name, (kind, shape))
            if before[0] == kind and len(before[1]) == len(shape):
                sides = zip(before[1], shape, strict=True)
                shape = tuple(own if own == side else None for own, side in sides)
            found[name] = kind, shape
    return found


def _said(kind: str, shape: tuple[int | None, ...]) -> str:
    sides = ", ".join("any" if side is None else str(side) for side in shape)
    return f"{kind} [{sides}]" if shape else kind
