"""Cost to reach an accuracy against the keep fraction: `python -m benchmarks.optimal_rate`.

A gate scores every sample and trains on the fraction k of them. Cost of an offered sample, as a
share of training on it: s + k, where s is a scoring forward pass. If a skipped sample is worth
nothing, 1 / k times as many samples have to be offered; if it was not needed, the number does not
depend on k. With both parts, the cost to reach the accuracy is

    C(k) / C(dense) = (s + k) (a + b / k),    least at k = sqrt(s b / a)

or at k = 1 if that is larger; a and b, 0 or more, are fitted to the measured costs. Runs have a
constant learning rate, since a schedule would fix when they end. Writes
optimal_rate.json; ``--plot`` draws docs/optimal_rate.png from it.
"""

from __future__ import annotations

import itertools
import math
import time
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from astkit import Budget, Gate
from astkit.comparison.compare import checked_task
from astkit.comparison.plan import Task
from astkit.comparison.statistics import ratio_interval
from astkit.files import read_json, write_atomic, write_json
from astkit.stamp import stamp
from astkit.trainers import TrainConfig
from astkit.widgets.style import COLOURS, Picture, picture
from benchmarks import bench
from benchmarks.builders import task

RESULTS = bench.HERE / "optimal_rate.json"
PICTURE = bench.ROOT / "docs" / "optimal_rate.png"
RATES = (0.1, 0.25, 0.5, 0.75)
POINTS, SMOOTH, MOST = 40, 3, 3.0
"""Validations per dense budget; values averaged; largest cost, in dense budgets."""


class Goal(NamedTuple):
    """Validation value to reach, epochs of the dense budget, and learning rate of a task."""

    value: float
    epochs: float
    lr: float


GOALS = {
    "digits": Goal(0.965, 12, 1e-3),
    "series": Goal(0.92, 5, 1e-3),
}
Run = dict[str, Any]


def prepared(name: str) -> Task:
    """The task with a constant learning rate."""
    config = TrainConfig(lr=GOALS[name].lr, schedule="constant")
    given = {"criterion": None, "metrics": None, **task(name), "config": config, "device": "cpu"}
    given.pop("budget", None)
    return checked_task(given)


def reach(name: str, rate: float | None, seed: int) -> Run:
    """Train until the mean of `SMOOTH` validations reaches the goal; ``rate`` None is dense."""
    goal, given = GOALS[name], prepared(name)
    policy = None if rate is None else Gate(rate, seed=seed)
    trainer = given.trainer(policy, seed, Budget(epochs=1e6))
    cost = trainer.cost(trainer.batches.peek())
    dense = cost.training(1) * (trainer.train_data.num_samples or 0) * goal.epochs
    values, cpu, steps = list[float](), 0.0, trainer.steps()
    while trainer.ledger.flops.total < MOST * dense:
        start = time.process_time()
        next(steps)
        cpu += time.process_time() - start
        if trainer.ledger.flops.total >= dense * (len(values) + 1) / POINTS:
            value, _, higher = given.value(trainer.evaluate(given.source("validation")))
            values.append(value)
            recent = mean(values[-SMOOTH:])
            if recent == goal.value or (recent > goal.value) == higher:
                break
    steps.close()
    return {
        "task": name,
        "rate": rate,
        "seed": seed,
        "reached": trainer.ledger.flops.total < MOST * dense,
        "flops": trainer.ledger.flops.total,
        "cpu": cpu,
        "trained": trainer.ledger.samples.trained,
        "scored": trainer.ledger.samples.scored,
        "scoring": cost.scoring(1) / cost.training(1),
    }


def model(rate: Any, scoring: float, fitted: tuple[float, float]) -> Any:
    """C(k) / C(dense)."""
    a, b = fitted
    return (scoring + rate) * (a + b / rate)


def optimum(scoring: float, fitted: tuple[float, float]) -> float:
    """The keep fraction of the least cost, in the measured range."""
    a, b = fitted
    least = math.sqrt(scoring * b / a) if a > 0 else 1.0
    return min(1.0, max(RATES[0], least))


def ratios(runs: list[Run], key: str) -> dict[float, list[float]]:
    """Cost as a share of that of dense training with the same seed, by rate; reached runs only."""
    dense = {run["seed"]: run[key] for run in runs if run["rate"] is None}
    found: dict[float, list[float]] = {}
    for run in runs:
        if run["rate"] is not None and run["reached"]:
            found.setdefault(run["rate"], []).append(run[key] / dense[run["seed"]])
    return found


