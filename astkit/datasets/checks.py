"""What a few rows of the data tell, such as targets that would be numbers of rows in silence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from astkit.datasets.batch import Args, Batch
from astkit.rng import restored

SAMPLED = 16  # rows that are read to find out what the data hold


def check_target(batch: Batch, data: Any) -> None:
    """Raise ``ValueError`` if the last part of a longer tuple, its target, numbers the rows.

    That is: no integer occurs twice in the batch, and the last part of `SAMPLED` rows of ``data``
    is their number. A batch of data whose rows cannot be read has to count up by one, in more than
    `SAMPLED` rows.
    """
    numbers = batch.y
    if not isinstance(batch.x, Args) or not isinstance(numbers, Tensor) or numbers.ndim != 1:
        return
    if numbers.is_floating_point() or len(numbers.unique()) < len(numbers):
        return
    while isinstance(data, Subset):
        data = data.dataset
    rows = sampled_rows(data)
    if rows is None:
        counted = len(numbers) > SAMPLED and bool((numbers.diff() == 1).all())
    else:
        counted = all(
            isinstance(item, tuple | list) and as_number(item[-1]) == row for row, item in rows
        )
    if counted:
        raise ValueError(
            "the last part of each batch, its target, is the number of the row: yield"
            " (inputs, target), and wrap the data in astkit.indexed if their numbers are needed"
        )


def sampled_rows(data: Any) -> list[tuple[int, Any]] | None:
    """Up to `SAMPLED` evenly spaced rows of ``data`` with their numbers; ``None`` if unreadable.

    Default random generators are restored.
    """
    sized = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, IterableDataset) or not sized or not len(data):
        return None
    places = torch.linspace(0, len(data) - 1, min(SAMPLED, len(data))).long()
    with restored():
        return [(number, data[number]) for number in places.tolist()]


def as_number(value: Any) -> float | None:
    """A number, also as a tensor or array of one element; ``None`` for anything else."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        return None
