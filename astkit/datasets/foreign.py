"""Wrap loaders and datasets of other libraries as a `BatchSource`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from astkit import distributed
from astkit.datasets.batch import Batch, as_batch, check_index
from astkit.datasets.images import Images
from astkit.datasets.loader import BatchSource, Loader, fetch_rows, stacking
from astkit.progress import warn

BATCH_SIZE = 128
_UNDIVIDED = RandomSampler | SequentialSampler  # load every row in every process


class Indexed(Dataset[Any]):
    """A dataset whose item ``i`` is ``(i, data[i])``; see `indexed`."""

    def __init__(self, data: Any) -> None:
        batches = isinstance(data, DataLoader | BatchSource)
        if batches or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            why = f"{type(data).__name__}, which {'holds batches' if batches else 'has no length'}"
            raise ValueError(
                f"data is a {why}, so its rows have no index: pass a map-style dataset"
            )
        self.indexed_data = data

    def __len__(self) -> int:
        return len(self.indexed_data)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.indexed_data[index]

    def __getitems__(self, rows: list[int]) -> list[tuple[int, Any]]:
        items = fetch_rows(self.indexed_data, rows)
        check_index(rows, len(items))
        return list(zip(rows, items, strict=True))


def indexed(data: Any) -> Indexed:
    """``data`` with each item's index: its DataLoader yields ``(index, batch)``.

    Example::

        from torch.utils.data import TensorDataset

        rows = indexed(TensorDataset(x, y))
        for index, (inputs, targets) in DataLoader(rows, batch_size=16):
            print(index)

    For policies that keep per-sample state, in custom training loops and in `Trainer`. ``data``
    must have a length and ``[i]``, otherwise ``ValueError`` is raised.
    """
    return Indexed(data)


class ForeignLoader:
    """Wraps a loader of batches of any structure, such as a torch DataLoader.

    Sample indices are known if its dataset is `indexed`, else ``None``. Tensors are only moved to
    ``device``; the loader determines the order. A pass ends with the loader, or with as many rows
    as a stream says to have. Raises ``ValueError`` if it is not iterable.

    Attributes:
        streamed: whether the rows can only be read in order.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | str = "cpu") -> None:
        if not isinstance(loader, Iterable):
            kind = type(loader).__name__
            raise ValueError(f"loader is a {kind}, which cannot be iterated; pass a DataLoader.")
        self.loader = loader
        self.device = torch.device(device)
        self._data = getattr(loader, "dataset", None)
        self._indexed = isinstance(self._data, Indexed)
        self.streamed = any(isinstance(part, IterableDataset) for part in parts_of(loader))

    def to(self, device: torch.device | str) -> ForeignLoader:
        """Deliver batches on ``device`` from now on."""
        self.device = torch.device(device)
        return self

    @property
    def num_samples(self) -> int | None:
        """Rows in the loader's dataset, ``None`` if unknown."""
        with suppress(TypeError):
            return len(self._data)  # type: ignore[arg-type]
        return None

    @property
    def batch_size(self) -> int | None:
        """The loader's batch size, ``None`` if unknown."""
        return getattr(self.loader, "batch_size", None)

    def __len__(self) -> int:
        """Batches in a full pass, of a stream in workers or more; ``TypeError`` if unknown."""
        rows, size = self.num_samples, self.batch_size
        if self.streamed and rows is not None and size:  # asked, torch would warn of more
            whole, rest = divmod(rows, size)
            return whole + (rest > 0 and not getattr(self.loader, "drop_last", False))
        return len(self.loader)  # type: ignore[arg-type]

    def batches(self, epoch: int, order: Tensor | None = None) -> Iterator[Batch]:
        """One pass.

        Raises ``ValueError`` if ``order`` is not None and, during iteration, for a batch without
        rows, or a loader that yields no batch.
        """
        if order is not None:
            raise ValueError(
                "an ordinary loader loads every row: pass its dataset instead, with batch_size=..."
            )
        for part in parts_of(self.loader):
            if hasattr(part, "set_epoch"):  # DistributedSampler would repeat the order of epoch 0
                part.set_epoch(epoch)
        return self._deliver()

    def _deliver(self) -> Iterator[Batch]:
        batch, left = None, self.num_samples if self.streamed else None
        with stacking():
            for item in self.loader:
                index, parts = item if self._indexed else (None, item)
                batch = as_batch(parts, index)
                yield batch.to(self.device)
                if left is not None:
                    left -= batch.rows if self.batch_size else 1  # else its items are batches
                    if left <= 0:  # it may be endless
                        break
        if batch is None:
            remedy = "give one that can be iterated more than once, which a generator cannot"
            raise ValueError(f"the loader yielded no batch: {remedy}")


def open_data(data: Any) -> Any:
    """A torch DataLoader as a `Loader`, if that yields the same rows in the same batches.

    So it is for one that loads each row once, in order or shuffled. Anything else is returned
    unchanged: a subclass with its own ``__iter__``, which may change batches (mixup), has to be
    iterated itself, and so has a loader of `indexed` data whose ``collate_fn`` may use the indices.
    """
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return data
    size = data.batch_size
    sampler: Any = data.sampler
    rows: Any = data.dataset
    stacks = data.collate_fn is default_collate
    same_batches = (
        type(data).__iter__ is DataLoader.__iter__
        and type(sampler) in (RandomSampler, SequentialSampler)
        and not getattr(sampler, "replacement", False)
        and len(sampler) == len(rows)
        and not (data.num_workers and data.worker_init_fn)
        and (stacks or not isinstance(rows, Indexed))
    )
    if size is None or not same_batches:
        return data
    return Loader(
        rows.indexed_data if isinstance(rows, Indexed) else rows,  # it provides indices itself
        size,
        shuffle=isinstance(sampler, RandomSampler),
        num_workers=data.num_workers,
        drop_last=data.drop_last,
        collate_fn=None if stacks else data.collate_fn,
    )


