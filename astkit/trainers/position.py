"""Where a run stands, and what it says of each batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
    correct: float = 0.0
    loss_sum: float = 0.0
    evaluated: int = 0
    validated: int = 0
