"""Training of an automaton with `Trainer`: ledger, checkpoints, board and gate."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from astkit.batch import Batch
from astkit.gating import Policy, Scored
from astkit.gating.policy import overrides
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
from astkit.trainers.steps import selected

CLIP = 100.0
"""Largest magnitude of an element of the gradient."""

SETTINGS = TrainConfig(lr=0.05, weight_decay=0.0, clip_norm=None, schedule="constant")


class LogicStep:
    """Training step: one update with the gradient of the summed losses, clipped elementwise.

    A sum, not a mean: gates with nearly saturated softmax have tiny gradients, compared to which
    the optimizer's eps would be large.

    Args:
        task: task that defines steps and masks.
        seed: seed of masks and hard gates.
        ways: parallel, chunk_size and recompute; see `gradients`.
    """

    def __init__(self, task: Task, seed: int = 0, **ways: Any) -> None:
        self.task, self.seed, self.ways = task, seed, ways
        self.iteration = 0

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        masks, hard = self._draw(batch, ledger)
        losses = self._train(learner, batch, masks, hard, weight, ledger)
        return StepResult(torch.arange(len(losses)), losses)

    def _draw(self, batch: Batch, ledger: Ledger) -> tuple[Tensor | None, Tensor | Literal[False]]:
        """Fire masks of the samples, and the hard gates."""
        device = batch.x.device
        with ledger.phase("load"):
            masks = self.task.masks(batch.index, self.seed, self.iteration)
            hard = self.task.hard(self.seed, self.iteration)
            self.iteration += 1
            moved = None if masks is None else masks.to(device)
            return moved, hard if hard is False else hard.to(device)

    def _train(
        self,
        learner: Learner,
        batch: Batch,
        masks: Tensor | None,
        hard: Tensor | Literal[False],
        weight: Tensor | None,
        ledger: Ledger,
    ) -> Tensor:
        model: Any = learner.model
        ways = {"hard": hard, "weight": weight, **self.ways}
        with ledger.phase("gradients"):
            losses, found = gradients(model, batch.x, batch.y, self.task.steps, masks, **ways)
        with ledger.phase("optimizer"):
            apply_gradients(model, learner.optimizer, found)
            learner.updates.steps += 1
        return losses

    def state_dict(self) -> dict[str, Any]:
        return {"iteration": self.iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration = state["iteration"]


class GatedLogicStep(LogicStep):
    """Trains on the samples selected by a policy, such as a `Gate`, after a scoring rollout."""

    def __init__(self, task: Task, gate: Policy, seed: int = 0, **ways: Any) -> None:
        super().__init__(task, seed, **ways)
        self.gate = gate

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        masks, hard = self._draw(batch, ledger)
        seen = Scored(
            None,
            batch.y,
            batch.x,
            batch.index,
            learner.model,
            criterion=learner.criterion,
            run=lambda model, part: model(part.x, self.task.steps, masks, hard),
        )
        with denormals_flushed():
            chosen, scores = selected(self.gate, seen, ledger)
        scoring = (batch.rows if seen.read else 0, chosen, scores, seen)
        if not len(chosen):
            return StepResult(chosen.index, torch.empty(0), *scoring)
        counts = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
        fires = None if masks is None else masks[:, chosen.index]
        losses = self._train(learner, batch.take(chosen.index), fires, hard, counts, ledger)
        return StepResult(chosen.index, losses, *scoring)

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the policy; see `Gate.steer`."""
        self.gate.steer(name, value)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "gate": self.gate.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.gate.load_state_dict(state["gate"])


def apply_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, found: Gradients) -> None:
    """Clip the gradient ``found`` elementwise to ±``CLIP`` and take one optimizer step.

    Raises ``FloatingPointError`` for a non-finite gradient, before any weight changes.
    """
    total = torch.stack([g.abs().amax() for g in found.values()]).amax()
    if not torch.isfinite(total):
        raise FloatingPointError(
            f"the gradient became {total.item()}: the weights are unchanged by this step;"
            " decrease lr, and check the batch's inputs for NaN"
        )
    for name, parameter in model.named_parameters():
        parameter.grad = found[name]
    nn.utils.clip_grad_value_(model.parameters(), CLIP)
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
    policy: Policy | None = None,
    settings: TrainConfig | None = None,
    model: LogicCA | None = None,
    **trainer: Any,
) -> Trainer:
    """A `Trainer` of an automaton on ``task``: AdamW, betas (.9, .99), loss summed over samples. ::

        done = logic_trainer(game_of_life(), seed=1)
        done.run().epochs[-1]["val_wrong"]

    Args:
        task: task to train on.
        seed: seed of wiring, order of samples, and masks.
        iterations: number of batches; by default the task's.
        parallel, chunk_size, recompute: see `gradients`.
        policy: selects samples before loading or, such as a `Gate`, from each batch.
        settings: learning rate, weight decay, schedule; by default `SETTINGS` with the task's
            weight decay. Its seed is replaced by ``seed``.
        model: by default created from the task's config, with wiring from ``seed``.
        trainer: other arguments of `Trainer`, such as budget (instead of iterations), device,
            checkpoints, resume.

    Raises ``ValueError`` for unsupported settings, or both iterations and a budget.
    """
    settings = settings or replace(SETTINGS, weight_decay=task.weight_decay)
    _check(settings)
    model = model or LogicCA(replace(task.config, seed=seed))
    source = task.source(seed)
    if "budget" in trainer and iterations is not None:
        raise ValueError(f"iterations is {iterations}, but a budget is given too: omit one")
    # half a batch less than a whole number, so that rounding cannot add a batch
    passes = ((iterations or task.iterations) - 0.5) / len(source)
    ways: dict[str, Any] = {"parallel": parallel, "chunk_size": chunk_size, "recompute": recompute}
    if policy is not None and overrides(policy, "choose"):
        step: LogicStep = GatedLogicStep(task, policy, seed, **ways)
    else:
        step = LogicStep(task, seed, **ways)
    return Trainer(
        model,
        source,
        policy=policy,
        step=step,
        config=replace(settings, seed=seed),
        criterion=first_channel_loss,
        optimizer=_optimizer(model, settings),
        evaluator=partial(LogicEvaluator, task=task),
        costs=partial(GateCosts, task=task),
        **{"budget": Budget(epochs=passes), **trainer},
    )


def _optimizer(model: LogicCA, settings: TrainConfig) -> torch.optim.Optimizer:
    given: Any = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": True}
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), eps=1e-8, **given)


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
                f"settings.{name} is {given!r}, which is not supported for an automaton: use"
                f" {value!r}; chunk_size and recompute bound memory, and gradients are clipped"
                f" elementwise to {CLIP:g}"
            )
