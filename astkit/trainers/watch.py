"""Records scores and selections of each batch during training.

In addition to the metrics of the loop, it records the distribution of the scores and the classes
of the active samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from astkit.batch import Batch
from astkit.gating.losses import labels_of
from astkit.profiling.ledger import Ledger
from astkit.trainers.learner import Learner
from astkit.trainers.steps import Step, StepResult

LEVELS = tuple(i / 20 for i in range(21))
"""Quantile levels of the recorded scores."""


class Watch:
    """Wraps a step and records the scores, the threshold and the classes of its batches.

    It replaces the step and does not affect training: weights, random numbers and saved state are
    those of the wrapped step, so checkpoints are interchangeable. Its time is included in the phase
    "log" of the training seconds, so do not use it for timings or with budgets in seconds. A record
    takes about 2 kB with ten classes. Steps are numbered by the batches of the gate; a policy that
    counts none starts at 1 again after a resume. ::

        trainer.step = watch = Watch(trainer.step)
        trainer.run()
        gate_plots.score_heatmap(watch.scores)

    Args:
        step: any step; without a gate, only classes are recorded.

    Attributes:
        scores: one mapping per batch and level: step, level, score, threshold, rate. ``score`` is
            the quantile at ``level`` of the finite scores, linearly interpolated; ``rate`` is the
            fraction of scores above ``threshold``.
        classes: one mapping per batch and class: step, class, seen, active. ``active`` excludes
            fallback rows. Empty if the targets are not class indices.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._step = self._batches()
        self.scores: list[dict[str, Any]] = []
        self.classes: list[dict[str, Any]] = []

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        result = self.step(learner, batch, weight, ledger)
        self._step += 1
        with ledger.phase("log"):
            self._record_scores(result)
            self._record_classes(batch, result)
        return result

    def __getattr__(self, name: str) -> Any:
        """Attributes of the step: its ``gate``, ``steer``, ``update``."""
        if name == "step":  # accessed by copy before it is set
            raise AttributeError(name)
        return getattr(self.step, name)

    def _record_scores(self, result: StepResult) -> None:
        chosen = result.selection
        if result.scores is None or chosen is None:
            return
        finite = result.scores[result.scores.isfinite()].cpu().double()
        levels = torch.tensor(LEVELS, dtype=torch.float64)
        threshold, rate = (
            None if value is None else float(value) for value in (chosen.threshold, chosen.rate)
        )
        for level, score in zip(LEVELS, torch.quantile(finite, levels).tolist(), strict=True):
            record = {"step": self._step, "level": level, "score": score}
            self.scores.append({**record, "threshold": threshold, "rate": rate})

    def _record_classes(self, batch: Batch, result: StepResult) -> None:
        try:
            targets = labels_of(batch.y)
        except ValueError:
            return
        if targets.ndim != 1 or targets.is_floating_point():
            return
        active = None if result.selection is None else result.selection.active
        rows = result.rows if active is None else result.rows[active[: len(result.rows)]]
        chosen = torch.zeros(len(targets), dtype=torch.int64, device=targets.device)
        chosen[rows.to(targets.device)] = 1
        labels, place, seen = targets.unique(return_inverse=True, return_counts=True)
        counts = torch.zeros_like(seen).index_add_(0, place, chosen)
        for label, among, count in zip(
            labels.tolist(), seen.tolist(), counts.tolist(), strict=True
        ):
            record = {"step": self._step, "class": label, "seen": among, "active": count}
            self.classes.append(record)

    def state_dict(self) -> dict[str, Any]:
        """State of the wrapped step, without the records."""
        return self.step.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the step; drop later records."""
        self.step.load_state_dict(state)
        self._step = self._batches()
        self.scores = [each for each in self.scores if each["step"] <= self._step]
        self.classes = [each for each in self.classes if each["step"] <= self._step]

    def _batches(self) -> int:
        return getattr(getattr(self.step, "gate", None), "batches", 0)
