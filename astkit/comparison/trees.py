"""The closing line of a comparison on tables: boosted trees beside the network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from astkit.aim.decisions import BOTH, OLD, TARGET
from astkit.aim.forecast import Forecast
from astkit.comparison import statistics
from astkit.comparison.plan import Plan
from astkit.comparison.statistics import DENSE, Entry, by_arm, mean_interval
from astkit.comparison.training import RECORDS
from astkit.comparison.units import values_by_unit, values_without
from astkit.comparison.verdict import judge
from astkit.datasets.joined import divide_joined
from astkit.datasets.table import RootMeanSquare, Table

USE_TREES = "boosted trees are what to use"
ARMS = {OLD: DENSE, BOTH: statistics.BOTH, TARGET: statistics.ALONE}
"""Of decisions, the networks that are trained so; policies draw rows by the others."""


def line_on_trees(
    plan: Plan, forecast: Forecast | None, followers: Sequence[str], entries: Sequence[Entry]
) -> list[str]:
    """What boosted trees and the network reach on the test rows, trained as is forecast.

    One line, and none unless training and test data are tables, of which the RMSE or the accuracy
    is compared. Without a forecast both are trained on all rows. Which of them is to be used is
    said where the interval of their difference, over seeds and test rows, excludes 0.
    """
    train, test, metrics = plan.task.train, plan.task.test, plan.task.metrics
    tables = isinstance(train, Table) and isinstance(test, Table) and find_spec("sklearn")
    own = entries[0]["metric"] == "accuracy"
    if not tables or not (isinstance(metrics[0].function, RootMeanSquare) if metrics else own):
        return []
    parts = [part for part in divide_joined(train) if part is not None]
    whole = Forecast(BOTH if len(parts) > 1 else OLD, "", torch.ones(len(train)))
    found = forecast or whole
    arm = by_arm(entries).get(ARMS.get(found.decision) or followers[0])
    if arm is None:
        return []
    start = time.perf_counter()
    pipeline = import_module("astkit.aim.fit").fitted(parts, found.decision, found.weights)
    seconds = time.perf_counter() - start
    outputs, source = pipeline.predict(test), plan.task.source("test")
    if test.classes is None:
        errors = torch.from_numpy(outputs).float()
        value = float((errors - test.values).square().mean().sqrt())
        units = values_without(metrics[0], [(errors, test.values)], source)
    else:
        right = torch.from_numpy(outputs == np.array(test.classes)[test.values]).float()
        value, units = float(right.mean()), values_by_unit(right, source, test.values)
    trees = {"policy": DENSE, "value": value, "flops": None, "seconds": seconds, "rate": 1.0}
    both = [{**run, "policy": "network"} for run in arm.values()]
    both += [{**run, **trees} for run in both]

    def rows(entry: Entry) -> Tensor | None:
        if entry["policy"] == DENSE:
            return units
        return load((plan.folder / RECORDS / entry["visits"]).read_bytes()).get("test")

    metric, higher = entries[0]["metric"], entries[0]["higher"]
    (verdict,) = judge(both, metric, higher, rows=rows, smallest_gain=0.0)
    of_network, its_seconds = (
        mean_interval(run[key] for run in arm.values()).mean for key in ("value", "seconds")
    )
    how = "as forecast" if forecast else "on all rows"
    said = (
        f"on the {len(test):,} test rows boosted trees, trained {how}, reach {metric} {value:.4g}"
    )
    said += f" ({seconds:.2g} s), the network {of_network:.4g} ({its_seconds:.2g} s): "
    use = {"better": "the network is what to use", "worse": USE_TREES}
    said += use.get(verdict.outcome, "cannot tell which to use")
    said += f", {metric} of the network {verdict.amount(verdict.difference)}"
    return [said + verdict.reason()[1] * (verdict.outcome not in use)]
