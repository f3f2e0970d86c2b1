"""Steps: training on all rows of a batch, or on those selected by a policy.

See `astkit.trainers.sample_by_sample` for sample-by-sample training.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from astkit import distributed
from astkit.batch import Batch
from astkit.gating import Gate, Policy, Scored, Selection
from astkit.profiling.ledger import Ledger
from astkit.trainers.learner import Learner

LONE = "more than 1 value per channel"
"""Words of torch's error if BatchNorm cannot normalise a single row."""


class StepResult(NamedTuple):
    """Result of a step: rows trained on, their losses, and the scores."""

    rows: Tensor  # int64 [computed], including rows of weight 0
    losses: Tensor  # [computed], before the update
    scored: int = 0
    selection: Selection | None = None
    scores: Tensor | None = None  # [batch], from the gate
    seen: Scored | None = None  # the batch as the policy saw it

    @property
    def padded(self) -> Tensor | None:
        """Number of padding rows in the selection, 0-dim; ``None`` without padding."""
        chosen = self.selection
        if chosen is None or not (isinstance(chosen.rate, Tensor) or distributed.world() > 1):
            return None  # such a selection has no padding
        return (per_row(chosen.weight) == 0).sum()

    def metrics(self, due: bool) -> dict[str, Any]:
        """Loss, rate and threshold for the record; values on a device only when ``due``."""
        loss = None
        if due and len(self.losses):  # padding rows have weight 0 in the mean
            chosen = self.selection
            loss = float(self.losses.mean() if chosen is None else _mean(chosen, self.losses))
        padded = self.padded
        trained = len(self.rows) - (int(padded) if due and padded is not None else 0)
        found: dict[str, Any] = {"loss": loss, "trained": trained}
        if self.selection is not None:
            for name in ("rate", "threshold", "target_rate"):
                value = getattr(self.selection, name)
                if isinstance(value, Tensor):
                    value = float(value) if due else None
                found[name] = value
        return found


class Step(Protocol):
    """Trains a learner on one batch.

    ``weight [batch]``, from selection before loading, scales the losses before averaging over the
    rows; ``None`` means 1.
    """

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DenseStep:
    """Trains on all rows of the batch."""

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        rows = (learner.batch_rows or batch.rows) / distributed.world()
        losses = trained(learner, batch, weight, ledger, rows)
        return StepResult(torch.arange(len(losses)), losses)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing: a dense step has no state."""


class GatedStep:
    """Trains on the rows of the batch selected by a policy, such as a `Gate`."""

    def __init__(self, gate: Policy) -> None:
        self.gate = gate

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        seen = learner.scored(batch)
        chosen, scores = selected(self.gate, seen, ledger)
        if distributed.world() > 1 and not len(chosen):
            chosen = chosen.padded()
        scoring = (batch.rows if seen.read else 0, chosen, scores, seen)
        if not len(chosen):
            learner.end_batch(ledger)
            return StepResult(chosen.index, torch.empty(0), *scoring)
        with ledger.phase("gate"):
            part = batch._replace(index=None).take(chosen.index)
            counts, rows = chosen.weight, chosen.index.to(chosen.weight.device)
            if weight is not None:
                factors = weight.to(counts.device).index_select(0, rows)
                counts = counts * factors.reshape(-1, *[1] * (counts.ndim - 1))
        total = chosen.total
        if distributed.world() > 1:
            repeated = weight is not None and not bool(weight.any())
            total = distributed.total(0.0 if repeated else float(total))[0] / distributed.world()
        losses = trained(learner, part, counts, ledger, total)
        return StepResult(chosen.index[: len(losses)], losses, *scoring)

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the policy; see `Gate.steer`."""
        self.gate.steer(name, value)

    def state_dict(self) -> dict[str, Any]:
        return {"gate": self.gate.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gate.load_state_dict(state["gate"])


def selected(gate: Policy, seen: Scored, ledger: Ledger) -> tuple[Selection, Tensor | None]:
    """Rows of a batch selected by ``gate``, and the scores of a `Gate`."""
    if isinstance(gate, Gate):
        with ledger.phase("score"):
            scores = gate.scores(seen)
        with ledger.phase("gate"):
            return gate.select(scores), scores
    with ledger.phase("score"):
        found = gate.choose(seen)
        chosen = seen.select(torch.arange(seen.rows)) if found is None else found
        return chosen.check(seen.rows, gate), None


def trained(
    learner: Learner,
    batch: Batch,
    weight: Tensor | None,
    ledger: Ledger,
    normaliser: float | Tensor,
) -> Tensor:
    """Losses ``[batch]`` of training on a batch; none if BatchNorm refuses its single row.

    See `Learner.train` for the arguments.
    """
    try:
        return learner.train(batch.x, batch.y, weight, ledger, normaliser)
    except ValueError as error:
        if batch.rows > 1 or distributed.world() > 1 or LONE not in str(error):
            raise
    warnings.warn(
        "a batch of one row is skipped, since BatchNorm cannot normalise one value per channel:"
        " choose another batch_size or rate, drop_last=True, or min_active=2 of a Gate",
        stacklevel=2,
    )
    learner.end_batch(ledger)
    return torch.empty(0)


def per_row(weight: Tensor) -> Tensor:
    """Weights ``[n]``; of weights per token ``[n, ...]``, their sums over the tokens of a row."""
    return weight.flatten(1).sum(1) if weight.ndim > 1 else weight


def _mean(chosen: Selection, losses: Tensor) -> Tensor:
    """Mean loss over the selected rows of this process; NaN if all of them are padding."""
    return (losses * per_row(chosen.weight)).sum() / chosen.total
