"""Loads rows of a dataset batch by batch with torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from astkit.datasets.images import Images
from astkit.datasets.settings import LoaderSettings
from astkit.rng import derive


class Stream:
    """Loads given rows in the given order, in this process or in workers.

    Workers are kept between epochs. torch's global generators are not used.
    """

    def __init__(
        self,
        data: Images | Dataset[Any],
        settings: LoaderSettings,
        seed: int,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self._data, self._settings, self._seed = data, settings, seed
        self._collate = collate_fn or _collated
        self._passes = 0
        self._chunks = _Chunks()
        self._generator = torch.Generator()
        self._loader: DataLoader[Any] | None = None

    def batches(self, chunks: Sequence[Tensor], epoch: int) -> Iterator[Any]:
        """The collated items, on the CPU, of each int64 tensor of rows in ``chunks``.

        Raises ``RuntimeError`` if a later pass uses the workers, if a worker died,
        and if no worker has delivered the next batch in ``timeout_s`` seconds.
        """
        self._passes += 1
        mine = self._passes
        self._chunks.rows = chunks
        # an iterator draws its workers' base seed from here instead of the global generator
        self._generator.manual_seed(derive(self._seed, "workers", epoch))
        if self._loader is None:
            self._loader = self._new_loader()
        iterator = iter(self._loader)
        while True:
            try:
                batch = next(iterator, None)
            except (RuntimeError, EOFError, OSError) as error:
                self._loader = None  # the next pass starts new workers
                # errors of the dataset itself start with "Caught ..."
                if not self._settings.num_workers or str(error).startswith("Caught "):
                    del iterator
                    raise
                failure = str(error).partition(". ")[0].rstrip(".") or type(error).__name__
                # an exit while a batch is on its way is seen as a broken connection
                if isinstance(error, EOFError | ConnectionError | FileNotFoundError):
                    failure = f"a worker exited unexpectedly: {failure}"
                break
            if batch is None:
                return
            yield batch
            if self._settings.num_workers and mine != self._passes:
                raise RuntimeError(
                    "Another pass over this loader has started and uses its workers; finish one "
                    "pass before the next, or use num_workers=0."
                )
        del iterator  # ends its workers now, even if the error is kept
        raise RuntimeError(
            f"The loader's workers failed ({failure}). Run with num_workers=0 to see where the "
            "dataset fails or hangs; if memory ran out, lower num_workers or batch_size; if rows "
            "are slow, raise timeout_s."
        )

    def _new_loader(self) -> DataLoader[Any]:
        settings = self._settings
        # Images gather the rows of a batch at once, so no collation is needed
        whole: dict[str, Any] = {"sampler": self._chunks, "batch_size": None}
        rows: dict[str, Any] = {"batch_sampler": self._chunks, "collate_fn": self._collate}
        return DataLoader(
            self._data,  # type: ignore[arg-type]
            **(whole if isinstance(self._data, Images) else rows),
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.num_workers > 0,
            timeout=settings.timeout_s if settings.num_workers else 0,
            generator=self._generator,
        )


class _Chunks:
    def __init__(self) -> None:
        self.rows: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[list[int]]:
        rows = self.rows  # a pass keeps its initial rows
        return (chunk.tolist() for chunk in rows)


def _collated(items: list[Any]) -> Any:
    try:
        return default_collate(items)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"The dataset's rows cannot be stacked into a batch ({error}); return tensors of one "
            "shape, for instance with torchvision's PILToTensor and Resize as the transform, or "
            "pass collate_fn."
        ) from error