def fit(runs: list[Run]) -> tuple[float, float]:
    """a and b, by least squares of the logarithms of the FLOP ratios."""
    points = [(k, each) for k, some in ratios(runs, "flops").items() for each in some]
    rates, costs = np.array(points).T

    def error(fitted: Any) -> float:
        return float(np.square(np.log(model(rates, runs[0]["scoring"], fitted) / costs)).sum())

    a, b = minimize(error, (0.5, 0.5), bounds=[(0, None), (1e-6, None)]).x
    return float(a), float(b)


def table(report: dict[str, Any]) -> pd.DataFrame:
    """A row per task: the goal, the ratio of each rate with its interval, and the fit."""
    rows = []
    for name, part in report.items():
        runs, goal = part["runs"], GOALS[name]
        fitted, scoring = fit(runs), runs[0]["scoring"]
        flops, cpu = ratios(runs, "flops"), ratios(runs, "cpu")
        seeds = len({run["seed"] for run in runs})
        best = optimum(scoring, fitted)
        row = {"task": name, "goal": f"{goal.value:g}", "n": str(seeds)}
        for rate in RATES:
            some = flops.get(rate, [])
            shown = ratio_interval(some).text(".2f") if len(some) > 1 else ""
            missed = f"; {seeds - len(some)} not reached" * (len(some) < seeds)
            seconds = f", CPU {ratio_interval(cpu[rate]).mean:.2f}" if len(some) > 1 else ""
            row[f"k = {rate}"] = f"{shown}{seconds}{missed}".strip("; ")
        row |= {"a, b": f"{fitted[0]:.2f}, {fitted[1]:.2f}", "least at k": f"{best:.2f}"}
        rows.append({**row, "C there": f"{model(best, scoring, fitted):.2f}"})
    return pd.DataFrame(rows).set_index("task")


def plot(report: dict[str, Any]) -> Picture:
    """Measured cost by rate with intervals, the cost model's curve and its minimum."""

    figure = picture(len(report), width=3.6 * len(report), height=3.2)
    rates = np.linspace(0.07, 1, 200)
    for axis, (name, part) in zip(figure.axes, report.items(), strict=True):
        runs = part["runs"]
        fitted, scoring = fit(runs), runs[0]["scoring"]
        some = sorted((rate, ratio_interval(each)) for rate, each in ratios(runs, "flops").items())
        ends = np.array([[found.mean - found.low, found.high - found.mean] for _, found in some]).T
        dots = {"fmt": "o", "color": COLOURS[1], "capsize": 3}
        means = [found.mean for _, found in some]
        axis.errorbar([rate for rate, _ in some], means, ends, label="mean, 95 % interval", **dots)
        axis.plot(rates, model(rates, scoring, fitted), color=COLOURS[0], label="fitted cost")
        best = optimum(scoring, fitted)
        point = {"color": COLOURS[0], "markersize": 8, "label": "its minimum"}
        axis.plot(best, model(best, scoring, fitted), "v", **point)
        axis.axhline(1, color=COLOURS[2], linewidth=1, linestyle=":", label="dense training")
        axis.set(xlabel="keep fraction k", title=f"{name}: least at k = {best:.2f}")
        axis.set(xlim=(0, 1), ylim=(0, None))
    figure.axes[0].set_ylabel("FLOPs to reach the goal / dense")
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4)
    return figure


def main() -> None:
    """Measure what the file lacks, or draw."""
    asked = bench.options(main.__doc__, RESULTS, tasks=[*GOALS], seeds=5, plot=False)
    if asked.plot:
        write_atomic(PICTURE, plot(read_json(asked.out)).png())
        return
    for name, seed in itertools.product(asked.tasks, range(asked.seeds)):
        for rate in (None, *RATES):
            report = read_json(asked.out)
            runs = report.get(name, {"runs": []})["runs"]
            if any((run["rate"], run["seed"]) == (rate, seed) for run in runs):
                continue
            with bench.one_thread():
                run = reach(name, rate, seed)
            print(run, flush=True)
            write_json(asked.out, {**report, name: {"runs": [*runs, run], "stamp": stamp()}})


if __name__ == "__main__":
    main()
