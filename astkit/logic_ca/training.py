"""Training of an automaton with `Trainer`: ledger, checkpoints, board and gate."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from astkit import distributed
from astkit.batch import Batch, call
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
        seed: seed of masks and hard gates.
        gate: a policy, such as a `Gate`, that selects samples after a scoring rollout; by default
            all are trained on.
        ways: parallel, chunk_size and recompute; see `gradients`.
    """

    def __init__(self, task: Task, seed: int = 0, gate: Policy | None = None, **ways: Any) -> None:
        self.task, self.seed, self.gate, self.ways = task, seed, gate, ways
        self.iteration = 0
        if gate is not None:  # otherwise the trainer refuses to steer
            self.steer = gate.steer

    def __call__(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        if self.gate is None:
            return self.dense(learner, batch, weight, ledger)
        seen = self.scored(learner, batch)
        chosen, scores = selected(self.gate, seen, ledger)
        scoring = (batch.rows if seen.read else 0, chosen, scores, seen)
        if not len(chosen):
            self.iteration += 1
            return StepResult(chosen.index, torch.empty(0), *scoring)
        counts = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
        trained = self.dense(learner, batch.take(chosen.index), counts, ledger)
        return StepResult(chosen.index, trained.losses, *scoring)

    def dense(
        self, learner: Learner, batch: Batch, weight: Tensor | None, ledger: Ledger
    ) -> StepResult:
        """Train on all samples of ``batch``, as the loop does while selection is switched off."""
        model: Any = learner.model
        with ledger.phase("load"):
            masks, hard = self._drawn(batch)
            self.iteration += 1
        ways = {"hard": hard, "weight": weight, **self.ways}
        with ledger.phase("gradients"):
            losses, found = gradients(model, batch.x, batch.y, self.task.steps, masks, **ways)
        with ledger.phase("optimizer"):
            apply_gradients(model, learner.optimizer, found)
            learner.updates.steps += 1
        return StepResult(torch.arange(len(losses)), losses)

    def scored(self, learner: Learner, batch: Batch) -> Scored:
        """``batch`` as a `Scored` of rollouts with the masks and hard gates of this iteration."""
        parts = (None, batch.y, batch.x, batch.index, learner.model)
        hooks: dict[str, Any] = {"run": self._rollout, "book": learner.book}
        return Scored(*parts, criterion=learner.criterion, **hooks)

    def _rollout(self, model: nn.Module, part: Batch) -> Any:
        if not isinstance(model, LogicCA):  # a helper model
            return call(model, part.x, part.y)
        with denormals_flushed():
            return model(part.x, self.task.steps, *self._drawn(part))

    def _drawn(self, part: Batch) -> tuple[Tensor | None, Tensor | Literal[False]]:
        """Fire masks of the samples, and the hard gates."""
        masks = self.task.masks(part.index, self.seed, self.iteration)
        return masks, self.task.hard(self.seed, self.iteration)

    def state_dict(self) -> dict[str, Any]:
        gate = {} if self.gate is None else {"gate": self.gate.state_dict()}
        return {"iteration": self.iteration, **gate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration = state["iteration"]
        if self.gate is not None:
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
        seed: seed of wiring, order of samples, and masks.
        iterations: the budget is as many passes over the samples as this number of batches takes,
            by default the task's; a policy that selects before loading takes fewer batches.
        parallel, chunk_size, recompute: see `gradients`.
        policy: selects samples before loading or, such as a `Gate`, from each batch.
        settings: learning rate, weight decay, schedule; by default `SETTINGS` with the task's
            weight decay. Its seed is replaced by ``seed``.
        model: by default created from the task's config, with wiring from ``seed``.
        trainer: other arguments of `Trainer`, such as budget (instead of iterations), device,
            checkpoints, resume.

    Raises ``ValueError`` for unsupported settings, policies with helper models, several processes,
    or both iterations and a budget.
    """
    settings = settings or replace(SETTINGS, weight_decay=task.weight_decay)
    _check(settings, policy)
    model = model or LogicCA(replace(task.config, seed=seed))
    source = task.source(seed)
    if "budget" in trainer and iterations is not None:
        raise ValueError(f"iterations is {iterations}, but a budget is given too: omit one")
    # half a batch less than a whole number, so that rounding cannot add a batch
    iterations = task.iterations if iterations is None else iterations
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}: give 1 or more")
    passes = (iterations - 0.5) / len(source)
    ways: dict[str, Any] = {"parallel": parallel, "chunk_size": chunk_size, "recompute": recompute}
    gate = policy if policy is not None and overrides(policy, "choose") else None
    return Trainer(
        model,
        source,
        policy=policy,
        step=LogicStep(task, seed, gate, **ways),
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


def _check(settings: TrainConfig, policy: Policy | None) -> None:
    if (processes := distributed.world()) > 1:
        raise ValueError(
            f"{processes} processes train an automaton, but its step does not average gradients:"
            " use one process"
        )
    if policy is not None and (overrides(policy, "prepare") or policy.cost.helpers):
        raise ValueError(
            f"policy is {type(policy).__name__}, which trains helper models, but these would not be"
            " given the task's steps and masks: use a policy without them, such as Gate"
        )
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
