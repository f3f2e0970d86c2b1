"""A watched step: scores and choices of each batch, recorded while a step trains as usual.

The loop's own metrics say how many samples were active; a watch records how the scores were
distributed and the classes of the active ones.
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
"""Shares of the batch at which the scores are read."""


class Watch:
    """Wraps a step and records the scores, the threshold and the classes of its batches.

    It takes the step's place and changes nothing of the training: weights, random numbers and
    saved state are those of the bare step, so checkpoints of either serve the other. Its own work
    is counted under the phase "log" of the training seconds, so take timings, and spend budgets in
    seconds, without it. A record takes about 2 kB with ten classes. Steps are numbered as the gate
    counts batches, so as the run does. ::

        trainer.step = watch = Watch(trainer.step)
        trainer.run()
        plots.score_heatmap(watch.scores)

    Args:
        step: any step; one without a gate has classes to show, but no scores.

    Attributes:
        scores: one mapping a batch and level: step, level, score, threshold, rate. ``score`` is the
            quantile at ``level``, linear between neighbours, of the finite scores. ``threshold`` is
            what a score had to exceed, ``rate`` the share that did.
        classes: one mapping a batch and class in it: step, class, seen, active. ``active`` leaves
            out the rows that only the gate's fallback added. Empty where the targets are not class
            indices.
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
        if name == "step":  # copying looks it up before it is set
            raise AttributeError(name)
        return getattr(self.step, name)

    def _record_scores(self, result: StepResult) -> None:
        if result.scores is None:
            return
        finite = result.scores[result.scores.isfinite()].double()
        levels = torch.tensor(LEVELS, dtype=torch.float64, device=finite.device)
        chosen = result.selection
        found = [
            None if chosen is None else getattr(chosen, name) for name in ("threshold", "rate")
        ]
        threshold, rate = (None if value is None else float(value) for value in found)
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
        rows = result.rows if active is None else result.rows[active]
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
        """The step's own state, without the records."""
        return self.step.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the step from ``state``; drop the records after it."""
        self.step.load_state_dict(state)
        self._step = self._batches()
        self.scores = [each for each in self.scores if each["step"] <= self._step]
        self.classes = [each for each in self.classes if each["step"] <= self._step]

    def _batches(self) -> int:
        return getattr(getattr(self.step, "gate", None), "batches", 0)
