"""Budgets and schedules: how much may be spent, and the learning rate along the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from astkit.profiling.ledger import Ledger

Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Budget:
    """Exactly one of: passes over the data, FLOPs of training, seconds of training.

    Schedules run on the share of the budget that is spent, so every run's schedule ends where its
    budget ends, whatever the budget is counted in. Evaluation is never charged.

    Raises ``ValueError`` unless exactly one limit is given and it is positive.
    """

    epochs: float | None = None
    flops: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        limits = {"epochs": self.epochs, "flops": self.flops, "seconds": self.seconds}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if len(given) != 1:
            raise ValueError(
                f"budget names {sorted(given) or 'no limit'}: give exactly one of epochs, flops and"
                " seconds"
            )
        for name, limit in given.items():
            if not 0 < limit < math.inf:
                raise ValueError(f"budget {name} is {limit}: give a positive, finite number")

    def spent(self, epochs: float, ledger: Ledger) -> float:
        """Share of the budget that is spent, in [0, 1], after ``epochs`` passes."""
        if self.epochs is not None:
            share = epochs / self.epochs
        elif self.flops is not None:
            share = ledger.flops.total / self.flops
        else:
            share = ledger.seconds["training"] / (self.seconds or math.inf)
        return min(1.0, share)


def cosine(progress: float) -> float:
    """Half a cosine from 1 to 0. Source: Loshchilov and Hutter, "SGDR", ICLR 2017."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def constant(progress: float) -> float:
    """Always 1."""
    return 1.0


SCHEDULES: dict[str, Schedule] = {"cosine": cosine, "constant": constant}
