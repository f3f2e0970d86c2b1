"""What a policy may know of a data set before anything is loaded: labels, and repeated rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

if TYPE_CHECKING:
    from astkit.gating.policy import Policy

NAMES = ("labels", "targets", "label")
"""Attributes and columns in which class labels are looked for."""
LARGEST = 2**30
"""Bytes of the largest data of which `distinct_rows` reads all."""


def data_facts(policy: Policy, data: Any, samples: int, validation: Any) -> dict[str, Any]:
    """The attributes of `RunInfo` that ``data`` and ``validation`` data (or ``None``) determine."""
    return {
        "samples": samples,
        "labels": class_labels(data, samples),
        "validation_labels": class_labels(validation),
        "distinct": distinct_rows(policy, data),
    }


def class_labels(data: Any, samples: int | None = None) -> Tensor | None:
    """Class labels of a data set, int64 ``[samples]``, or ``None``.

    The attribute ``labels`` or ``targets``; of a Hugging Face data set, an integer column of this
    name or ``label``; of a TensorDataset, the last of several tensors, if it holds one integer per
    row, each less than their number. Of a DataLoader its data set counts, of a Subset and a
    ConcatDataset their parts. ``samples``: by default the length of ``data``.
    """
    data, rows = _inside(data)
    if samples is None:
        samples = len(data if rows is None else rows) if hasattr(data, "__len__") else -1
    if rows is not None:
        whole = class_labels(data)
        return None if whole is None or len(rows) != samples else whole[rows]
    if isinstance(data, ConcatDataset):
        parts = [class_labels(part) for part in data.datasets]
        known = [labels for labels in parts if labels is not None]
        return torch.cat(known) if len(known) == len(parts) and len(data) == samples else None
    held = [_column(data, name) for name in NAMES]
    if isinstance(data, TensorDataset) and len(data.tensors) > 1 and len(data):
        last = data.tensors[-1]  # other integers, such as counts, may be far larger
        held += [last] if 0 <= last.min() <= last.max() < len(last) else []
    for each in held:
        if each is None or not hasattr(each, "__len__") or len(each) != samples:
            continue
        try:
            labels = torch.as_tensor(each if isinstance(each, Tensor) else np.array(each))
        except (TypeError, ValueError, RuntimeError):
            continue
        if labels.ndim == 1 and not labels.is_floating_point():
            return labels.cpu().long()
    return None


def distinct_rows(policy: Policy, data: Any) -> int | None:
    """Number of different rows, if ``policy`` needs it and the data are one tensor in memory.

    The tensor is the attribute ``images``, or the first of a TensorDataset, of `LARGEST` bytes at
    most. Rows are compared by a 64-bit hash.
    """
    data, chosen = _inside(data)
    held = next(iter(getattr(data, "tensors", ())), getattr(data, "images", None))
    if not policy.needs_distinct or not isinstance(held, Tensor) or held.nbytes > LARGEST:
        return None
    held = held if chosen is None else held[chosen]
    rows = held.cpu().reshape(len(held), -1).contiguous().view(torch.uint8).numpy()
    return len({hash(row.tobytes()) for row in rows})


def _inside(data: Any) -> tuple[Any, Tensor | None]:
    """The data set within loaders and subsets, and its rows in them; ``None`` for all in order."""
    rows = None
    while True:
        if isinstance(data, DataLoader):
            data = data.dataset
        elif hasattr(data, "indexed_data"):
            data = data.indexed_data
        elif isinstance(data, Subset) and not any(hasattr(data, name) for name in NAMES):
            own = torch.as_tensor(data.indices, dtype=torch.int64)
            data, rows = data.dataset, own if rows is None else own[rows]
        else:
            return data, rows


def _column(data: Any, name: str) -> Any:
    """Attribute of a data set, or integer column of a Hugging Face one; ``None`` without it."""
    if not hasattr(data, "column_names"):
        return getattr(data, name, None)
    kind = getattr((data.features or {}).get(name), "dtype", "")
    integers = isinstance(kind, str) and "int" in kind and hasattr(data, "__len__")
    return data.with_format("numpy")[name][:] if integers else None  # without a transform
