"""Batches for training: rows chosen before loading, augmented and normalised on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from astkit.datasets.augment import Augment
from astkit.datasets.images import Images, check_label_range
from astkit.datasets.streams import Stream
from astkit.rng import permutation

FREE_SHARE = 0.25  # of the device's free memory that a resident data set may take

Statistic = float | Sequence[float] | Tensor


class Batch(NamedTuple):
    """``index`` int64 ``[B]``: rows of the data set; ``x`` ``[B, ...]``; ``y`` int64 ``[B]``.

    All three lie on the loader's device.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    x: Tensor
    y: Tensor


@runtime_checkable
class BatchSource(Protocol):
    """What a training loop needs of its data; ``Loader`` and ``ForeignLoader`` both provide it."""

    @property
    def num_samples(self) -> int | None:
        """Samples in a full pass, ``None`` when the source cannot tell."""

    def __len__(self) -> int:
        """Batches in a full pass; raises ``TypeError`` when the source cannot tell."""

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of pass ``epoch``, visiting rows ``order``, without the first ``start``."""

    def check_labels(self, num_outputs: int) -> None:
        """Raise ``ValueError``, now or at the batch, for a label outside ``0..num_outputs-1``."""


class Loader:
    """Batches of ``data`` whose order and augmentation are functions of (seed, epoch, row) alone.

    ``data``: ``Images``, or a map-style torch dataset of ``(x, y)`` items. uint8 ``x`` becomes
    float32: ``(x / 255 - mean) / std`` with ``normalize=(mean, std)`` (numbers or ``[C]``, units
    0..1), ``x / 255`` with None; any other ``x`` is passed on as it is. ``augment``: of ``"crop"``
    (``pad`` black pixels on each side) and ``"flip"``. ``resident``: keep all images on ``device``
    as uint8; ``"auto"`` does so when they are there already or take at most a quarter of its free
    memory. ``num_workers``: processes that fetch rows when the data are not resident.
    Both paths give the same batches, bit for bit. Raises ``ValueError`` for impossible arguments.
    """

    def __init__(
        self,
        data: Images | Dataset[Any],
        batch_size: int = 128,
        *,
        augment: Sequence[str] = (),
        pad: int = 4,
        shuffle: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        resident: bool | Literal["auto"] = "auto",
        num_workers: int = 0,
        normalize: tuple[Statistic, Statistic] | None = None,
        drop_last: bool = False,
    ) -> None:
        _check_arguments(data, batch_size, resident, num_workers)
        self.data = data
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.num_workers = num_workers
        self.drop_last = drop_last
        self._augment = Augment(augment, pad, seed)
        self._scale, self._bias = _scale_and_bias(normalize, data)
        self._wanted = resident
        self._outputs: int | None = None
        self._stored: tuple[Tensor, Tensor] | None = None
        self._stream: Stream | None = None
        self.to(device)

    def to(self, device: torch.device | str) -> Loader:
        """Deliver on ``device`` from the next pass on; decides residency anew. Returns itself."""
        self.device = torch.device(device)
        self._stored = None
        self._stream = None
        self._scale = self._scale.to(self.device)
        self._bias = None if self._bias is None else self._bias.to(self.device)
        self.resident = isinstance(self.data, Images) and (
            fits(self.data.images, self.device) if self._wanted == "auto" else self._wanted
        )
        return self

    @property
    def num_samples(self) -> int:
        """Rows in the data set."""
        return len(self.data)  # type: ignore[arg-type]

    @property
    def num_classes(self) -> int | None:
        """Classes the data set names, ``None`` when it names none."""
        classes = getattr(self.data, "classes", None)
        return None if classes is None else len(classes)

    def __len__(self) -> int:
        whole, rest = divmod(self.num_samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of pass ``epoch``.

        ``order``: int64 ``[K]``, rows to visit; those left out cost no load. Default: every row, in
        the pass's own random order when ``shuffle``. ``start``: batches to leave out without
        loading them, so that an interrupted pass goes on where it stopped.
        Raises ``ValueError`` for rows that do not exist and, while iterating, for unusable items.
        """
        if start < 0:
            raise ValueError(
                f"start is {start}; pass the number of batches already done, 0 or more."
            )
        if order is None:
            n = self.num_samples
            order = permutation(n, self.seed, "order", epoch) if self.shuffle else torch.arange(n)
        else:
            _check_order(order, self.num_samples)
        if self.drop_last:
            order = order[: len(order) // self.batch_size * self.batch_size]
        return self._deliver(order[start * self.batch_size :], epoch)

    def check_labels(self, num_outputs: int) -> None:
        """Raise ``ValueError`` for a label that a model with ``num_outputs`` outputs cannot learn.

        ``Images`` are checked now, other data sets batch by batch as they are loaded.
        """
        self._outputs = num_outputs
        if isinstance(self.data, Images):
            check_label_range(self.data.labels, num_outputs, f"{self.data.name!r}")

    def _deliver(self, order: Tensor, epoch: int) -> Iterator[Batch]:
        if len(order) == 0:
            return
        index = order.to(self.device)
        moves = self._augment.draw(index, epoch)
        chunks = index.split(self.batch_size)
        fetched = self._gather(chunks) if self.resident else self._fetch(order, epoch)
        first = 0
        for rows, (x, y) in zip(chunks, fetched, strict=True):
            x = self._augment.apply(x, moves.rows(first, first + len(rows)))
            yield Batch(rows, self._normalized(x), y)
            first += len(rows)

    def _gather(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        assert isinstance(self.data, Images)
        if self._stored is None:
            self._stored = (self.data.images.to(self.device), self.data.labels.to(self.device))
        images, labels = self._stored
        for rows in chunks:
            yield images.index_select(0, rows), labels.index_select(0, rows)

    def _fetch(self, order: Tensor, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        if self._stream is None:
            pin = self.device.type == "cuda"
            self._stream = Stream(self.data, self.num_workers, self.seed, pin)
        chunks = order.cpu().split(self.batch_size)
        for x, y in self._stream.batches(chunks, epoch):
            if self._outputs is not None and not isinstance(self.data, Images):
                check_label_range(y, self._outputs, "a batch")
            yield x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def _normalized(self, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8:
            return x
        x = x.float().mul_(self._scale)
        return x if self._bias is None else x.add_(self._bias)


def fits(images: Tensor, device: torch.device) -> bool:
    """Whether ``images`` may stay on ``device``: already there, or small beside its free memory."""
    if images.device.type == device.type:
        return True
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):  # such a device does not say what is free
        return False
    free: int = module.mem_get_info(device)[0]
    return images.numel() * images.element_size() <= FREE_SHARE * free


def _scale_and_bias(
    normalize: tuple[Statistic, Statistic] | None, data: object
) -> tuple[Tensor, Tensor | None]:
    if normalize is None:
        return torch.tensor(1 / 255), None
    mean, std = (torch.as_tensor(part, dtype=torch.float64).reshape(-1).cpu() for part in normalize)
    if not (torch.isfinite(mean).all() and torch.isfinite(std).all() and (std > 0).all()):
        raise ValueError(
            f"normalize has mean {mean.tolist()} and std {std.tolist()}; "
            "pass finite means and positive deviations, as Images.channel_stats() gives them."
        )
    channels = data.shape[0] if isinstance(data, Images) else max(len(mean), len(std))
    if {len(mean), len(std)} - {1, channels}:
        raise ValueError(
            f"normalize has {len(mean)} means and {len(std)} deviations for {channels} channels; "
            "pass one number, or one for each channel."
        )
    shape = (-1, 1, 1)
    return (1 / (255 * std)).float().view(shape), (-mean / std).float().view(shape)


def _check_arguments(data: object, batch_size: int, resident: object, num_workers: int) -> None:
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise ValueError(
            f"data is a {type(data).__name__}, which has no rows to choose from; pass Images or a "
            "map-style dataset, or wrap a DataLoader over it with as_loader."
        )
    if len(data) == 0:
        raise ValueError("data is empty; pass a data set with at least one row.")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; pass 1 or more.")
    if num_workers < 0:
        raise ValueError(f"num_workers is {num_workers}; pass 0 or more.")
    if resident not in (True, False, "auto"):
        raise ValueError(f"resident is {resident!r}; pass True, False or 'auto'.")
    if resident is True and not isinstance(data, Images):
        raise ValueError(
            f"resident is True, but data is a {type(data).__name__}; only Images can stay on the "
            "device, so pass Images or resident='auto'."
        )


def _check_order(order: Tensor, samples: int) -> None:
    if order.dtype != torch.int64 or order.ndim != 1:
        raise ValueError(
            f"order is a {order.dtype} tensor of shape {list(order.shape)}; "
            "pass int64 rows of shape [K]."
        )
    if len(order) and (int(order.min()) < 0 or int(order.max()) >= samples):
        raise ValueError(
            f"order reaches from {int(order.min())} to {int(order.max())}, but the data set has "
            f"{samples} rows; pass rows 0 to {samples - 1}."
        )
