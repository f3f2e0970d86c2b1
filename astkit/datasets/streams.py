"""Rows of a data set, fetched batch by batch through torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from astkit.datasets.images import Images
from astkit.rng import derive


class Stream:
    """Fetches the rows it is told to, in that order, in this process or in workers.

    Workers stay alive from pass to pass. torch's global generators are neither read nor moved.
    """

    def __init__(self, data: Images | Dataset[Any], num_workers: int, seed: int, pin: bool) -> None:
        self._seed = seed
        self._workers = num_workers
        self._passes = 0
        self._chunks = _Chunks()
        self._generator = torch.Generator()
        rows = _Rows(data) if isinstance(data, Images) else data
        collate: Callable[[Any], Any] = _whole if isinstance(data, Images) else _pairs
        self._loader: DataLoader[Any] = DataLoader(
            rows,
            batch_sampler=self._chunks,
            num_workers=num_workers,
            collate_fn=collate,
            pin_memory=pin,
            persistent_workers=num_workers > 0,
            generator=self._generator,
        )

    def batches(self, chunks: Sequence[Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """``(x [B, ...], y [B])`` on the CPU for each int64 tensor of rows in ``chunks``.

        Raises ``RuntimeError`` when a later pass has taken the workers over.
        """
        self._passes += 1
        mine = self._passes
        self._chunks.rows = chunks
        # an iterator draws its workers' base seed here instead of from the global generator
        self._generator.manual_seed(derive(self._seed, "workers", epoch))
        for x, y in self._loader:
            yield x, y
            if self._workers and mine != self._passes:
                raise RuntimeError(
                    "Another pass over this loader has begun and taken its workers; finish one "
                    "pass before the next, or use num_workers=0."
                )


class _Chunks:
    def __init__(self) -> None:
        self.rows: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[list[int]]:
        rows = self.rows  # a pass keeps the rows it began with
        return (chunk.tolist() for chunk in rows)

    def __len__(self) -> int:
        return len(self.rows)


class _Rows(Dataset[Any]):
    def __init__(self, data: Images) -> None:
        self._images = data.images
        self._labels = data.labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self._images[row], self._labels[row]

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        index = torch.tensor(rows, device=self._labels.device)
        return self._images.index_select(0, index), self._labels.index_select(0, index)


def _whole(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch


def _pairs(items: list[Any]) -> tuple[Tensor, Tensor]:
    first = items[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise ValueError(
            f"The dataset returned a {_describe(first)} for one row; "
            "return a pair (x, y) of an input tensor and an integer label."
        )
    try:
        x, y = default_collate(items)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"The dataset's rows cannot be stacked into a batch ({error}); return tensors of one "
            "shape, for instance with torchvision's PILToTensor and Resize as the transform."
        ) from error
    if not isinstance(x, Tensor):
        raise ValueError(f"The dataset's x is a {_describe(first[0])}; return one tensor.")
    return x, as_labels(y)


def as_labels(y: object) -> Tensor:
    """Labels of a batch as int64; raises ``ValueError`` for anything but an integer tensor."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex():
        kind = y.dtype if isinstance(y, Tensor) else _describe(y)
        raise ValueError(f"The labels of a batch are {kind}; pass integer class numbers.")
    return y.long()


def _describe(value: object) -> str:
    length = f" of length {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}{length}"
