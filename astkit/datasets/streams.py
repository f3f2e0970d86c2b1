"""Rows of a data set, fetched batch by batch through torch's DataLoader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from astkit.datasets.images import Images
from astkit.datasets.settings import LoaderSettings
from astkit.rng import derive

POLL_S = 5.0  # torch notices a dead worker only between two waits


class Stream:
    """Fetches the rows it is told to, in that order, in this process or in workers.

    Workers stay alive from pass to pass. torch's global generators are neither read nor moved.
    """

    def __init__(
        self,
        data: Images | Dataset[Any],
        settings: LoaderSettings,
        seed: int,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self._data = data
        self._collate = collate_fn or _collated
        self._settings = settings
        self._seed = seed
        self._passes = 0
        self._chunks = _Chunks()
        self._generator = torch.Generator()
        self._loader = self._new_loader()

    def batches(self, chunks: Sequence[Tensor], epoch: int) -> Iterator[Any]:
        """The collated items, on the CPU, of each int64 tensor of rows in ``chunks``.

        Raises ``RuntimeError`` when a later pass has taken the workers over, when a worker died,
        and when no worker has delivered the next batch in ``timeout_s`` seconds.
        """
        self._passes += 1
        mine = self._passes
        self._chunks.rows = chunks
        # an iterator draws its workers' base seed here instead of from the global generator
        self._generator.manual_seed(derive(self._seed, "workers", epoch))
        iterator = iter(self._loader)
        while True:
            try:
                batch = self._next(iterator)
            except RuntimeError:
                del iterator  # ends its workers now, however long the error is kept
                raise
            if batch is None:
                return
            yield batch
            if self._settings.num_workers and mine != self._passes:
                raise RuntimeError(
                    "Another pass over this loader has begun and taken its workers; finish one "
                    "pass before the next, or use num_workers=0."
                )

    def _new_loader(self) -> DataLoader[Any]:
        settings = self._settings
        # Images gather the rows of a batch at once, so nothing is left to collate
        whole: dict[str, Any] = {"sampler": self._chunks, "batch_size": None}
        rows: dict[str, Any] = {"batch_sampler": self._chunks, "collate_fn": self._collate}
        return DataLoader(
            self._data,  # type: ignore[arg-type]
            **(whole if isinstance(self._data, Images) else rows),
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.num_workers > 0,
            timeout=min(POLL_S, settings.timeout_s) if settings.num_workers else 0,
            generator=self._generator,
        )

    def _next(self, iterator: Iterator[Any]) -> Any:
        """The next batch, None at the end; renews the workers before it reports their failure."""
        limit = self._settings.timeout_s
        deadline = time.monotonic() + limit
        while True:
            try:
                return next(iterator, None)
            except (RuntimeError, EOFError, OSError) as error:
                failure = _failure_of_worker(error) if self._settings.num_workers else None
                if failure is None:
                    raise
                late = failure.startswith("DataLoader timed out")
                if late and time.monotonic() < deadline:
                    continue
            break
        self._loader = self._new_loader()
        del iterator
        if late:
            raise RuntimeError(
                f"No worker delivered the next batch in timeout_s={limit:g} seconds; find out with "
                "num_workers=0 where the data set hangs, or raise timeout_s."
            )
        raise RuntimeError(
            f"A worker died ({failure.partition('. ')[0].rstrip('.')}), most often for want of "
            "memory; lower num_workers or batch_size, or see with num_workers=0 what happens."
        )


def _failure_of_worker(error: Exception) -> str | None:
    """What torch says of a worker that hangs or died, None for any other error."""
    words = str(error)
    if words.startswith(("DataLoader timed out", "DataLoader worker")):
        return words
    # one that dies while it hands a batch over shows as a torn connection; errors of the data set
    # itself arrive as "Caught ..."
    torn = isinstance(error, EOFError | ConnectionError | FileNotFoundError)
    return type(error).__name__ if torn and not words.startswith("Caught ") else None


class _Chunks:
    def __init__(self) -> None:
        self.rows: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[list[int]]:
        rows = self.rows  # a pass keeps the rows it began with
        return (chunk.tolist() for chunk in rows)

    def __len__(self) -> int:
        return len(self.rows)


def _collated(items: list[Any]) -> Any:
    try:
        return default_collate(items)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"The dataset's rows cannot be stacked into a batch ({error}); return tensors of one "
            "shape, for instance with torchvision's PILToTensor and Resize as the transform, or "
            "pass collate_fn."
        ) from error
