"""Sample-by-sample training, as in the original: reference implementation of batching."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from astkit.batch import Batch, call, join
from astkit.gating import Gate, RelativeScore, Scored, evaluating
from astkit.gating.significance import score_rows
from astkit.profiling.ledger import Ledger
from astkit.trainers.learner import Learner
from astkit.trainers.steps import LONE, GatedStep, StepResult


class SampleStep(GatedStep):
    """Processes rows one at a time, as the original does: slow reference implementation.

    ``update="per_batch"`` normalises scores and selects over the batch, averages the gradients of
    the active rows and takes one step: equivalent to `GatedStep` for models without cross-sample
    operations (such as BatchNorm). ``update="per_sample"`` decides row by row and takes an
    optimizer step for each active row; batch references of the score are replaced by running ones
    over the previous rows.

    BatchNorm uses the statistics of a single row here, which changes the algorithm.

    Raises ``ValueError`` for an unknown ``update``, for per-sample updates with a controller that
    needs the whole batch, and during a step for BatchNorm with one value per channel and row.
    """

    def __init__(
        self, gate: Gate, update: Literal["per_sample", "per_batch"] = "per_sample"
    ) -> None:
        super().__init__(gate)
        self.gate: Gate = gate
        if update not in ("per_sample", "per_batch"):
            raise ValueError(f"update is {update!r}: choose 'per_sample' or 'per_batch'")
        self.update = update
        self._check()
        self.score = RunningScore(gate)

    def _check(self) -> None:
        controller = self.gate.controller
        if self.update == "per_sample" and not controller.held:
            raise ValueError(
                f"{type(controller).__name__} needs a whole batch of scores, but"
                " update='per_sample' decides row by row: use the controller 'log_integral' or"
                " 'origin_pi', or update='per_batch'"
            )

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        self._check()  # it may have been steered
        step = self._per_batch if self.update == "per_batch" else self._per_sample
        try:
            return step(learner, batch, weight, ledger)
        except ValueError as error:
            if LONE not in str(error):
                raise
            raise ValueError(
                "BatchNorm cannot normalise one row with one value per channel, and SampleStep"
                " trains on one row at a time: use LayerNorm, or a GatedStep"
            ) from error

    def _per_batch(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        model = learner.model
        with ledger.phase("score"), _scoring(learner):
            outputs = join([call(model, row.x, row.y) for row in _rows(batch)])
            scores = self.gate.scores(_seen(learner, batch, outputs))
        with ledger.phase("gate"):
            chosen = self.gate.select(scores)
        counts = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
        rows, share = list(_rows(batch)), chosen.total / max(1, len(chosen))
        losses = [
            learner.gradients(rows[row].x, rows[row].y, count[None], ledger, share)
            for row, count in zip(chosen.index.tolist(), counts, strict=True)
        ]
        learner.end_batch(ledger)
        trained = _joined(losses, scores)
        return StepResult(chosen.index, trained, len(scores), chosen, scores)

    def _per_sample(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        rows = list(_rows(batch))
        scored = len(rows)
        if not self.score.started:
            with ledger.phase("score"), _scoring(learner):
                self.score.start(learner, rows)
            scored *= 2
        counts = torch.ones(len(rows), device=learner.device) if weight is None else weight
        scores: list[Tensor] = []
        losses: dict[int, Tensor] = {}
        while len(scores) < len(rows):
            with ledger.phase("score"), _scoring(learner):  # once up to an update, not for each row
                found = self._until_admitted(learner, rows, scores)
            if found is not None:
                row, count = rows[found], counts[found : found + 1]
                losses[found] = learner.train(row.x, row.y, count, ledger, 1.0)
        with ledger.phase("gate"):
            active = torch.tensor([i in losses for i in range(len(rows))], device=learner.device)
            together = torch.stack(scores)
            chosen = self.gate.settle(together, active)
        for i in sorted(set(chosen.index.tolist()) - set(losses)):  # fallback rows
            losses[i] = learner.train(rows[i].x, rows[i].y, counts[i : i + 1], ledger, 1.0)
        trained = _joined([losses[i] for i in sorted(losses)], together)
        return StepResult(chosen.index, trained, scored, chosen, together)

    def _until_admitted(
        self, learner: Learner, rows: list[Batch], scores: list[Tensor]
    ) -> int | None:
        """Append scores of further rows, up to the first that is trained on; its position."""
        for i in range(len(scores), len(rows)):
            scores.append(self.score(learner, rows[i]))
            if math.isfinite(scores[i]) and self._admits(scores[i]):
                return i
        return None

    def _admits(self, score: Tensor) -> bool:
        gate = self.gate  # at rate 1 there is no threshold
        return gate.target_rate == 1 or bool(score > gate.controller.threshold(score[None], 0))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "score": self.score.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.score.load_state_dict(state["score"])


class RunningScore:
    """The gate's score for single rows, with a running reference instead of the batch's."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.started = False
        self.reference: Tensor | None = None
        self.count = 0

    def start(self, learner: Learner, rows: list[Batch]) -> None:
        """Initialise the controller's threshold from the scores of the first batch."""
        scores = torch.stack([self(learner, row) for row in rows])
        self.gate.controller.threshold(self.gate.usable(scores)[0], 0)
        self.started = True

    def __call__(self, learner: Learner, row: Batch) -> Tensor:
        """Score of one row (a batch of size 1), 0-dim; to be called in `_scoring`."""
        score, self.gate.trainers = self.gate.significance, learner.criterion
        seen = _seen(learner, row, call(learner.model, row.x, row.y))
        if not isinstance(score, RelativeScore):
            return score_rows(score, seen)[0]
        features = score.features(seen)
        reference = features[0] if self.reference is None else self.reference.to(features)
        result = score.combine(features, reference)[0]
        if torch.isfinite(features).all():  # a NaN would persist in the reference
            self.reference = score.running(reference, self.count, features)
            self.count += 1
        return result

    def state_dict(self) -> dict[str, Any]:
        reference = None if self.reference is None else self.reference.tolist()
        return {"started": self.started, "reference": reference, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.started, self.count = state["started"], state["count"]
        reference = state["reference"]
        self.reference = None if reference is None else torch.tensor(reference, dtype=torch.float64)


@contextmanager
def _scoring(learner: Learner) -> Iterator[None]:
    with learner.autocast(), evaluating(learner.model, learner.device):
        yield


def _rows(batch: Batch) -> Iterator[Batch]:
    for i in range(batch.rows):
        yield batch.take(slice(i, i + 1))


def _seen(learner: Learner, batch: Batch, outputs: Any) -> Scored:
    known = (outputs, batch.y, batch.x, batch.index, learner.model)
    return Scored(*known, criterion=learner.criterion, book=learner.book)


def _joined(losses: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(losses) if losses else like[:0]
