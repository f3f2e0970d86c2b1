"""Training an automaton with the kit's own `Trainer`: ledger, checkpoints, board and gate.

A soft loss alone proves nothing, so what the hard automaton does on fixed samples stands beside it
after every pass.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from astkit.datasets import Batch
from astkit.gating import Gate
from astkit.logic_ca.automaton import LogicCA
from astkit.logic_ca.evaluation import GateCosts, LogicEvaluator
from astkit.logic_ca.gradients import (
    Gradients,
    Parallel,
    denormals_flushed,
    first_channel_loss,
    gradients,
)
from astkit.logic_ca.tasks import Task
from astkit.profiling.ledger import Ledger
from astkit.trainers import Budget, StepResult, TrainConfig, Trainer
from astkit.trainers.learner import Learner

CLIP = 100.0
"""Largest element of the gradient, either sign."""

SETTINGS = TrainConfig(lr=0.05, weight_decay=0.0, clip_norm=None, schedule="constant")
BETAS, EPS = (0.9, 0.99), 1e-8


class Drawn(NamedTuple):
    """What is drawn for an iteration: fire masks of its samples, and gates that are hard."""

    masks: Tensor | None
    hard: Tensor | Literal[False]


class LogicStep:
    """Trains on a batch: the gradient of the summed losses, clipped element by element, one step.

    A mean in the sum's place would be another training: gates that are all but decided have tiny
    gradients, which the optimizer's eps then hides.

    Args:
        task: gives steps and masks.
        seed: of the masks and of the gates that are hard.
        parallel, chunk_size, recompute: see `gradients`.
    """

    def __init__(
        self,
        task: Task,
        seed: int = 0,
        *,
        parallel: Parallel = "batch",
        chunk_size: int | None = None,
        recompute: int | None = None,
    ) -> None:
        self.task, self.seed = task, seed
        self.parallel, self.chunk_size, self.recompute = parallel, chunk_size, recompute
        self.iteration = 0

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        drawn = self._draw(batch, ledger)
        losses = self._train(learner, batch, drawn, weight, ledger)
        return StepResult(torch.arange(len(losses)), losses)

    def _draw(self, batch: Batch, ledger: Ledger) -> Drawn:
        with ledger.phase("load"):
            masks = self.task.masks(batch.index, self.seed, self.iteration)
            hard = self.task.hard(self.seed, self.iteration)
            self.iteration += 1
            device = batch.x.device
            return Drawn(
                None if masks is None else masks.to(device),
                hard if hard is False else hard.to(device),
            )

    def _train(
        self,
        learner: Learner,
        batch: Batch,
        drawn: Drawn,
        weight: Tensor | None,
        ledger: Ledger,
    ) -> Tensor:
        model = learner.model
        assert isinstance(model, LogicCA)
        with ledger.phase("gradients"):
            losses, found = gradients(
                model,
                batch.x,
                batch.y,
                self.task.steps,
                drawn.masks,
                hard=drawn.hard,
                loss=learner.criterion,
                parallel=self.parallel,
                chunk_size=self.chunk_size,
                weight=weight,
                recompute=self.recompute,
            )
        with ledger.phase("optimizer"):
            apply_gradients(model, learner.optimizer, found)
            learner.updates.steps += 1
        return losses

    def state_dict(self) -> dict[str, Any]:
        """The number of the next iteration, which masks and gates are drawn for."""
        return {"iteration": self.iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after ``state``."""
        self.iteration = state["iteration"]


