"""Batches for training: rows selected before loading; augmented and normalised on the device.

Where an argument is "auto", rules decide how rows are loaded:

- ``resident``: images that are on the device already, or take at most `RESIDENT_BYTES` on a GPU,
  stay there, since then no batch is copied;
- ``num_workers``: none for data in memory, where a batch is one copy; else one per core, at most 4
  for training on the CPU, which leaves one free, and 8 for a GPU, and one per GiB of free memory;
- workers live on between epochs and prefetch 2 batches each, 4 for a GPU; batches for CUDA are
  copied from pinned memory.
"""

from __future__ import annotations

import copy
import operator
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from astkit import distributed
from astkit.checks import check_choice, check_count
from astkit.datasets.batch import Batch, as_batch
from astkit.datasets.images import Images
from astkit.datasets.mapped import MappedImages
from astkit.datasets.table import Table
from astkit.rng import derive, permutation, restored, uniform
from astkit.system import allowed_cpus, text_of

RESIDENT_BYTES = 2 * 2**30
WORKER_BYTES = 2**30  # of free memory for each worker and the batches that it loads in advance
TIMEOUT_S = 300.0  # without a batch from a worker, after which an error is raised
AUGMENTATIONS = ("crop", "flip")
PAD = 4  # black pixels on each side before a crop

Auto = Literal["auto"]
Statistic = float | Sequence[float] | Tensor


Visits = tuple[Tensor, Tensor]
"""Rows of a batch, int64 ``[rows]``, and how often each came before in the epoch."""


def old_rows(data: Any, rows: int | None = None) -> int:
    """Rows of ``data`` that dense training draws from, the first ones: those before a target's.

    All of them, ``rows`` or else as many as it has, but for data of `astkit.joined`. Every order of
    rows is one of these.
    """
    data = getattr(data, "indexed_data", data)
    if hasattr(data, "old_rows"):
        return int(data.old_rows)
    return len(data) if rows is None else rows


@runtime_checkable
class BatchSource(Protocol):
    """Data interface of the training loop.

    A source that supports an ``order`` of rows also has ``order(epoch)``, the rows of an epoch, and
    takes ``start`` and ``occurrence`` in ``batches``.
    """

    @property
    def num_samples(self) -> int | None:
        """Samples in a full pass, ``None`` if unknown."""

    def __len__(self) -> int:
        """Batches in a full pass; raises ``TypeError`` if unknown."""

    def batches(self, epoch: int, order: Tensor | None = None) -> Iterator[Batch]:
        """Batches of an epoch over rows ``order``."""


