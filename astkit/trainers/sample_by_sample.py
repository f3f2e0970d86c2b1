"""Training row by row, as the origin did: slow on purpose, since it is what batching is held to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from astkit.datasets.loaders import Batch
from astkit.gating import Gate, RelativeScore, evaluating
from astkit.profiling.ledger import Ledger
from astkit.trainers.learner import Learner
from astkit.trainers.steps import GatedStep, StepResult


class SampleStep(GatedStep):
    """Forwards rows one at a time, as the origin did. Slow on purpose: it is the measure.

    ``update="per_batch"`` normalises and decides over the batch, sums the gradients of the active
    rows and divides by their number, then takes one step: the exact twin of `GatedStep` for models
    whose rows do not meet (no BatchNorm). ``update="per_sample"`` decides each row as it comes and
    takes an optimizer step for each active one; batch references of the score are replaced by
    running ones of the rows before.

    Raises ``ValueError`` for another ``update``, or for per-sample updates with a controller that
    needs the whole batch.
    """

    def __init__(
        self, gate: Gate, update: Literal["per_sample", "per_batch"] = "per_sample"
    ) -> None:
        super().__init__(gate)
        if update not in ("per_sample", "per_batch"):
            raise ValueError(f"update is {update!r}: choose 'per_sample' or 'per_batch'")
        if update == "per_sample" and not gate.controller.held:
            raise ValueError(
                f"{type(gate.controller).__name__} needs a whole batch of scores, but"
                " update='per_sample' decides row by row: use the controller 'log_integral' or"
                " 'origin_pi', or update='per_batch'"
            )
        self.update = update
        self.score = RunningScore(gate)

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        step = self._per_batch if self.update == "per_batch" else self._per_sample
        return step(learner, batch, weight, ledger)

    def _per_batch(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        with ledger.phase("score"), learner.autocast():
            with evaluating(learner.model, learner.device):
                outputs = torch.cat([learner.model(x) for x, _ in _rows(batch)])
            scores = self.gate.significance(outputs, batch.y, batch.x).detach()
        with ledger.phase("gate"):
            chosen = self.gate.select(scores)
        with ledger.phase("train"):
            learner.clear()
            counts = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
            rows = list(_rows(batch))
            losses = []
            for row, count in zip(chosen.index.tolist(), counts, strict=True):
                loss = learner.losses(*rows[row])
                learner.backward((loss * count).sum())
                losses.append(loss.detach())
            if losses:
                learner.apply(divide_by=float(counts.sum()))
        return StepResult(chosen.index, _joined(losses, scores), len(scores), chosen)

    def _per_sample(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        rows = list(_rows(batch))
        scored = len(rows)
        if not self.score.started:
            with ledger.phase("score"):
                self.score.start(learner, rows)
            scored *= 2
        counts = torch.ones(len(rows)) if weight is None else weight
        scores, losses = [], {}
        for i, (x, y) in enumerate(rows):
            with ledger.phase("score"):
                scores.append(self.score(learner, x, y))
            if torch.isfinite(scores[i]) and self.gate.admits(scores[i]):
                with ledger.phase("train"):
                    losses[i] = _train_row(learner, rows[i], counts[i])
        with ledger.phase("gate"):
            active = torch.tensor([i in losses for i in range(len(rows))], device=batch.y.device)
            chosen = self.gate.settle(torch.stack(scores), active)
        for i in sorted(set(chosen.index.tolist()) - set(losses)):  # the fallback's rows
            with ledger.phase("train"):
                losses[i] = _train_row(learner, rows[i], counts[i])
        trained = [losses[i] for i in sorted(losses)]
        return StepResult(chosen.index, _joined(trained, scores[0][None]), scored, chosen)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "score": self.score.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.score.load_state_dict(state["score"])


class RunningScore:
    """The gate's score for one row at a time, its batch reference replaced by a running one."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.started = False
        self.reference: Tensor | None = None
        self.count = 0

    def start(self, learner: Learner, rows: list[tuple[Tensor, Tensor]]) -> None:
        """Let the controller set its first threshold from the scores of a first batch."""
        scores = torch.stack([self(learner, x, y) for x, y in rows])
        self.gate.controller.threshold(self.gate.usable(scores)[0], 0)
        self.started = True

    def __call__(self, learner: Learner, x: Tensor, y: Tensor) -> Tensor:
        """The score of one row ``x [1, ...]``, 0-dim."""
        with learner.autocast():
            with evaluating(learner.model, learner.device):
                outputs = learner.model(x)
            score = self.gate.significance
            if not isinstance(score, RelativeScore):
                return score(outputs, y, x).detach()[0]
            features = score.features(outputs, y, x).detach()
        reference = features[0] if self.reference is None else self.reference.to(features)
        result = score.combine(features, reference)[0]
        if torch.isfinite(features).all():  # one NaN would stay in the reference for good
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


def _rows(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    for i in range(len(batch.y)):
        yield batch.x[i : i + 1], batch.y[i : i + 1]


def _train_row(learner: Learner, row: tuple[Tensor, Tensor], count: Tensor) -> Tensor:
    loss = learner.losses(*row)
    learner.update((loss * count).sum())
    return loss.detach()


def _joined(losses: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(losses) if losses else like[:0]
