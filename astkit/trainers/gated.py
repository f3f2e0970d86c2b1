"""A gate's step as one CUDA graph: score the batch, choose rows, and train on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from astkit.datasets.batch import Batch
from astkit.gating.controllers import TopK
from astkit.gating.gate import Gate
from astkit.gating.scores import ContextScore, Loss
from astkit.gating.selection import Scored, Selection
from astkit.trainers.graphs import GATED
from astkit.trainers.step import StepResult

if TYPE_CHECKING:
    from astkit.trainers.trainer import Trainer


@dataclass(frozen=True)
class Recorded(Selection):
    """A selection whose loss and padding were computed in the graph."""

    loss: Tensor | None = None
    padded_rows: Tensor | None = None

    @property
    def padding(self) -> Tensor | None:
        return self.padded_rows

    def mean_loss(self, losses: Tensor) -> Tensor:
        assert self.loss is not None
        return self.loss


def can_record(run: Trainer) -> bool:
    """Whether a step of ``run`` can be recorded as a whole, from scores to new weights.

    So it can if a `TopK` gate decides, by a score without a state, and no observer is told of it.
    """
    gate = run.policy
    if not isinstance(gate, Gate) or not isinstance(gate.controller, TopK):
        return False
    own = all(getattr(type(gate), name) is getattr(Gate, name) for name in ("choose", "best"))
    simple = type(gate.significance) is Loss or not isinstance(gate.significance, ContextScore)
    return own and simple and not run.reports.watchers


def recorded_step(run: Trainer, batch: Batch, weight: Tensor | None) -> StepResult | None:
    """The step of a gate on ``batch``, by a graph; ``None`` if nothing was done."""
    gate, work = run.policy, run.optimisation
    assert isinstance(gate, Gate)
    carry = gate.carry
    quota = gate.grant(batch.rows)
    found = None
    if quota > 1:  # BatchNorm may refuse a single row
        function = partial(_score_and_train, run, gate)
        found = work.counted(GATED, function, batch, weight, quota, gate.rate < 1)
    if found is None:
        gate.carry = carry
        return None
    losses, _, parts, counts, loss, padded = found
    gate.count(counts)
    chosen = Recorded(**parts, candidates=batch.rows, rate=gate.rate, loss=loss, padded_rows=padded)
    return StepResult(losses, chosen)


def _score_and_train(
    run: Trainer, gate: Gate, batch: Batch, weight: Tensor | None, quota: int, below_1: bool
) -> Any:
    """Losses, whether weights changed, fields of the selection, counts, loss, padding."""
    work = run.optimisation
    batch = batch._replace(index=None)  # which may be on the CPU
    seen = Scored(
        None,
        batch.y,
        batch.x,
        None,
        run.model,
        criterion=run.criterion,
        forward=lambda _, part: work.whole_pass(part),
    )
    chosen, counts = gate.best(gate.scores(seen), quota)
    weights = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
    losses, stepped = work.whole_step(batch.take(chosen.index), weights, chosen.total)
    names = ("index", "weight", "measured_rate", "threshold", "fallback", "active")
    parts = {name: getattr(chosen, name) for name in names}
    return losses, stepped, parts, counts, chosen.mean_loss(losses), chosen.padding
