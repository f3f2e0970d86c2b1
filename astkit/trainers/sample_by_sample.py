"""Sample-by-sample training, as in the original: reference implementation of batching."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from astkit import distributed
from astkit.datasets.batch import Batch, join
from astkit.gating.controllers import Controller
from astkit.gating.gate import Gate
from astkit.gating.scores import RelativeScore, score_rows
from astkit.gating.selection import evaluating, unchanged
from astkit.names import resolve
from astkit.trainers.step import StepResult
from astkit.trainers.trainer import Trainer


class SampleBySampleTrainer(Trainer):
    """Processes rows one at a time, as the original does: slow reference implementation.

    Example::

        SampleBySampleTrainer(model, train, policy=Gate(0.5), epochs=1).run()

    ``update="per_batch"`` normalises scores and selects over the batch, averages the gradients of
    the active rows and takes one step: equivalent to `Trainer` with the same gate for models
    without cross-sample operations (such as BatchNorm). ``update="per_sample"`` decides row by row
    and takes an optimizer step for each active row; batch references of the score are replaced by
    running ones over the previous rows.

    BatchNorm uses the statistics of a single row here, which changes the algorithm, and torch
    refuses it for one value per channel.

    Args:
        args, options: those of `Trainer`; ``policy`` is a `Gate`.
        update: "per_sample" or "per_batch".

    Raises ``ValueError`` for an unknown ``update``, a policy that is no gate, several processes,
    and per-sample updates with a controller that needs the whole batch.
    """

    def __init__(
        self,
        *args: Any,
        update: Literal["per_sample", "per_batch"] = "per_sample",
        **options: Any,
    ) -> None:
        if update not in ("per_sample", "per_batch"):
            raise ValueError(f"update is {update!r}: choose 'per_sample' or 'per_batch'")
        if distributed.world() > 1:
            raise ValueError(
                f"{distributed.world()} processes cannot train sample by sample: use a Trainer"
            )
        self.update = update
        self.count = 0  # rows scored so far
        self.reference: Tensor | None = None  # of a relative score, over these rows
        super().__init__(*args, **options)
        self._check_controller(self.gate.controller)
        for event in self.steering.replay:
            self._check_event(event.name, event.value)

    @property
    def gate(self) -> Gate:
        """The policy; raises ``ValueError`` if it is no `Gate`."""
        if not isinstance(self.policy, Gate):
            raise ValueError(
                f"policy is a {type(self.policy).__name__}, but single rows are chosen by a gate:"
                " pass policy=Gate(...)"
            )
        return self.policy

    def _check_controller(self, controller: Controller) -> None:
        if self.update == "per_sample" and controller.by_rank:
            raise ValueError(
                f"{type(controller).__name__} needs a whole batch of scores, but"
                " update='per_sample' decides row by row: use the controller 'log_integral' or"
                " 'origin_pi', or update='per_batch'"
            )

    def steer(self, name: str, value: Any) -> None:
        """See `Trainer.steer`; raises ``ValueError`` for a controller that needs a whole batch."""
        self._check_event(name, value)
        super().steer(name, value)

    def _check_event(self, name: str, value: Any) -> None:
        if name == "controller":
            self._check_controller(resolve("controller", value)(self.gate.rate))

    def passes(self, rows: int) -> int:
        return rows

    def train_batch(self, batch: Batch, weight: Tensor | None) -> StepResult:
        """Train on the rows of ``batch`` one by one."""
        seen = self.scored(batch)
        seen.leave_out_unlabelled()
        if seen.places is not None and not len(seen.places):
            self.optimisation.end_batch()
            return StepResult(torch.empty(0), seen.in_batch(seen.select(seen.places)))
        step = self._per_batch if self.update == "per_batch" else self._per_sample
        return step(batch, weight)

    def _per_batch(self, batch: Batch, weight: Tensor | None) -> StepResult:
        gate, rows = self.gate, _rows(batch)
        with self.ledger.phase("score"):
            with evaluating(self.model, self.device):
                outputs = join([unchanged(self.forward, self.model, row)[0] for row in rows])
            chosen = gate.choose(self.scored(batch, outputs))
        self._count_pass(self.model, batch)
        weights = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
        normaliser, optimisation = chosen.total / max(1, len(chosen)), self.optimisation
        losses = [
            optimisation.accumulate(rows[row], own[None], normaliser, summed=True)
            for row, own in zip(chosen.index.tolist(), weights, strict=True)
        ]
        optimisation.end_batch()
        return StepResult(_joined(losses, chosen.weight), chosen)

    def _per_sample(self, batch: Batch, weight: Tensor | None) -> StepResult:
        gate, rows = self.gate, _rows(batch)
        if not self.count:  # the first batch gives the controller its threshold
            with self.ledger.phase("score"), evaluating(self.model, self.device):
                first = torch.stack([self._score(row) for row in rows])
                gate.controller.threshold(gate.usable(first)[0], 0)
            self._count_pass(self.model, batch)
        self._count_pass(self.model, batch)
        weights = torch.ones(len(rows), device=self.device) if weight is None else weight
        scores: list[Tensor] = []
        losses: dict[int, Tensor] = {}

        def train(number: int) -> None:
            own = weights[number : number + 1]
            losses[number] = self.optimisation.accumulate(rows[number], own, 1.0)
            self.optimisation.end_batch()

        while len(scores) < len(rows):
            # once up to an update
            with self.ledger.phase("score"), evaluating(self.model, self.device):
                admitted = self._until_admitted(gate, rows, scores)
            if admitted is not None:
                train(admitted)
        with self.ledger.phase("score"):
            active = torch.tensor([i in losses for i in range(len(rows))], device=self.device)
            together = torch.stack(scores)
            chosen = gate.settle(together, active)
        for number in sorted(set(chosen.index.tolist()) - set(losses)):  # fallback rows
            train(number)
        return StepResult(_joined([losses[i] for i in sorted(losses)], together), chosen)

    def _until_admitted(self, gate: Gate, rows: list[Batch], scores: list[Tensor]) -> int | None:
        """Append scores of further rows, up to the first that is trained on; its position."""
        for i in range(len(scores), len(rows)):
            score = self._score(rows[i])
            scores.append(score)
            if not math.isfinite(score):
                continue
            # at rate 1 there is no threshold
            if gate.rate == 1 or bool(score > gate.controller.threshold(score[None], 0)):
                return i
        return None

    def _score(self, row: Batch) -> Tensor:
        """Score of one row, 0-dim, in eval mode; its reference runs in place of the batch's."""
        score = self.gate.significance
        seen = self.scored(row, unchanged(self.forward, self.model, row)[0])
        if seen.labelled is not None and not bool(seen.labelled):
            return torch.full((), math.nan, device=self.device)
        if not isinstance(score, RelativeScore):
            self.count += 1
            return score_rows(score, seen)[0]
        features = score.features(seen)
        reference = features[0] if self.reference is None else self.reference.to(features)
        result = score.combine(features, reference)[0]
        if torch.isfinite(features).all():  # a NaN would persist in the reference
            self.reference = score.running(reference, self.count, features)
            self.count += 1
        return result

    def state_dict(self) -> dict[str, Any]:
        scored = {"count": self.count, "reference": self.reference}
        return {**super().state_dict(), "score": scored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.count, self.reference = state["score"]["count"], state["score"]["reference"]


def _rows(batch: Batch) -> list[Batch]:
    return [batch.take(slice(row, row + 1)) for row in range(batch.rows)]


def _joined(losses: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(losses) if losses else like[:0]
