"""What an automaton costs and what it can do, hard beside soft, on samples that stay."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from astkit.batch import Batch
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
"""The iteration that the masks of an evaluation are drawn for: training's are 0 and more."""


def gate_flops(config: LogicCAConfig, height: int, width: int, steps: int) -> FlopsPerSample:
    """FLOPs of the gates of one sample's rollout, by formula: nothing is traced.

    A gate ``c0 + c1 a + b (c2 + c3 a)`` is 3 multiply-adds; backward, the gradients of a and b are
    2 each, of c1, c2 and c3 one each, with one more product among them: 8 in all. The mixture of
    coefficients, once a rollout, is left out.
    """
    gates = config.gates_per_cell * height * width * steps
    return FlopsPerSample(6.0 * gates, 16.0 * gates)


class GateCosts(Costs):
    """The cost of a task's samples: a tracing counter sees no elementwise work."""

    def __init__(self, learner: Learner, task: Task) -> None:
        super().__init__(learner)
        self._task = task

    def of(self, batch: Batch, check_all: object) -> FlopsPerSample:
        """The cost of a sample of ``batch``."""
        height, width = batch.x.shape[2:]
        return gate_flops(self._task.config, height, width, self._task.steps)


class LogicEvaluator(Evaluator):
    """Finds, after each pass, what the soft and the hard automaton do on the task's fixed samples.

    ``val_loss`` and ``val_hard_loss``: mean loss a sample. ``val_wrong``: cells in which the
    rounded channel 0 of the hard automaton is not the target; ``val_accuracy``: share that is.
    """

    higher_is_better: ClassVar[dict[str, bool]] = {
        "val_loss": False,
        "val_hard_loss": False,
        "val_wrong": False,
        "val_accuracy": True,
    }

    def __init__(self, *parts: Any, task: Task) -> None:
        super().__init__(*parts)
        self._task = task

    def found(self) -> dict[str, Any]:
        """The metrics of the fixed samples, on the evaluation clock."""
        metrics = self._evaluated([self._task.evaluation()])
        return {f"val_{name}": value for name, value in metrics.items()}

    def evaluate(self, source: BatchSource) -> dict[str, Any]:
        """The same without ``val_`` for one pass of ``source``."""
        return self._evaluated(list(source.batches(0)))

    def _evaluated(self, batches: list[Batch]) -> dict[str, Any]:
        model: Any = self.learner.model
        with self.ledger.clock("evaluation"):
            for batch in batches:  # a soft and a hard rollout
                self.ledger.note(self._cost(batch), evaluated=2 * batch.rows)
            return evaluate(model, self._task, batches)


def evaluate(model: LogicCA, task: Task, batches: list[Batch] | None = None) -> dict[str, Any]:
    """What the soft and the hard automaton do with the same samples and masks.

    ``batches``: the task's fixed samples by default. Returns ``loss`` and ``hard_loss``, means a
    sample, ``wrong``, hard cells that are not as the target, and ``accuracy``, share that are.
    """
    device = next(model.parameters()).device
    batches = batches or [task.evaluation()]
    rows = sum(batch.rows for batch in batches)
    sums = torch.zeros(4, dtype=torch.float64)
    with evaluating(model, device), denormals_flushed():
        for i, batch in enumerate(batches):
            masks = task.masks(batch.index, i, EVALUATION)
            masks = None if masks is None else masks.to(device)
            x, y = batch.x.to(device), batch.y.to(device)
            soft, hard = (model(x, task.steps, masks, way) for way in (False, True))
            wrong = hard[:, 0].round() != y
            losses = [first_channel_loss(states, y).sum().item() for states in (soft, hard)]
            sums += torch.tensor([*losses, wrong.sum().item(), wrong.numel()]).double()
    loss, hard_loss, count, cells = sums.tolist()
    return {
        "loss": loss / rows,
        "hard_loss": hard_loss / rows,
        "wrong": round(count),
        "accuracy": 1 - count / cells,
    }
