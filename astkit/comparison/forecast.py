"""What `aim` would do with the data of a comparison, told before anything is trained.

The runs find the same forecast again by their data, see `forecast_of`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from astkit.aim.auto import Auto
from astkit.aim.decisions import OLD
from astkit.aim.forecast import Forecast, forecast_of, held_data
from astkit.aim.policy import MOST, Aim
from astkit.aim.rows import Rows
from astkit.aim.sides import times_of
from astkit.comparison.plan import Plan
from astkit.comparison.progress import RunsBar
from astkit.datasets.joined import divide_joined
from astkit.datasets.table import Table
from astkit.progress import announce
from astkit.trainers import Trainer


def tell_forecast(plan: Plan, bar: RunsBar) -> tuple[Forecast | None, tuple[str, ...]]:
    """The forecast for the policies that choose by one, and which follow it; it is printed."""
    policies = plan.new_policies()
    choosers = {label: each for label, each in policies.items() if isinstance(each, Aim | Auto)}
    if not choosers:
        return None, ()
    bar.begin("forecast")
    features = next((each.features for each in choosers.values() if isinstance(each, Aim)), None)
    trainer = plan.trainer()
    classes, most = trainer.find_targets().classes, MOST * dense_flops(trainer)
    data, target = plan.task.train, plan.task.validation
    if plan.target_controls:  # a target that may be trained on is part of the data
        data, target = getattr(trainer.train_data, "data", None), None
    horizon = horizon_of(*divide_joined(data), plan.task.test) if target is None else None
    try:
        found = forecast_of(data, target, features, classes, most, horizon, plan.forecast)
    except ValueError as error:  # "auto" does without, "aim" says it where it cannot
        announce(f"forecast: none, since {error}")
        return None, ()
    announce(found.sentence)
    return found, tuple(choosers) if found.decision != OLD else ()


def horizon_of(old: Any, target: Any, test: Any) -> float | None:
    """How long the ``test`` rows last after the ``target``, in days or places; ``None``: unknown.

    Negative where they do not lie after it.
    """
    test = held_data(test)
    tables = all(isinstance(each, Table) for each in (old, target, test))
    if not tables or not target.date:
        return float(len(test)) if tables and target.in_order else None
    end = float(np.nanmax(times_of(Rows(target), target.date)))
    times = times_of(Rows(test), target.date)
    return float(np.nanmax(times)) - max(end, float(np.nanmin(times)))


def dense_flops(trainer: Trainer) -> float:
    """What dense training costs: its budget, or an estimate from the first rows.

    Infinite where FLOPs cannot be counted, as runs have equal seconds then.
    """
    budget, known = trainer.budget, trainer.may_spend()
    if known is not None:
        return known
    batch = trainer.batches.peek()
    of_batch = trainer.cost(batch).training(batch.rows)
    steps = budget.steps or len(trainer.train_data) * (budget.epochs or 0.0)
    return math.inf if trainer.ledger.uncounted else steps * of_batch
