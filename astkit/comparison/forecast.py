"""What `aim` would do with the data of a comparison, told before anything is trained.

The only place of a comparison that asks `astkit.aim`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from astkit.aim.decisions import OLD
from astkit.aim.gains import ExpectedGain
from astkit.aim.policy import MOST, Aim, expected_gain, plan_of
from astkit.comparison.plan import Plan
from astkit.comparison.progress import RunsBar
from astkit.progress import announce
from astkit.trainers import Trainer


@dataclass(frozen=True)
class Foretold:
    """What is stored of a forecast, and the policies that choose rows by it: none if none gains."""

    gain: ExpectedGain | None = None  # by validation data
    decision: dict[str, Any] | None = None  # with rows of a target
    followers: tuple[str, ...] = ()


def foretell(plan: Plan, bar: RunsBar) -> Foretold:
    """The forecast for the policies that choose by one; its sentence is printed."""
    choosers = {label: each for label, each in plan.new_policies().items() if isinstance(each, Aim)}
    if not choosers:
        return Foretold()
    bar.begin("forecast")
    features = getattr(next(iter(choosers.values())), "features", None)
    trainer, followers = plan.trainer(), tuple(choosers)
    classes = trainer.find_targets().classes
    if plan.target_controls:
        allowed = MOST * dense_flops(trainer)
        chosen = plan_of(getattr(trainer.train_data, "data", None), features, classes, allowed)
        name, table = chosen.decision.name, list(chosen.table)
        announce(chosen.sentence)
        decision = {"sentence": chosen.sentence, "table": table, "chosen": name}
        return Foretold(decision=decision, followers=followers if name != OLD.name else ())
    options: dict[str, Any] = {"features": features, "seed": plan.seeds[0], "classes": classes}
    try:
        gain = expected_gain(plan.task.train, plan.task.validation, **options)
    except ValueError as error:  # "auto" does without, "aim" says it where it cannot
        announce(f"forecast: none, since {error}")
        return Foretold()
    announce(gain.sentence)
    return Foretold(gain, followers=followers if gain.power > 0 else ())


def dense_flops(trainer: Trainer) -> float:
    """What dense training costs: its budget, or an estimate from the first rows.

    Infinite where FLOPs cannot be counted, as runs have equal seconds then.
    """
    budget = trainer.budget
    if budget.flops is not None:
        return budget.flops
    batch = trainer.batches.peek()
    of_batch = trainer.cost(batch).training(batch.rows)
    steps = budget.steps or len(trainer.train_data) * (budget.epochs or 0.0)
    return math.inf if trainer.ledger.uncounted else steps * of_batch
