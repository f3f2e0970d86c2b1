"""Batches of any structure, and how a model is called with them.

A data loader may yield pairs ``(x, y)``, longer tuples ``(x1, x2, ..., y)``, mappings, or a
tensor; all parts may be nested. Rows are the first dimension, which all tensors share.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

IGNORED = -100
"""Label that losses and metrics leave out: ``ignore_index`` of torch's cross-entropy."""
_UNSIGNED = {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
_INTEGERS = {torch.int8, torch.int16, torch.int32, *_UNSIGNED}  # besides int64


class Args(tuple[Any, ...]):
    """Several inputs of a batch, passed as ``model(*args)``."""


class Batch(NamedTuple):
    """Rows of a dataset in a training loop.

    ``index``: int64 ``[rows]``, row numbers in the dataset; ``None`` if unknown. ``y``, the target
    of the criterion, is ``x`` itself if the batch is a single object (a mapping or a tensor).
    """

    index: Tensor | None  # type: ignore[assignment]  # shadows tuple.index
    x: Any
    y: Any

    @property
    def rows(self) -> int:
        """Number of rows."""
        return count_rows(self.y)

    def take(self, rows: Tensor | slice) -> Batch:
        """The selected ``rows``: int64 ``[n]``, which may repeat, or a slice."""
        count = self.rows
        return self.map(lambda part: take_rows(part, rows, count))

    def to(self, device: torch.device | str) -> Batch:
        """The batch with all tensors on ``device``."""
        return self.map(
            lambda part: map_tensors(lambda tensor: tensor.to(device, non_blocking=True), part)
        )

    def map(self, change: Callable[[Any], Any]) -> Batch:
        """``change`` applied to each part; a batch passed as a single object remains one."""
        x = change(self.x)
        y = x if self.y is self.x else change(self.y)
        return Batch(None if self.index is None else change(self.index), x, y)


def as_batch(item: Any, index: Tensor | None = None) -> Batch:
    """Convert the output of a data loader to a `Batch`, whose integer targets are int64.

    ``index``: int64 ``[rows]``, the rows of the data set that were collated. Raises ``ValueError``
    if its parts have no rows, or different numbers of rows, which are not those of ``index``.
    """
    if isinstance(item, tuple | list) and not hasattr(item, "_fields") and item:
        parts = list(item)
        inputs = parts[0] if len(parts) < 3 else Args(parts[:-1])
        batch = Batch(index, inputs, map_tensors(integers, parts[-1]) if parts[1:] else inputs)
    else:
        labels = item.get("labels") if isinstance(item, Mapping) else None
        if isinstance(labels, Tensor) and labels.dtype in _INTEGERS:
            item = {**item, "labels": integers(labels)}
        batch = Batch(index, item, item)
    if batch.y is not batch.x and count_rows(batch.x) != count_rows(batch.y):
        counts = f"inputs of {count_rows(batch.x)} rows with targets of {count_rows(batch.y)}"
        raise ValueError(f"the loader yielded {counts}: give each row one target")
    if index is not None:
        check_index(index, batch.rows)
    return batch


def check_index(index: Sized, rows: int) -> None:
    """Raise ``ValueError`` if a batch of ``rows`` rows has more or fewer row numbers, ``index``."""
    if len(index) != rows:
        raise ValueError(
            f"a batch of {rows} rows was made from {len(index)} rows of the data: let collate_fn"
            " keep every row, in order, and leave rows out with Subset(data, rows)"
        )


def integers(values: Tensor) -> Tensor:
    """``values`` of any integer type as int64, which losses take; others unchanged."""
    return values.long() if values.dtype in _INTEGERS else values


def count_rows(part: Any) -> int:
    """Length of the first tensor in ``part`` that has one; ``ValueError`` if there is none."""
    if isinstance(part, Tensor) and part.ndim:
        return part.shape[0]  # faster than len
    for tensor in tensors(part):
        if tensor.ndim:
            return len(tensor)
    lacks = f"a batch contains {type(part).__name__} without a tensor of shape [rows, ...]"
    raise ValueError(f"{lacks}: collate it to tensors of rows, and number classes that are names")


def tensors(part: Any) -> Iterator[Tensor]:
    """The tensors in ``part``, in pytree order."""
    if isinstance(part, Tensor):
        yield part
        return
    if isinstance(part, Mapping):
        children = list(part.values())
    else:
        children = list(part) if isinstance(part, tuple | list) else pytree.tree_leaves(part)
    for child in children:
        if child is not part:  # pytree returns unknown objects as leaves
            yield from tensors(child)


def map_tensors(change: Callable[[Tensor], Any], part: Any) -> Any:
    """``part`` with ``change`` applied to each tensor; mappings become dicts."""
    if isinstance(part, Tensor):
        return change(part)
    return _rebuilt(part, lambda child: map_tensors(change, child))


def take_rows(part: Any, rows: Tensor | slice, count: int) -> Any:
    """The selected ``rows`` of every tensor and list of length ``count`` in ``part``.

    A list of this length whose entries all have ``count`` rows themselves holds fields, not rows.
    Everything else, such as a scalar of the whole batch, is unchanged.
    """
    if isinstance(part, Tensor):
        if part.ndim == 0 or len(part) != count:
            return part
        return part[rows] if isinstance(rows, slice) else part.index_select(0, rows.to(part.device))
    if is_list_of_rows(part, count):
        chosen = part[rows] if isinstance(rows, slice) else [part[i] for i in rows.tolist()]
        return type(part)(chosen)
    return _rebuilt(part, lambda child: take_rows(child, rows, count))


def call(model: Callable[..., Any], x: Any, y: Any = None) -> Any:
    """Outputs of ``model`` for the inputs ``x`` of a batch with targets ``y``.

    A mapping passed as a single object (``y is x``) is expanded to keywords if ``forward`` names
    its keys; otherwise everything except `Args` is passed as one argument.
    """
    args, keywords = arguments(model, x, y)
    return model(*args, **keywords)


def arguments(model: Callable[..., Any], x: Any, y: Any = None) -> tuple[tuple[Any, ...], Any]:
    """Positional and keyword arguments of `call`."""
    if isinstance(x, Args):
        return tuple(x), {}
    if isinstance(x, Mapping) and y is x:
        names = _named(*_forward(model), tuple(map(str, x)))
        if names:
            return (), {name: x[name] for name in names}
    return (x,), {}


def targets_after(batch: Batch, given: Batch) -> Any:
    """Targets of ``batch`` after a pass of ``given``, a copy of it.

    With a batch that is a single mapping, these are what the model wrote and what it took out too.
    """
    if given.y is not given.x:
        return batch.y
    return {**batch.y, **given.y} if isinstance(given.y, dict) else given.y


def join(parts: list[Any]) -> Any:
    """Concatenate the outputs of consecutive parts of a batch.

    Objects that torch's pytree does not know keep their type; their attributes are joined.
    """
    if len(parts) == 1:
        return parts[0]
    return pytree.tree_map(lambda *leaves: _joined(list(leaves)), *parts)


def _joined(leaves: list[Any]) -> Any:
    first = leaves[0]
    if isinstance(first, Tensor):
        return torch.cat(leaves) if first.ndim else torch.stack(leaves).mean()
    if not hasattr(first, "__dict__"):
        return first
    whole = object.__new__(type(first))
    whole.__dict__.update({name: join([vars(p)[name] for p in leaves]) for name in vars(first)})
    return whole


def _rebuilt(part: Any, visit: Callable[[Any], Any]) -> Any:
    """``part`` with each child replaced by ``visit(child)``; itself if it has none."""
    if isinstance(part, Mapping):
        return {key: visit(value) for key, value in part.items()}
    if isinstance(part, tuple | list):
        values = [visit(value) for value in part]
        return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
    leaves, spec = pytree.tree_flatten(part)
    if len(leaves) == 1 and leaves[0] is part:
        return part
    return pytree.tree_unflatten([visit(leaf) for leaf in leaves], spec)


def is_list_of_rows(part: Any, count: int) -> bool:
    """Whether ``part`` is a list with an entry for each of ``count`` rows."""
    if not isinstance(part, tuple | list) or isinstance(part, Args) or hasattr(part, "_fields"):
        return False
    return len(part) == count and not all(_is_field(entry, count) for entry in part)


def _is_field(entry: Any, count: int) -> bool:
    """Whether all tensors in ``entry`` have ``count`` rows, or a list of plain values has."""
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in tensors(entry)}
    if lengths:
        return lengths == {count}
    return isinstance(entry, tuple | list) and len(entry) == count


def _forward(model: Any) -> tuple[Any, bool]:
    """The function that receives the inputs, and whether its first parameter is the model."""
    while not hasattr(type(model), "forward") or hasattr(model, "_orig_mod"):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "model", None)
        if inner is None or inner is model:
            return model, False
        model = inner
    # wrappers such as DistributedDataParallel accept and forward any arguments
    module = getattr(model, "module", None)
    wraps = isinstance(module, torch.nn.Module) and type(model).__module__.startswith("torch.")
    return _forward(module) if wraps else (type(model).forward, True)


@lru_cache(maxsize=256)
def _named(forward: Any, bound: bool, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The ``keys`` that ``forward`` takes by name; none if a required one is missing."""
    try:
        parameters = list(inspect.signature(forward).parameters.values())[bound:]
    except (TypeError, ValueError):
        return ()
    variadic = any(each.kind is each.VAR_KEYWORD for each in parameters)
    named = [
        each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    if any(each.default is each.empty and each.name not in keys for each in named):
        return ()
    known = {each.name for each in named}
    return keys if variadic else tuple(key for key in keys if key in known)
