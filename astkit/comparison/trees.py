"""The closing line of a comparison on tables: boosted trees beside the network."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from astkit.aim.decisions import BOTH, OLD, TARGET
from astkit.aim.forecast import Forecast
from astkit.comparison import statistics
from astkit.comparison.plan import Plan
from astkit.comparison.statistics import DENSE, Entry, by_arm, gaps, is_finite
from astkit.comparison.training import KEPT, RECORDS, tested
from astkit.comparison.verdict import amount, unit
from astkit.datasets.batch import Batch
from astkit.datasets.dependence import FEWEST
from astkit.datasets.joined import divide_joined
from astkit.datasets.table import Table
from astkit.trainers.evaluation import Evaluation

ARMS = {OLD: DENSE, BOTH: statistics.BOTH, TARGET: statistics.ALONE}
"""Of decisions, the networks that are trained so; policies draw rows by the others."""


def line_on_trees(
    plan: Plan, forecast: Forecast | None, followers: Sequence[str], entries: Sequence[Entry]
) -> list[str]:
    """What boosted trees and the network reach on the test rows, trained as is forecast.

    One line, and none unless training and test data are tables. Without a forecast both are trained
    on everything. Which of them is to be used is said where the interval of their difference, over
    seeds and test rows, excludes 0.
    """
    task = plan.task
    train, test = task.train, task.test
    if not (isinstance(train, Table) and isinstance(test, Table)) or find_spec("sklearn") is None:
        return []
    parts = [part for part in divide_joined(train) if part is not None]
    found = forecast or Forecast(
        BOTH if len(parts) > 1 else OLD, "no forecast: trained on all rows", torch.ones(len(train))
    )
    label = ARMS.get(found.decision) or next(iter(followers))
    start = time.perf_counter()
    pipeline = import_module("astkit.aim.fit").fitted(parts, found.decision, found.weights)
    seconds = time.perf_counter() - start
    try:
        trees, of_trees = _tested(plan, pipeline, test)
    except Exception as error:  # of a metric or criterion that takes other outputs
        return [f"boosted trees cannot be judged by {entries[0]['metric']}: {error}"]
    network = {
        s: run for s, run in by_arm(entries).get(label, {}).items() if is_finite(run["value"])
    }

    arm: dict[int, Entry] = dict.fromkeys(network, trees)

    def rows(entry: Entry) -> Tensor | None:
        if entry is trees:
            return of_trees
        return load((plan.folder / RECORDS / entry["visits"]).read_bytes()).get("test")

    metric, higher, value = trees["metric"], trees["higher"], trees["value"]
    scale = unit(metric)[0]

    def reach(value: float, seconds: float) -> str:
        shown = f"{value:.1%}" if scale > 1 else f"{value:.4g}"
        return f"{metric} {shown} ({seconds:.2g} s)"

    said = found.sentence.split("; ")[0] + f" ({found.seconds:.2g} s)" * (forecast is not None)
    said += f"; on the {len(test):,} test rows boosted trees reach {reach(value, seconds)}"
    if not network:
        return [f"{said}, and no network has a finite {metric}"]
    mean, its_seconds = (
        fmean(run[name] for run in network.values()) for name in ("value", "seconds")
    )
    said += f" and the network {reach(mean, its_seconds)}: "
    estimate = gaps(arm, network, rows).estimate()
    gap = estimate.interval()
    reason = "; one seed has no interval" * (gap.n == 1)
    if estimate.worth < FEWEST:
        reason = f"; these rows are worth about {estimate.worth:.0f} independent ones, of {FEWEST}"
    differ = (gap.low > 0 or gap.high < 0) and not reason
    names = "boosted trees are", "the network is"
    if differ and (gap.mean > 0) != higher:
        gap, mean, names = gaps(network, arm, rows).estimate().interval(), value, names[::-1]
    size = amount(gap, metric, math.nan if higher else mean)
    if differ:
        return [f"{said}{names[0]} what to use, {metric} {size}"]
    return [f"{said}cannot tell which to use, {metric} of boosted trees {size}{reason}"]


def _tested(plan: Plan, pipeline: Any, test: Table) -> tuple[dict[str, Any], Tensor | None]:
    """The entry of trees, and their values of the test rows, as of a network."""
    task, names = plan.task, test.classes
    if names is None:
        outputs = torch.from_numpy(pipeline.predict(test)).float()
    else:  # as logits; trees may not know all classes
        outputs = torch.full((len(test), len(names)), -1e9)
        places = [names.index(name) for name in pipeline.classes_]
        shares = torch.from_numpy(pipeline.predict_proba(test)).float()
        outputs[:, places] = shares.log().clamp_min(-1e9)
    with torch.no_grad():
        form = task.model(0).cpu().eval()(test.inputs(torch.arange(2)))
    if not isinstance(form, Tensor) or form.numel() * len(test) != 2 * outputs.numel():
        raise ValueError("the network gives other outputs than one number, or one a class")
    outputs = outputs.reshape(-1, *form.shape[1:])
    evaluation = Evaluation(task.criterion, task.metrics, names is not None, KEPT)
    evaluation.add(Batch(None, outputs, test.values), outputs)
    return tested(evaluation.result(), task.source("test"), task)