def parts_of(loader: Any) -> Iterator[Any]:
    """``loader``, its samplers and dataset."""
    yield loader
    for name in ("sampler", "batch_sampler", "dataset"):
        if (part := getattr(loader, name, None)) is not None:
            yield from parts_of(part)


def check_held_out(data: Any) -> None:
    """Raise ``ValueError`` for validation or test data that may be trained on."""
    if hasattr(getattr(data, "data", data), "old_rows"):
        may = "which may be trained on: pass other rows"
        raise ValueError(f"the validation or test data are joined with rows of a target, {may}")


def check_unshuffled(data: Any) -> None:
    """Raise ``ValueError`` for validation or test data that are shuffled, or trained on."""
    check_held_out(data)
    if isinstance(sampler_of(data), RandomSampler | SubsetRandomSampler | WeightedRandomSampler):
        loader = f"the validation or test data are a {type(data).__name__} that shuffles"
        raise ValueError(f"{loader}, but runs are compared row by row: pass the data set itself")


def as_loader(
    obj: Any,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    *,
    shuffle: bool = True,
    seed: int = 0,
) -> BatchSource:
    """Convert ``obj`` to a source of batches on ``device``; ``obj`` is not modified.

    A `Loader` or another source of batches is returned unchanged, an iterable of batches is
    wrapped, and a dataset is batched in ``batch_size`` (128) rows, shuffled with ``seed`` unless it
    is an ``IterableDataset``.

    Raises ``ValueError`` for anything else, and for a loader with a policy's sampler.
    """
    if isinstance(obj, BatchSource):
        # a copy of a Loader has worker processes and passes of its own
        source: Any = obj.reseeded(obj.seed) if isinstance(obj, Loader) else copy.copy(obj)
        if hasattr(source, "to") and getattr(source, "device", None) != torch.device(device):
            source = source.to(device)
        return resized(source, batch_size)
    if isinstance(obj, IterableDataset):
        stages: Any = getattr(obj, "pipeline", None) or [None]
        if not isinstance(stages[0], DataLoader):  # of a WebLoader, which yields batches
            obj = DataLoader(obj, batch_size=batch_size or BATCH_SIZE)
    elif is_dataset(obj):
        rows = obj.indexed_data if isinstance(obj, Indexed) else obj  # Loader provides the indices
        return Loader(rows, batch_size or BATCH_SIZE, device=device, shuffle=shuffle, seed=seed)
    elif hasattr(sampler_of(obj), "policy"):
        remedy = "give the trainer the dataset, batch_size=... and policy=..."
        raise ValueError(f"the loader has a policy's sampler, for custom training loops: {remedy}")
    return resized(ForeignLoader(obj, device), batch_size)


def is_dataset(obj: Any) -> bool:
    """Whether ``obj`` contains rows, not batches: a dataset, or anything with integer indexing."""
    by_number = hasattr(obj, "__getitem__") and hasattr(obj, "__len__")
    return isinstance(obj, Images | Dataset) or (
        by_number and not isinstance(obj, list | tuple | Mapping | BatchSource)
    )


def resized(source: BatchSource, batch_size: int | None) -> BatchSource:
    """``source`` with its batch size set; ``ValueError`` if the source forms its own batches."""
    if batch_size is None or batch_size == getattr(source, "batch_size", None):
        return source
    if isinstance(source, Loader):
        source.set_batch_size(batch_size)
        return source
    raise ValueError(
        f"batch_size is {batch_size}, but a {name_of(source)} forms the batches itself: leave it"
        " None, or pass a dataset, such as TensorDataset(x, y) or ConcatDataset([samples])"
    )


def name_of(source: BatchSource) -> str:
    """Type of the loader that was given, which ``source`` may wrap."""
    return type(getattr(source, "loader", source)).__name__


def divide(source: BatchSource) -> BatchSource:
    """``source``, of which each process loads its share; ``ValueError`` if all load the same.

    Warns of an ``IterableDataset``, which has to divide its rows itself.
    """
    if distributed.world() == 1:
        return source
    if isinstance(source, Loader):
        size, world = source.batch_size, distributed.world()
        if size % world:
            near = [n for n in (size // world * world, (size // world + 1) * world) if n]
            uneven = f"batch_size is {size}, which {world} processes cannot share evenly"
            raise ValueError(f"{uneven}: give {' or '.join(map(str, near))}")
        return source.divide()
    loader: Any = getattr(source, "loader", source)
    same = f"all {distributed.world()} processes would train on the same rows of the"
    if getattr(source, "streamed", False):
        warn(f"{same} stream, unless it divides them itself by their rank")
    elif not isinstance(loader, DataLoader) or isinstance(sampler_of(loader), _UNDIVIDED):
        raise ValueError(
            f"{same} {name_of(source)}: pass the data set instead, with batch_size=..., or"
            " a DataLoader with sampler=DistributedSampler(data)"
        )
    return source


def keeps_order(source: BatchSource) -> bool:
    """Whether every pass gives the same rows in the same order, where generators are seeded alike.

    Torch's own samplers draw from these; others may do anything.
    """
    sampler = sampler_of(getattr(source, "loader", None))
    return sampler is None or type(sampler).__module__.startswith("torch.")


def sampler_of(loader: Any) -> Any:
    """What chooses the rows of a DataLoader; its ``sampler`` is unused beside a batch sampler."""
    sampler = getattr(loader, "batch_sampler", None)
    while isinstance(sampler, BatchSampler):
        sampler = sampler.sampler
    return getattr(loader, "sampler", None) if sampler is None else sampler
