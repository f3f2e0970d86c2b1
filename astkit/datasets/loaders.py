"""Batches for training: rows selected before loading; augmented and normalised on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset

from astkit import distributed
from astkit.batch import Batch, as_batch
from astkit.datasets.augment import Augment, Normalize, Statistic
from astkit.datasets.images import Images, check_label_range
from astkit.datasets.settings import TIMEOUT_S, loader_settings
from astkit.datasets.streams import Stream
from astkit.gating.losses import IGNORED
from astkit.identity import configuration
from astkit.rng import permutation


@runtime_checkable
class BatchSource(Protocol):
    """Data interface of the training loop.

    A source that supports an ``order`` of rows also has ``order(epoch)``, the rows of an epoch.
    """

    @property
    def num_samples(self) -> int | None:
        """Samples in a full pass, ``None`` if unknown."""

    def __len__(self) -> int:
        """Batches in a full pass; raises ``TypeError`` if unknown."""

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch over rows ``order``, skipping the first ``start``."""

    def check_labels(self, num_outputs: int) -> None:
        """Raise ``ValueError``, now or at the batch, for a label outside ``0..num_outputs-1``."""


class Loader:
    """Batches of ``data`` whose order and augmentation depend only on (seed, epoch, row).

    Batches are bitwise identical with resident data, with streaming and with workers.

    Args:
        data: ``Images``, or a map-style torch dataset with items of any structure, see
            `astkit.batch.as_batch`.
        augment: any of ``"crop"`` (``pad`` black pixels on each side) and ``"flip"``.
        device: device of the batches.
        resident: keep all images on ``device`` as uint8; ``"auto"`` does so if they are already
            there or take at most a quarter of its free memory.
        num_workers: worker processes if the data are not resident; ``"auto"`` chooses by
            cores, free memory and the size of a row, see ``settings``.
        normalize: ``(mean, std)``, numbers or ``[C]``, units 0..1. A uint8 image tensor ``x``
            becomes float32 ``(x / 255 - mean) / std``, or ``x / 255`` with None; any other ``x``
            is unchanged.
        timeout_s: seconds without a batch from a worker after which an error is raised.
        collate_fn: forms a batch from items; torch's default_collate by default.

    Raises ``ValueError`` for invalid arguments.
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
        num_workers: int | Literal["auto"] = 0,
        normalize: tuple[Statistic, Statistic] | None = None,
        drop_last: bool = False,
        timeout_s: float = TIMEOUT_S,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.data = data
        self.collate_fn = collate_fn
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self._augment = Augment(augment, pad, seed)
        # what a resumed run compares beside the data
        given = {"augment": list(self._augment.names), "pad": pad, "normalize": normalize}
        self.transforms = configuration(given) if augment or normalize else {}
        channels = data.shape[0] if isinstance(data, Images) else None
        self._normalize = Normalize(normalize, channels)
        self._asked: Any = {
            "num_workers": num_workers,
            "resident": resident,
            "timeout_s": timeout_s,
        }
        self._outputs: int | None = None
        self._stored: tuple[Tensor, Tensor] | None = None
        self._stream: Stream | None = None
        self._divided = False
        self.to(device)

    def to(self, device: torch.device | str) -> Self:
        """Deliver batches on ``device`` from the next pass on; recomputes automatic settings."""
        self.device = torch.device(device)
        self.settings = loader_settings(self.data, self.batch_size, self.device, **self._asked)
        self._stored = self._stream = None
        self._normalize = self._normalize.on(self.device)
        return self

    def reseeded(self, seed: int) -> Self:
        """A copy whose order and augmentation are drawn with ``seed``."""
        other = copy.copy(self)
        other.seed, other._stream = seed, None
        other._augment = Augment(self._augment.names, self._augment.pad, seed)
        return other

    def divided(self) -> Self:
        """A copy whose batches hold this process's share of the rows; see `distributed.share`."""
        other = copy.copy(self)
        other._divided, other._stream = True, None
        return other

    def order(self, epoch: int) -> Tensor:
        """The rows of ``epoch`` in order: int64 ``[num_samples]``, on the CPU."""
        n = self.num_samples
        return permutation(n, self.seed, "order", epoch) if self.shuffle else torch.arange(n)

    @property
    def keyed(self) -> bool:
        """Whether forming a batch leaves this process's default random generators unchanged."""
        return isinstance(self.data, Images) or self.settings.num_workers > 0

    @property
    def num_samples(self) -> int:
        """Rows in the dataset."""
        return len(self.data)  # type: ignore[arg-type]

    def __len__(self) -> int:
        whole, rest = divmod(self.num_samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def batches(self, epoch: int, order: Tensor | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of pass ``epoch``.

        ``order``: int64 ``[K]``, rows to load; default: ``order(epoch)``.
        ``start``: batches to skip without loading them, to resume an interrupted pass.
        Raises ``ValueError`` for rows out of range and, during iteration, for invalid items.
        """
        check_start(start)
        order = self.order(epoch) if order is None else order
        _check_order(order, self.num_samples)
        if self.drop_last:
            order = order[: len(order) // self.batch_size * self.batch_size]
        chunks = order[start * self.batch_size :].split(self.batch_size)
        if self._divided:
            chunks = tuple(chunk[distributed.share(len(chunk))] for chunk in chunks)
        return self._deliver(chunks, epoch)

    def check_labels(self, num_outputs: int) -> None:
        """Raise ``ValueError`` for a label out of range for a model with ``num_outputs`` outputs.

        ``Images`` are checked immediately, other datasets batch by batch during loading.
        """
        self._outputs = num_outputs
        if isinstance(self.data, Images):
            check_label_range(self.data.labels, num_outputs, f"{self.data.name!r}")

    def _deliver(self, chunks: Sequence[Tensor], epoch: int) -> Iterator[Batch]:
        index = torch.cat([*chunks]).to(self.device)
        if len(index) == 0:
            return
        moves = self._augment.draw(index, epoch)
        placed = index.split([len(chunk) for chunk in chunks])
        fetched = self._gather(placed) if self.settings.resident else self._fetch(chunks, epoch)
        first = 0
        for rows, item in zip(placed, fetched, strict=True):
            batch = as_batch(item, rows)
            if self._outputs is not None and not isinstance(self.data, Images):
                check_labels_of(batch.y, self._outputs, "a batch")
            batch = batch.to(self.device)
            if isinstance(batch.x, Tensor) and batch.y is not batch.x:
                x = self._augment.apply(batch.x, moves.rows(first, first + len(rows)))
                batch = batch._replace(x=self._normalize(x) if x.ndim > 2 else x)  # not of tokens
            yield batch
            first += len(rows)

    def _gather(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        assert isinstance(self.data, Images)
        if self._stored is None:
            self._stored = (self.data.images.to(self.device), self.data.labels.to(self.device))
        images, labels = self._stored
        for rows in chunks:
            yield images.index_select(0, rows), labels.index_select(0, rows)

    def _fetch(self, chunks: Sequence[Tensor], epoch: int) -> Iterator[Any]:
        if self._stream is None:
            self._stream = Stream(self.data, self.settings, self.seed, self.collate_fn)
        return self._stream.batches([chunk.cpu() for chunk in chunks], epoch)


def check_labels_of(targets: Any, outputs: int, where: str) -> None:
    """Raise ``ValueError`` if class labels in the targets of a batch exceed ``outputs``."""
    labels = targets.get("labels") if isinstance(targets, Mapping) else targets
    if isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point():
        real = labels[labels != IGNORED]
        if len(real):
            check_label_range(real, outputs, where)


def _check_order(order: Tensor, samples: int) -> None:
    if order.dtype != torch.int64 or order.ndim != 1:
        raise ValueError(
            f"order is a {order.dtype} tensor of shape {list(order.shape)}; "
            "pass int64 rows of shape [K]."
        )
    if len(order) and (int(order.min()) < 0 or int(order.max()) >= samples):
        raise ValueError(
            f"order reaches from {int(order.min())} to {int(order.max())}, but the dataset has "
            f"{samples} rows; pass rows 0 to {samples - 1}."
        )


def check_start(start: int) -> None:
    if start < 0:
        raise ValueError(f"start is {start}; pass the number of batches already done, 0 or more.")
