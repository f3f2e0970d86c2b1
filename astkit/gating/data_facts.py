"""What a policy may know of a data set before anything is loaded: labels, and repeated rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from astkit.gating.policy import Policy

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
    name or ``label``. ``samples``: by default the length of ``data``. Of a DataLoader, its data set
    counts.
    """
    data = _unwrapped(data)
    if samples is None:
        samples = len(data) if hasattr(data, "__len__") else -1
    for name in ("labels", "targets", "label"):
        held = _column(data, name) if hasattr(data, "column_names") else getattr(data, name, None)
        if held is None or not hasattr(held, "__len__") or len(held) != samples:
            continue
        try:
            labels = torch.as_tensor(held)
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
    data = _unwrapped(data)
    held = next(iter(getattr(data, "tensors", ())), getattr(data, "images", None))
    if not policy.needs_distinct or not isinstance(held, Tensor) or held.nbytes > LARGEST:
        return None
    rows = held.cpu().reshape(len(held), -1).contiguous().view(torch.uint8).numpy()
    return len({hash(row.tobytes()) for row in rows})


def _unwrapped(data: Any) -> Any:
    data = data.dataset if isinstance(data, DataLoader) else data
    while hasattr(data, "indexed_data"):
        data = data.indexed_data
    return data


def _column(data: Any, name: str) -> Any:
    """Integer column of a Hugging Face data set; ``None`` if there is none."""
    kind = getattr((data.features or {}).get(name), "dtype", "")
    integers = isinstance(kind, str) and "int" in kind and hasattr(data, "__len__")
    return data.with_format("numpy")[name][:] if integers else None  # without a transform
