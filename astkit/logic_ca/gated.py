"""Does choosing samples pay for the Game of Life? The kit's gate against its fair controls."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from astkit.gating import Gate, RandomSubset
from astkit.logic_ca.gradients import first_channel_loss
from astkit.logic_ca.tasks import Task, game_of_life
from astkit.logic_ca.training import SETTINGS, logic_trainer
from astkit.trainers import Budget, TrainConfig, Trainer

ARMS: dict[str, str] = {
    "dense": "every sample",
    "gate": "a scoring rollout of each batch, a step on the samples of highest loss",
    "dense, equal FLOPs": "every sample, until the gate's FLOPs are spent",
    "random": "a random share of the samples, chosen before loading",
}

DECAYED = replace(SETTINGS, schedule="cosine")
"""The settings of a comparison: each arm's learning rate ends where its budget ends."""


def arm_trainer(
    arm: str,
    seed: int,
    *,
    rate: float = 0.25,
    iterations: int = 3000,
    budget: Budget | None = None,
    task: Task | None = None,
    settings: TrainConfig = DECAYED,
    **trainer: Any,
) -> Trainer:
    """A trainer for one of `ARMS`; all start from the same automaton and see the same batches.

    Args:
        arm: its name.
        seed: of wiring, order and gate.
        rate: share of the samples that gate and random arm train on.
        iterations: batches of the dense arm; gate and random arm make as many passes.
        budget: of the arm with equal FLOPs, ``Budget(flops=...)`` of what the gate has spent.
        task: Game of Life by default.
        settings: see `logic_trainer`.
        trainer: what else `logic_trainer` takes.

    Raises ``ValueError`` for an unknown arm, or one that needs a budget and has none.
    """
    if arm not in ARMS:
        raise ValueError(f"unknown arm {arm!r}: choose one of {', '.join(ARMS)}")
    if ("equal" in arm) != (budget is not None):
        raise ValueError(
            f"budget is {budget} for the arm {arm!r}: give what the gate has spent to the arm with"
            " equal FLOPs, and to no other"
        )
    task = task or game_of_life()
    if budget is None:
        budget = Budget(epochs=(iterations - 0.5) / len(task.source()))
    if arm == "gate":
        trainer["gate"] = Gate(rate, criterion=first_channel_loss, seed=seed)
    if arm == "random":
        trainer["sampler"] = RandomSubset(rate, seed)
    return logic_trainer(task, seed=seed, budget=budget, settings=settings, **trainer)


def run_arm(arm: str, seed: int, **options: Any) -> dict[str, Any]:
    """Train one arm; plain values, with the FLOPs that the arm with equal FLOPs wants.

    ``wrong`` cells at the end, and ``solved``, the number of updates after which an evaluation
    first found none, or ``None``.
    """
    work = arm_trainer(arm, seed, **options)
    epochs, ledger = work.run().epochs, work.ledger
    last, gate = epochs[-1], getattr(work.step, "gate", None)
    solved = [epoch for epoch in epochs if epoch["val_wrong"] == 0]
    return {
        "arm": arm,
        "seed": seed,
        "wrong": last["val_wrong"],
        "accuracy": last["val_accuracy"],
        "loss": last["val_loss"],
        "solved": solved[0]["step"] if solved else None,
        "solved_flops": solved[0]["flops"] if solved else None,
        "rate": None if gate is None else gate.rate,
        "steps": last["step"],
        "flops": ledger.flops.total,
        "seconds": ledger.seconds["training"],
        **{f"samples_{name}": count for name, count in asdict(ledger.samples).items()},
    }


def compare_arms(seed: int, **options: Any) -> list[dict[str, Any]]:
    """`run_arm` of every arm for one seed, the gate before the arm that spends its FLOPs."""
    results: dict[str, dict[str, Any]] = {}
    for arm in ARMS:
        budget = Budget(flops=results["gate"]["flops"]) if "equal" in arm else None
        results[arm] = run_arm(arm, seed, budget=budget, **options)
    return list(results.values())