class GatedLogicStep(LogicStep):
    """Scores the whole batch in a rollout without gradients, trains on the gate's choice."""

    def __init__(self, task: Task, gate: Gate, seed: int = 0, **ways: Any) -> None:
        super().__init__(task, seed, **ways)
        self.gate = gate

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        drawn, model = self._draw(batch, ledger), learner.model
        with ledger.phase("score"), denormals_flushed():
            scores = self.gate.score(
                model, batch.x, batch.y, batch.index, lambda x: model(x, self.task.steps, *drawn)
            )
        with ledger.phase("gate"):
            chosen = self.gate.select(scores, batch.index)
            counts = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
            rows, masks = chosen.take(batch), drawn.masks
            drawn = drawn._replace(masks=None if masks is None else masks[:, chosen.index])
        losses = scores[:0]
        if len(chosen):
            losses = self._train(learner, rows, drawn, counts, ledger)
        return StepResult(chosen.index, losses, len(scores), chosen, scores, self.gate.passes)

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the gate; see `Gate.steer`."""
        self.gate.steer(name, value)

    def state_dict(self) -> dict[str, Any]:
        """The iteration's number and the gate."""
        return {**super().state_dict(), "gate": self.gate.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after ``state``."""
        super().load_state_dict(state)
        self.gate.load_state_dict(state["gate"])


def apply_gradients(
    model: nn.Module, optimizer: torch.optim.Optimizer, found: Gradients, clip: float = CLIP
) -> None:
    """Clip the total gradient ``found`` element by element to ±``clip`` and take one step.

    Raises ``FloatingPointError`` for a gradient that is not finite, before any weight changes.
    """
    total = torch.stack([g.abs().amax() for g in found.values()]).amax()
    if not torch.isfinite(total):
        raise FloatingPointError(
            f"the gradient became {total.item()}: the weights are as they were before this step;"
            " lower lr, and look at the batch's inputs for NaN"
        )
    for name, parameter in model.named_parameters():
        parameter.grad = found[name]
    nn.utils.clip_grad_value_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def logic_trainer(
    task: Task,
    *,
    seed: int = 0,
    iterations: int | None = None,
    parallel: Parallel = "batch",
    chunk_size: int | None = None,
    recompute: int | None = None,
    gate: Gate | None = None,
    settings: TrainConfig | None = None,
    model: LogicCA | None = None,
    **trainer: Any,
) -> Trainer:
    """A `Trainer` of an automaton on ``task``, ready to run.

    AdamW with betas (.9, .99) and eps 1e-8, the loss a sum over samples. ::

        done = logic_trainer(game_of_life(), seed=1)
        done.run().epochs[-1]["val_wrong"]

    Args:
        task: what to learn.
        seed: of wiring, order of the samples and masks.
        iterations: batches to train on; those of the task by default.
        parallel, chunk_size, recompute: see `gradients`.
        gate: trains on its choice of each batch; build it with ``criterion=first_channel_loss``.
        settings: learning rate, weight decay, schedule; by default `SETTINGS` with the task's
            weight decay. ``seed`` above takes the place of its seed.
        model: built from the task's config, its wiring from ``seed``, by default.
        trainer: what else a `Trainer` takes: budget (in place of iterations), sampler, observers,
            checkpoints, resume, device, meter.

    Raises ``ValueError`` for settings that mean nothing here, or both iterations and a budget.
    """
    settings = settings or replace(SETTINGS, weight_decay=task.weight_decay)
    _check(settings)
    model = model or LogicCA(replace(task.config, seed=seed))
    source = task.source(seed)
    ways: dict[str, Any] = {
        "parallel": parallel,
        "chunk_size": chunk_size,
        "recompute": recompute,
    }
    if "budget" in trainer and iterations is not None:
        raise ValueError(f"iterations is {iterations}, but a budget is given too: leave one out")
    if "budget" not in trainer:
        count = iterations or task.iterations
        # half a batch short of the last one's end, where rounding cannot add one more
        trainer["budget"] = Budget(epochs=(count - 0.5) / len(source))
    step = (
        LogicStep(task, seed, **ways) if gate is None else GatedLogicStep(task, gate, seed, **ways)
    )
    return Trainer(
        model,
        source,
        step=step,
        config=replace(settings, seed=seed),
        criterion=first_channel_loss,
        optimizer=_optimizer(model, settings),
        evaluator=partial(LogicEvaluator, task=task),
        costs=partial(GateCosts, task=task),
        **trainer,
    )


def _optimizer(model: LogicCA, settings: TrainConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=BETAS,
        eps=EPS,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def _check(settings: TrainConfig) -> None:
    fixed = {
        "clip_norm": None,
        "precision": "fp32",
        "accumulation_steps": 1,
        "micro_batch": None,
        "compile": False,
        "activation_checkpointing": False,
    }
    for name, value in fixed.items():
        if (given := getattr(settings, name)) != value:
            raise ValueError(
                f"settings.{name} is {given!r}, which an automaton's training does not know: leave"
                f" it {value!r}; chunk_size and recompute bound memory, and gradients are clipped"
                f" element by element to {CLIP:g}"
            )
