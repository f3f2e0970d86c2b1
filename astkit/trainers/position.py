"""Where a run stands, and what it says of each batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from astkit.datasets import BatchSource
from astkit.gating.selection import Selection


@dataclass(frozen=True)
class StepRecord:
    """What ``Trainer.steps`` yields after each batch."""

    step: int
    phase: str  # "train" or "validate"
    metrics: dict[str, Any]


@dataclass
class Position:
    """Where a run stands: all of it, as plain numbers."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    rows: int = 0
    spent: float = 0.0
    phase: str = "train"  # "train", "validate" or "done"
    validated: int = 0
    sums: list[float] = field(default_factory=list)


def batches_in_pass(train: BatchSource, selection: Selection | None) -> float:
    """Batches in a pass over ``train``; infinity while a foreign loader cannot tell."""
    try:
        full = len(train)
    except TypeError:
        return math.inf
    if selection is None:
        return full
    chosen, size = len(selection), getattr(train, "batch_size", None)
    if size is None:
        return math.ceil(full * chosen / (train.num_samples or chosen))
    return chosen // size if getattr(train, "drop_last", False) else -(-chosen // size)
