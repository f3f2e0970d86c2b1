"""Checks of labels and targets, where they would give a wrong number in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from astkit.datasets.batch import IGNORED, Args, Batch
from astkit.rng import restored

SAMPLED = 16  # rows that are read to find out what the data hold


def check_label_range(
    labels: Tensor, outputs: int, where: str, what: str = "the model has"
) -> None:
    """Raise ``ValueError`` unless every label lies in ``0..outputs-1``.

    The message contains the lowest or highest invalid label, its count in ``where``, and the
    remedy; ``what`` names the provider of the ``outputs``.
    """
    low, high = int(labels.min()), int(labels.max())
    if low >= 0 and high < outputs:
        return
    bad = low if low < 0 else high
    count = int((labels == bad).sum())
    remedy = (
        "renumber the labels from 0, or drop those rows"
        if bad < 0
        else f"provide at least {bad + 1}, or renumber the labels"
    )
    raise ValueError(
        f"Label {bad} occurs {count} time{'' if count == 1 else 's'} in {where}, but {what} "
        f"{outputs} (labels 0 to {outputs - 1}); {remedy}."
    )


def check_labels_of(targets: Any, outputs: int, where: str) -> None:
    """Raise ``ValueError`` if class labels in the targets of a batch exceed ``outputs``."""
    labels = targets.get("labels") if isinstance(targets, Mapping) else targets
    if isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point():
        real = labels[labels != IGNORED]
        if len(real):
            check_label_range(real, outputs, where)


def check_target(batch: Batch, data: Any) -> None:
    """Raise ``ValueError`` if the last part of a longer tuple, its target, numbers the rows.

    That is: no number occurs twice; they equal the batch's index, if it is known; and the last part
    of `SAMPLED` rows of ``data`` is their number, also within a Subset. Of data whose rows cannot
    be read, the first batch has to count up by one, in more than `SAMPLED` rows.
    """
    numbers = batch.y
    if not isinstance(batch.x, Args) or not isinstance(numbers, Tensor) or numbers.ndim != 1:
        return
    if numbers.is_floating_point() or len(numbers.unique()) < len(numbers):
        return
    within = None
    while isinstance(data, Subset):
        own = torch.as_tensor(data.indices, dtype=torch.int64)
        data, within = data.dataset, own if within is None else own[within]
    if batch.index is not None:
        index = batch.index.cpu()
        if not torch.equal(numbers.cpu(), index if within is None else within[index]):
            return
    rows = sampled_rows(data, within)
    if rows is None:
        counted = len(numbers) > SAMPLED and bool((numbers.diff() == 1).all())
    else:
        counted = all(
            isinstance(item, tuple | list) and len(item) > 2 and as_number(item[-1]) == row
            for row, item in rows
        )
    if counted:
        raise ValueError(
            "the last part of each batch, its target, is the number of the row: yield"
            " (inputs, target), and wrap the data in astkit.indexed if their numbers are needed"
        )


def sampled_rows(data: Any, numbers: Tensor | None = None) -> list[tuple[int, Any]] | None:
    """Up to `SAMPLED` evenly spaced rows of ``data`` with their numbers; ``None`` if unreadable.

    ``numbers``: int64, of the rows to sample from. Default random generators are restored.
    """
    sized = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, IterableDataset) or not sized or not len(data):
        return None
    numbers = torch.arange(len(data)) if numbers is None else numbers
    places = torch.linspace(0, len(numbers) - 1, min(SAMPLED, len(numbers))).long()
    with restored():
        return [(number, data[number]) for number in numbers[places].tolist()]


def as_number(value: Any) -> float | None:
    """A number, also as a tensor or array of one element; ``None`` for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if (
        isinstance(value, np.ndarray | np.generic)
        and value.size == 1
        and value.dtype.kind in "biuf"
    ):
        return float(value.item())
    return float(value) if isinstance(value, int | float) else None
