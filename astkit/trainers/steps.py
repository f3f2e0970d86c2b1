"""What is done with one batch: train on all of it, on the gate's choice, or row by row.

The three kinds of training differ in nothing but their step; the third, row by row, lives in
`astkit.trainers.sample_by_sample`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from astkit.datasets.loaders import Batch
from astkit.gating import Gate, Selection
from astkit.profiling.ledger import Ledger
from astkit.trainers.learner import Learner


class StepResult(NamedTuple):
    """What one step did: which rows of the batch it trained on, at what loss, what it scored."""

    rows: Tensor  # int64 [trained]
    losses: Tensor  # [trained], before the update
    scored: int = 0
    selection: Selection | None = None
    scores: Tensor | None = None  # [batch], what the gate decided on
    passes: int = 1  # forward passes of the model that each score took


class Step(Protocol):
    """Trains a learner on one batch; ``weight [batch]`` comes from selection before loading."""

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def _weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    return losses.mean() if weight is None else (losses * weight).sum() / weight.sum()


class DenseStep:
    """Trains on every row of the batch."""

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        with ledger.phase("train"):
            losses = learner.losses(batch.x, batch.y)
            learner.update(_weighted_mean(losses, weight))
        return StepResult(torch.arange(len(losses)), losses.detach())

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A dense step remembers nothing."""


class GatedStep:
    """Scores the whole batch in one pass and trains on the rows that the gate chooses."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        with ledger.phase("score"):
            scores = learner.scores(self.gate, batch.x, batch.y, batch.index)
        with ledger.phase("gate"):
            chosen = self.gate.select(scores, batch.index)
        scoring = (len(scores), chosen, scores, self.gate.passes)
        if not len(chosen):
            return StepResult(chosen.index, scores[:0], *scoring)
        with ledger.phase("train"):
            x, y = chosen.take((batch.x, batch.y))
            losses = learner.losses(x, y)
            mean = (
                chosen.mean(losses)
                if weight is None
                else _weighted_mean(losses, chosen.weight * chosen.take(weight))
            )
            learner.update(mean)
        return StepResult(chosen.index, losses.detach(), *scoring)

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the gate; see `Gate.steer`."""
        self.gate.steer(name, value)

    def state_dict(self) -> dict[str, Any]:
        return {"gate": self.gate.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gate.load_state_dict(state["gate"])