class Loader:
    """Batches of ``data`` whose order and augmentation depend only on (seed, epoch, row).

    Example::

        from torch.utils.data import TensorDataset

        batches = Loader(TensorDataset(x, y), batch_size=16, seed=1)
        Trainer(model, batches, epochs=1).run()

    A row that occurs several times in an epoch is augmented differently each time. Batches are the
    same with resident data, with streaming and with workers. What ``data`` and
    ``collate_fn`` draw from the default generators of Python, NumPy and torch depends only on
    (seed, epoch, batch), and leaves the generators as they were.

    Args:
        data: ``Images``, or a map-style torch dataset with items of any structure, see
            `astkit.datasets.batch.as_batch`.
        augment: any of ``"crop"`` (`PAD` black pixels on each side) and ``"flip"``.
        device: device of the batches.
        resident: keep all images on ``device`` as uint8.
        num_workers: worker processes if the data are not resident.
        normalize: ``(mean, std)``, numbers or ``[C]``, units 0..1. A uint8 tensor ``x`` of images
            ``[rows, C, H, W]`` becomes float32 ``(x / 255 - mean) / std``, or ``x / 255`` with
            None; of another type it is unchanged.
        drop_last: leave out the last batch of a pass if it is not full.
        collate_fn: forms a batch of all items, in order; torch's default_collate by default.

    Raises ``ValueError`` for data without rows to choose from and for impossible arguments.
    """

    def __init__(
        self,
        data: Images | Dataset[Any],
        batch_size: int = 128,
        *,
        augment: Sequence[str] = (),
        shuffle: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        resident: bool | Auto = "auto",
        num_workers: int | Auto = 0,
        normalize: tuple[Statistic, Statistic] | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            stream = f"data is a {type(data).__name__}, which has no rows to choose from"
            raise ValueError(f"{stream}; pass a map-style dataset, or use as_loader.")
        if len(data) == 0:
            raise ValueError("data is empty; pass a dataset with at least one row.")
        if resident is True and not isinstance(data, Images):
            raise ValueError(f"resident is True for a {type(data).__name__}; pass Images.")
        self.data: Any = data
        self.collate_fn = collate_fn
        self.shuffle = shuffle
        self.seed = operator.index(seed)
        self.drop_last = drop_last
        self.set_batch_size(batch_size)
        self._augment = Augment(augment)
        self._normalize = normalize
        self._requested = (num_workers, resident)
        self._idle: DataLoader[Any] | None = None  # of an earlier pass, with its workers
        self._divided = False
        self.to(device)

    def set_batch_size(self, batch_size: int) -> None:
        """Form batches of ``batch_size`` rows from the next pass on.

        Raises ``ValueError`` if it is not positive, or if ``drop_last`` would leave no batch.
        """
        batch_size = check_count("batch_size", batch_size)
        rows = old_rows(self.data)
        if self.drop_last and rows < batch_size:
            few = f"batch_size is {batch_size}, and the data have {rows} rows"
            raise ValueError(f"drop_last leaves no batch: {few}; pass a smaller batch_size.")
        self.batch_size = batch_size

    def to(self, device: torch.device | str) -> Self:
        """Deliver batches on ``device`` from the next pass on; applies the rules for it."""
        self.device = torch.device(device)
        num_workers, resident = self._requested
        if num_workers == "auto":
            num_workers = automatic_workers(self.data, self.device)
        if resident == "auto":
            resident = automatic_resident(self.data, self.device)
        self.num_workers = num_workers
        self._idle = None
        self._stored: tuple[Tensor, Tensor] | None = None
        if resident:
            self._stored = (self.data.images.to(self.device), self.data.labels.to(self.device))
        mean, std = self._statistics()
        self._scale = (1 / (255 * std)).float().to(self.device)
        self._bias = (-mean / std).float().to(self.device)
        return self

    @property
    def resident(self) -> bool:
        """Whether all images are kept on the device."""
        return self._stored is not None

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of ``normalize``: float64 ``[C, 1, 1]`` or ``[1, 1, 1]``."""
        given = (0.0, 1.0) if self._normalize is None else self._normalize
        with suppress(TypeError, ValueError, RuntimeError):  # no pair, no numbers, unlike lengths
            pair = (torch.as_tensor(part, dtype=torch.float64) for part in given)
            mean, std = (part.cpu().view(-1, 1, 1) for part in pair)
            channels, _, _ = torch.broadcast_shapes(mean.shape, std.shape)
            fits = not isinstance(self.data, Images) or channels in (1, self.data.shape[0])
            if fits and bool((mean.isfinite() & std.isfinite() & (std > 0)).all()):
                return mean, std
        wanted = "pass (mean, std), each a number or one for each channel of the images"
        raise ValueError(f"normalize is {self._normalize!r}; {wanted}, finite, and std above 0.")

    def reseeded(self, seed: int) -> Self:
        """A copy whose order and augmentation are drawn with ``seed``."""
        return self._changed(seed=seed)

    def plain(self) -> Self:
        """A copy that loads every row as it is: not augmented, and with a last batch in part."""
        return self._changed(_augment=Augment(), drop_last=False)

    def divide(self) -> Self:
        """A copy whose batches hold this process's share of the rows; all have equally many.

        See `distributed.shared_evenly` for rows that are left over.
        """
        return self._changed(_divided=True)

    def over(self, data: Any) -> Self:
        """A copy with other ``data`` of the same kind."""
        return self._changed(data=data).to(self.device)

    def _changed(self, **attributes: Any) -> Self:
        other = copy.copy(self)
        vars(other).update(attributes, _idle=None)
        return other

    def order(self, epoch: int) -> Tensor:
        """The rows of ``epoch`` in order, those of a target left out: int64, on the CPU."""
        n = old_rows(self.data)
        return permutation(n, self.seed, "order", epoch) if self.shuffle else torch.arange(n)

    @property
    def num_samples(self) -> int:
        """Rows in the dataset, those of a target among them."""
        return len(self.data)

    def __len__(self) -> int:
        rows = old_rows(self.data)
        if self._divided:
            rows = distributed.shared_evenly(rows)
        whole, rest = divmod(rows, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def batches(
        self,
        epoch: int,
        order: Tensor | None = None,
        start: int = 0,
        occurrence: Tensor | None = None,
    ) -> Iterator[Batch]:
        """The batches of pass ``epoch``.

        Args:
            order: int64 ``[K]``, rows to load; default: ``order(epoch)``.
            start: batches to skip without loading them, to resume an interrupted pass.
            occurrence: int64 ``[K]``, how often each row of ``order`` occurred before in the epoch;
                default: 0. Part of the key of its augmentation.

        Raises ``ValueError`` for another ``order``; during iteration, the errors of
        ``collate_fn``, ``ValueError`` for batches without rows, or that are no images where they
        are to be augmented or normalised, and ``IndexError`` for rows out of range.
        """
        order = self.order(epoch) if order is None else torch.as_tensor(order)
        if order.dtype != torch.int64 or order.ndim != 1:
            wrong = f"order is {order.dtype} of shape {list(order.shape)}"
            raise ValueError(f"{wrong}; pass the numbers of rows, int64, as mask.nonzero()[:, 0].")
        again = torch.zeros_like(order) if occurrence is None else occurrence
        rows = distributed.shared_evenly(len(order)) if self._divided else len(order)
        if self.drop_last:
            rows = rows // self.batch_size * self.batch_size
        places = torch.arange(start * self.batch_size, max(rows, start * self.batch_size))
        parts = places.split(self.batch_size)
        if self._divided:
            parts = tuple(part[distributed.share(len(part))] for part in parts)
        return self._deliver([(order[part], again[part]) for part in parts], epoch, start)

    def _deliver(self, visits: Sequence[Visits], epoch: int, start: int) -> Iterator[Batch]:
        rows, again = (torch.cat(each).to(self.device) for each in zip(*visits, strict=True))
        if len(rows) == 0:
            return
        sizes = [len(chosen) for chosen, _ in visits]
        index = rows.split(sizes)
        if self._stored is None:
            loaded = self._load(visits, epoch, start)
        else:
            stored = self._stored
            loaded = (tuple(part.index_select(0, chosen) for part in stored) for chosen in index)
        draws = self._augment.draw(rows, again, self.seed, epoch).split(sizes, dim=1)
        for chosen, drawn, item in zip(index, draws, loaded, strict=True):
            batch = as_batch(item, chosen)
            if not self.resident:
                batch = batch.to(self.device)
            yield self._prepared(batch, drawn)

    def _prepared(self, batch: Batch, drawn: Tensor) -> Batch:
        """The batch with its images augmented and normalised; other inputs as they are."""
        x = batch.x
        if not isinstance(x, Tensor) or x.ndim != 4:
            if not self._augment.names and self._normalize is None:
                return batch
            given = list(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}"
            need = "augment and normalize need images, a tensor [rows, C, H, W]"
            raise ValueError(f"{need}, and the data give {given}; leave both out.")
        if self._augment.names:
            x = self._augment.apply(x, drawn)
        if x.dtype == torch.uint8:
            x = x.float().mul_(self._scale).add_(self._bias)
        return batch._replace(x=x, y=x if batch.y is batch.x else batch.y)

    def _load(self, visits: Sequence[Visits], epoch: int, start: int) -> Iterator[Any]:
        """The collated items of ``visits``, on the CPU, read in this process or in workers.

        Raises the errors of torch's DataLoader, also for a worker that died or delivered nothing in
        `TIMEOUT_S` seconds.
        """
        loader: Any = self._dataloader() if self._idle is None else self._idle
        self._idle = None
        loader.batch_sampler[:] = [
            (_key(self.seed, epoch, batch, rows, again), rows.tolist())
            for batch, (rows, again) in enumerate(visits, start)
        ]
        # an iterator draws its workers' base seed from here instead of the global generator
        loader.generator.manual_seed(derive(self.seed, "workers", epoch))
        try:
            with stacking():
                yield from loader
        except Exception:
            loader = None  # the next pass starts new workers
            raise
        finally:
            self._idle = loader

    def _dataloader(self) -> DataLoader[Any]:
        """A loader whose ``batch_sampler`` is a list of requests, and whose workers live on."""
        cuda = self.device.type == "cuda"
        # rows that this process reads may be on the GPU already
        on_cpu = self.data.images.is_cpu if isinstance(self.data, Images) else self.num_workers > 0
        workers: dict[str, Any] = {}
        if self.num_workers:
            workers = {"num_workers": self.num_workers, "persistent_workers": True}
            workers |= {"prefetch_factor": 4 if cuda else 2, "timeout": TIMEOUT_S}
        return DataLoader(
            # a worker draws on the CPU
            _Seeded(self.data, self.collate_fn, "cpu" if self.num_workers else self.device),
            batch_sampler=[],
            collate_fn=_as_read,
            generator=torch.Generator(),
            pin_memory=cuda and on_cpu,
            **workers,
        )


def automatic_workers(data: Any, device: torch.device) -> int:
    """Number of worker processes by the rules of this module."""
    if isinstance(data, Images | TensorDataset | Table):
        return 0
    cores = allowed_cpus()
    most = min(4, cores - 1) if device.type == "cpu" else min(8, cores)
    return min(most, free_memory() // WORKER_BYTES)


def automatic_resident(data: Any, device: torch.device) -> bool:
    """Whether all images are kept on ``device`` by the rules of this module."""
    if not isinstance(data, Images):
        return False
    if data.images.device.type == device.type:
        return not isinstance(data, MappedImages)
    return data.images.nbytes <= RESIDENT_BYTES


def free_memory() -> int:
    """Bytes available to new processes (MemAvailable of proc(5)); ``sys.maxsize`` if unknown."""
    for line in text_of(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


@dataclass
class _Seeded(Dataset[Any]):
    """Collated batches of ``data``, each with default generators seeded from its key."""

    data: Any
    collate_fn: Callable[[list[Any]], Any] | None
    device: torch.device | str

    def __getitems__(self, request: tuple[tuple[int | str, ...], list[int]]) -> Any:
        key, rows = request
        stacked = isinstance(self.data, Table) and self.collate_fn is None
        if stacked or isinstance(self.data, Images):  # which gather the rows of a batch at once
            return self.data[rows]
        # tensors draw nothing, so that the time for seeding is saved
        plain = type(self.data) is TensorDataset and self.collate_fn is None
        collate = self.collate_fn or default_collate
        with nullcontext() if plain else restored(self.device, *key):
            return collate(fetch_rows(self.data, rows))


@contextmanager
def stacking() -> Iterator[None]:
    """Raise ``ValueError`` for rows that torch's ``default_collate`` cannot stack."""
    try:
        yield
    except Exception as error:  # of any type; that of a worker holds its traceback
        place = "".join(traceback.format_exception(error))
        if "default_collate" not in place or "memory" in str(error):
            raise
        why = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise ValueError(
            f"the rows of a batch cannot be stacked ({why}): give the Loader or DataLoader a"
            " collate_fn that makes tensors of a list of rows, such as by padding"
        ) from error


def fetch_rows(data: Any, rows: list[int]) -> list[Any]:
    """Items of a map-style dataset, with its ``__getitems__`` if it has one."""
    return data.__getitems__(rows) if hasattr(data, "__getitems__") else [data[row] for row in rows]


def _key(seed: int, epoch: int, batch: int, rows: Tensor, again: Tensor) -> tuple[int | str, ...]:
    """Key of what the data set draws for a batch: other visits to the same rows draw anew."""
    key = (seed, "rows", epoch, batch, int(rows.sum()))
    repeated = int(again.sum())
    return (*key, repeated) if repeated else key


def _as_read(items: Any) -> Any:
    return items


class Augment:
    """Zero-padded random crop and horizontal flip, as torchvision's RandomCrop and RandomFlip.

    ``names``: of ``"crop"`` and ``"flip"``, otherwise ``ValueError`` is raised.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        for name in self.names:
            check_choice("augment", name, AUGMENTATIONS)

    def draw(self, rows: Tensor, again: Tensor, seed: int, epoch: int) -> Tensor:
        """Random numbers of rows: float32 ``[3, N]``; a call for a whole pass is cheapest.

        ``rows``: int64 ``[N]``; ``again``: how often each came before in the epoch.
        """
        if not self.names:
            return torch.empty(0, len(rows), device=rows.device)
        keys = ("crop-y", "crop-x", "flip")
        return torch.stack([uniform(rows, seed, key, epoch, again=again) for key in keys])

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """``x`` ``[B, channels, height, width]`` augmented; same shape and dtype.

        ``drawn``: float32 ``[3, B]``, of `draw`.
        """
        if "crop" in self.names:
            corners = 2 * PAD + 1
            # float32 rounding could turn the largest draw into ``corners``
            top, left = (drawn[:2] * corners).long().clamp_(max=corners - 1)
            x = crop(x, top, left, PAD)
        if "flip" in self.names:
            x = torch.where((drawn[2] < 0.5)[:, None, None, None], x.flip(3), x)
        return x


def crop(x: Tensor, top: Tensor, left: Tensor, pad: int) -> Tensor:
    """The window of the zero-padded ``x`` ``[B, C, H, W]`` at ``top``, ``left`` ``[B]``.

    One ``index_select`` of rows of W pixels from an overlapping view: it reads one index per W
    pixels, while an elementwise gather reads W.
    """
    batch, channels, height, width = x.shape
    flat = F.pad(x, (pad, pad, pad, pad)).contiguous().view(-1)
    windows = flat.as_strided((flat.numel() - width + 1, width), (1, 1))
    stride = width + 2 * pad
    plane = torch.arange(batch * channels, device=x.device) * (stride * (height + 2 * pad))
    line = (top[:, None] + torch.arange(height, device=x.device)) * stride + left[:, None]
    start = plane.view(batch, channels, 1) + line[:, None]
    return windows.index_select(0, start.view(-1)).view(batch, channels, height, width)
