"""A watched step: what the gate saw and whom it chose, kept while a step trains as it always does.

The loop's own metrics say how many samples were active; a watch says how the scores were
distributed and which classes the active ones came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from astkit.batch import Batch
from astkit.gating.losses import labels_of
from astkit.profiling.ledger import Ledger
from astkit.trainers.learner import Learner
from astkit.trainers.steps import Step, StepResult

LEVELS = tuple(i / 20 for i in range(21))


class _Seen(NamedTuple):
    """One batch, kept small: rows are made of it when somebody asks."""

    step: int
    threshold: float | None
    rate: float | None
    scores: list[float]  # at the watch's levels
    classes: dict[int, tuple[int, int]]  # class: seen, active


class Watch:
    """Wraps a step and records the scores, the threshold and the classes of its batches.

    It stands where the step stood and changes nothing of the training: weights, random numbers and
    saved state are those of the bare step, so checkpoints of either serve the other. Its own work
    is booked under the phase "log" of the training seconds, so take timings, and spend budgets in
    seconds, without it. Steps are numbered as the gate counts batches, so as the run does. ::

        trainer.step = watch = Watch(trainer.step)
        trainer.run()
        plots.score_heatmap(watch.scores)

    Args:
        step: any step; one without a gate has classes to show, but no scores.
        every: record one batch in so many. A record takes about 2 kB with ten classes.
        levels: at which shares of the batch to read the scores, each in [0, 1].

    Raises ``ValueError`` for ``every`` below 1 or a level outside [0, 1].
    """

    def __init__(self, step: Step, every: int = 1, levels: Sequence[float] = LEVELS) -> None:
        if every < 1:
            raise ValueError(
                f"every is {every}, but one batch in so many is recorded: give 1 or more"
            )
        outside = [level for level in levels if not 0 <= level <= 1]
        if outside or not levels:
            raise ValueError(
                f"levels holds {outside or 'nothing'}: give shares of a batch from 0 (the lowest"
                " score) to 1 (the highest), such as (0, 0.5, 1)"
            )
        self.step, self.every, self.levels = step, every, tuple(levels)
        self._step = self._batches()
        self._seen: list[_Seen] = []

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        result = self.step(learner, batch, weight, ledger)
        self._step += 1
        if (self._step - 1) % self.every == 0:
            with ledger.phase("log"):
                self._record(batch, result)
        return result

    def __getattr__(self, name: str) -> Any:
        """What the step has beside: its ``gate``, ``steer``, ``update``."""
        if name == "step":  # a copy asks before it has one
            raise AttributeError(name)
        return getattr(self.step, name)

    @property
    def scores(self) -> list[dict[str, Any]]:
        """One mapping a recorded batch and level: step, level, score, threshold, rate.

        ``score`` is the quantile at ``level``, linear between neighbours, of the finite scores.
        ``threshold`` is what a score had to exceed, ``rate`` the share that did.
        """
        return [
            {
                "step": seen.step,
                "level": level,
                "score": score,
                "threshold": seen.threshold,
                "rate": seen.rate,
            }
            for seen in self._seen
            for level, score in zip(self.levels, seen.scores, strict=False)
        ]

    @property
    def classes(self) -> list[dict[str, Any]]:
        """One mapping a recorded batch and class in it: step, class, seen, active.

        ``active`` leaves out the rows that only the gate's fallback added. Empty where the targets
        are not class indices.
        """
        return [
            {"step": seen.step, "class": label, "seen": rows, "active": active}
            for seen in self._seen
            for label, (rows, active) in seen.classes.items()
        ]

    def _record(self, batch: Batch, result: StepResult) -> None:
        chosen, scores = result.selection, []
        if result.scores is not None:
            finite = result.scores[result.scores.isfinite()].double()
            levels = torch.tensor(self.levels, dtype=torch.float64, device=finite.device)
            scores = torch.quantile(finite, levels).tolist()
        self._seen.append(
            _Seen(
                self._step,
                _number(None if chosen is None else chosen.threshold),
                _number(None if chosen is None else chosen.rate),
                scores,
                _by_class(batch, _active(result)),
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """The step's own state; what was recorded is no part of it."""
        return self.step.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the step from ``state``; forget what was recorded after it."""
        self.step.load_state_dict(state)
        self._step = self._batches()
        self._seen = [seen for seen in self._seen if seen.step <= self._step]

    def _batches(self) -> int:
        return getattr(getattr(self.step, "gate", None), "batches", 0)


def _number(value: float | Tensor | None) -> float | None:
    return None if value is None else float(value)


def _active(result: StepResult) -> Tensor:
    """Those of ``result.rows`` that the decision made active, int64 ``[active]``."""
    active = None if result.selection is None else result.selection.active
    return result.rows if active is None else result.rows[active]


def _by_class(batch: Batch, active: Tensor) -> dict[int, tuple[int, int]]:
    """Rows of each class in ``batch``, and how many of them are among ``active``."""
    try:
        targets = labels_of(batch.y)
    except ValueError:
        return {}
    if targets.ndim != 1 or targets.is_floating_point():
        return {}
    chosen = torch.zeros(len(targets), dtype=torch.int64, device=targets.device)
    chosen[active.to(targets.device)] = 1
    labels, place, seen = targets.unique(return_inverse=True, return_counts=True)
    counts = torch.zeros_like(seen).index_add_(0, place, chosen)
    table = zip(labels.tolist(), seen.tolist(), counts.tolist(), strict=True)
    return {label: (rows, among) for label, rows, among in table}
