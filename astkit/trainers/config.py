"""The settings of a training run, in one frozen place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from astkit.trainers.budget import SCHEDULES

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class TrainConfig:
    """What does not change during a run.

    Attributes:
        lr: peak learning rate of AdamW.
        weight_decay: AdamW's decoupled weight decay.
        clip_norm: gradients are scaled down to this norm; ``None`` leaves them alone.
        schedule: learning rate over the budget, "cosine" or "constant".
        precision: "fp32", or "bf16" for autocast with float32 weights.
        channels_last: keep images and convolutions in NHWC memory order.
        seed: of dropout; data order, augmentation and gate carry their own.

    Raises ``ValueError`` for a value outside its range.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    schedule: str = "cosine"
    precision: str = "fp32"
    channels_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr}: give a learning rate above 0, such as 0.001")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay is {self.weight_decay}: give 0 or more, such as 0.01")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(
                f"clip_norm is {self.clip_norm}: give a norm above 0, or None for none"
            )
        for name, allowed in (("schedule", tuple(SCHEDULES)), ("precision", PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}: choose one of {', '.join(allowed)}"
                )

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], also: Iterable[str] = ()) -> TrainConfig:
        """A configuration from plain settings; ``ValueError`` names any key it does not know.

        ``also``: keys that the caller takes himself, for that sentence.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ValueError(
                f"unknown setting {', '.join(unknown)}: choose from"
                f" {', '.join(sorted(known | set(also)))}"
            )
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return asdict(self)
