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

    def metrics(self, due: bool) -> dict[str, Any]:
        """Loss, rate and threshold for the record; what lies on a device only when ``due``."""
        loss = None
        if due and len(self.losses):  # rows that pad a selection weigh nothing in its mean
            chosen = self.selection
            loss = float(self.losses.mean() if chosen is None else chosen.mean(self.losses))
        found: dict[str, Any] = {"loss": loss, "trained": len(self.rows)}
        if self.selection is not None:
            for name in ("rate", "threshold", "target_rate"):
                value = getattr(self.selection, name)
                if isinstance(value, Tensor):
                    value = float(value) if due else None
                found[name] = value
        return found


class Step(Protocol):
    """Trains a learner on one batch; ``weight [batch]`` comes from selection before loading."""

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DenseStep:
    """Trains on every row of the batch."""

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        losses = learner.train(batch.x, batch.y, weight, ledger)
        return StepResult(torch.arange(len(losses)), losses)

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
            learner.end_batch(ledger)
            return StepResult(chosen.index, scores[:0], *scoring)
        with ledger.phase("gate"):
            x, y = chosen.take((batch.x, batch.y))
            counts = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
        losses = learner.train(x, y, counts, ledger)
        return StepResult(chosen.index, losses, *scoring)

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the gate; see `Gate.steer`."""
        self.gate.steer(name, value)

    def state_dict(self) -> dict[str, Any]:
        return {"gate": self.gate.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gate.load_state_dict(state["gate"])
