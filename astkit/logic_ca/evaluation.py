"""FLOPs of an automaton, and evaluation of the soft and hard automaton on fixed samples."""

from __future__ import annotations

from typing import Any

from torch import nn

from astkit.batch import Batch, join
from astkit.datasets import BatchSource
from astkit.gating import evaluating
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.config import LogicCAConfig
from astkit.logic_ca.gradients import denormals_flushed, first_channel_loss
from astkit.logic_ca.tasks import Task
from astkit.profiling.flops import FlopsPerSample
from astkit.trainers.costs import Costs
from astkit.trainers.evaluator import Evaluator
from astkit.trainers.learner import Learner

EVALUATION = -1
"""Iteration number of evaluation masks; those of training are 0 or more."""


def gate_flops(config: LogicCAConfig, height: int, width: int, steps: int) -> FlopsPerSample:
    """FLOPs of the gates of one sample's rollout, by formula.

    A gate ``c0 + c1 a + b (c2 + c3 a)`` is 3 multiply-adds; its backward pass 8: 2 each for the
    gradients of a and b, one each for c1, c2 and c3, one for a common product. The softmax, once
    per rollout, is not counted.
    """
    gates = config.gates_per_cell * height * width * steps
    return FlopsPerSample(6.0 * gates, 16.0 * gates)


class GateCosts(Costs):
    """Cost per sample by `gate_flops`, since torch's counter ignores elementwise operations."""

    def __init__(self, learner: Learner, task: Task) -> None:
        super().__init__(learner)
        self._task = task

    def of(self, batch: Batch, check_all: object) -> FlopsPerSample:
        """The cost of a sample of ``batch``."""
        return self.of_helper(self.learner.model, batch)

    def of_helper(self, model: nn.Module, batch: Batch) -> FlopsPerSample:
        """The cost of a sample of ``batch`` in ``model``, an automaton or of another kind."""
        if isinstance(model, LogicCA):
            height, width = batch.x.shape[2:]
            return gate_flops(model.config, height, width, self._task.steps)
        return super().of_helper(model, batch)


class LogicEvaluator(Evaluator):
    """Evaluates the soft and the hard automaton on the task's fixed samples after each pass.

    ``val_loss`` and ``val_hard_loss``: mean loss per sample. ``val_wrong``: cells in which the
    rounded channel 0 of the hard automaton differs from the target; ``val_accuracy``: share of the
    others.
    """

    def __init__(self, *parts: Any, task: Task) -> None:
        super().__init__(*parts)
        self._task = task

    def found(self) -> dict[str, Any]:
        """Metrics on the fixed samples, timed by the evaluation clock."""
        metrics = self._evaluated(self._task.evaluation())
        return {f"val_{name}": value for name, value in metrics.items()}

    def evaluate(self, source: BatchSource) -> dict[str, Any]:
        """Metrics without ``val_`` for one pass of ``source``."""
        return self._evaluated(join(list(source.batches(0))))

    def _evaluated(self, batch: Batch) -> dict[str, Any]:
        model: Any = self.learner.model
        with self.ledger.clock("evaluation"):
            self.ledger.note(self._cost(batch), evaluated=2 * batch.rows)  # soft and hard
            return evaluate(model, self._task, batch)


def evaluate(model: LogicCA, task: Task, batch: Batch | None = None) -> dict[str, Any]:
    """Evaluate the soft and the hard automaton on the same samples and masks.

    ``batch``: the task's fixed samples by default. Returns ``loss`` and ``hard_loss``, means per
    sample, ``wrong``, hard cells that differ from the target, and ``accuracy``.
    """
    device = next(model.parameters()).device
    batch = (batch or task.evaluation()).to(device)
    masks = task.masks(batch.index, 0, EVALUATION)
    with evaluating(model, device), denormals_flushed():
        soft, hard = (model(batch.x, task.steps, masks, way) for way in (False, True))
        losses = [first_channel_loss(states, batch.y).sum().item() for states in (soft, hard)]
        wrong = int((hard[:, 0].round() != batch.y).sum())
    means = {"loss": losses[0] / batch.rows, "hard_loss": losses[1] / batch.rows}
    return {**means, "wrong": wrong, "accuracy": 1 - wrong / hard[:, 0].numel()}
