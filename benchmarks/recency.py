"""Ways to prefer recent rows on natural shifts by time, each beside training on both alike.

``python -m benchmarks.recency`` writes recency.json: for each shift by time, on later test rows,

- *age*: old rows weighted by 0.25 + 0.75 r^3, r from 0 to 1 the rank of their date, for the
  network of `Table` and for boosted trees; *rank*: trees, by r alone;
- *late*: network, the target's rows are half of the draws in the last 30 % of the steps;
- *slope*: trees, predictions p become a + b p, of the logit for classes, fitted to out-of-fold
  predictions of the target's rows.

Networks are trained on the shifts of `natural_new` that have a date; the rules were fixed on those
of `natural_shifts` before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline
from torch import Tensor

from astkit import Policy, RunInfo, Selection, Table, rng
from astkit.aim.decisions import BOTH
from astkit.aim.fit import fitted
from astkit.comparison.statistics import mean_interval
from astkit.files import read_json
from astkit.gating.policies.draws import draw_systematic
from benchmarks import bench
from benchmarks.natural import resume
from benchmarks.natural_new import EXPECTED, NEW
from benchmarks.natural_shifts import SHIFTS, Shift, split
from benchmarks.natural_training import compared

RESULTS = bench.HERE / "recency.json"
SPLITS, FOLDS, LATE = 3, 5, 0.7
Entry = dict[str, Any]


class Aged(Policy):
    """Draws old rows by ``weights [N]``, and those of the target by 1."""

    draws_target = True

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def plan(self, run: RunInfo) -> Selection | None:
        random = rng.generator(run.seed, "aged", run.epoch)
        known = torch.ones(run.samples, dtype=torch.float64)
        known[: len(run.rows)] = self.weights[run.rows]
        return Selection(draw_systematic(known, run.samples, random))


class Late(Policy):
    """All rows alike; in the last 30 % of the steps half of the draws are of the target."""

    draws_target = True

    def plan(self, run: RunInfo) -> Selection | None:
        if run.progress < LATE:
            return None
        random = rng.generator(run.seed, "late", run.epoch)
        half = len(run.rows) // 2
        old = run.rows[torch.randperm(len(run.rows), generator=random)[:half]]
        new = torch.randint(run.draws, run.samples, (half,), generator=random)
        rows = torch.cat([old, new])
        return Selection(rows[torch.randperm(len(rows), generator=random)])


def measured(shift: Shift, number: int, later: bool) -> Entry:
    """Gains over both on the later rows of one split, in percent of the RMSE or in points."""
    parts = split(shift, number, later)
    place = parts.train[shift.date].rank(method="dense").to_numpy() - 1
    rank = torch.from_numpy(place / max(1.0, place.max()))
    age = 0.25 + 0.75 * rank**3
    task = "classes" if shift.classes else "regression"
    old = Table(parts.train, shift.label, task=task)
    assert len(old) == len(parts.train), "rows that reading leaves out have no rank"
    target, test = (Table(each, like=old) for each in (parts.target, parts.test))
    gains = {f"trees, {name}": gain for name, gain in of_trees(old, target, test, age, rank)}
    if shift.name in EXPECTED:
        gains |= of_network(shift, number, age)
    told = ", ".join(f"{name} {gain:+.2f}" for name, gain in gains.items())
    return {"shift": shift.name, "split": number, "later": later, "gains": gains, "sentence": told}


def of_network(shift: Shift, number: int, age: Tensor) -> dict[str, float]:
    """Gains of the network, as `natural_training` trains it."""
    report = compared(shift, number, True, [Aged(age), Late()])
    values = {each["policy"]: each["value"] for each in report.entries}
    higher = report.metric == "accuracy"
    both = values["both"]
    return {
        f"network, {name}": 100 * (values[label] - both if higher else 1 - values[label] / both)
        for name, label in (("age", "Aged(Tensor)"), ("late", "Late"))
    }


def of_trees(
    old: Table, target: Table, test: Table, age: Tensor, rank: Tensor
) -> Iterator[tuple[str, float]]:
    """Gains of boosted trees with their names."""
    alike = torch.ones(len(old) + len(target), dtype=torch.float64)
    both = fitted([old, target], BOTH, alike)
    classes = old.task == "classes"
    for name, weights in (("age", age), ("rank", rank.clamp(min=0.01))):
        own = alike.clone()
        own[: len(old)] = weights
        trees = fitted([old, target], BOTH, own)
        yield name, gain(test, predicted(both, test, classes), predicted(trees, test, classes))
    folds = torch.arange(len(target)) * FOLDS // len(target)  # stretches of time
    outside = np.zeros(len(target))
    for fold in range(FOLDS):
        rest, own = ((folds == fold) == each for each in (False, True))
        part = target.take(rest.nonzero()[:, 0])
        trees = fitted([old, part], BOTH, alike[: len(old) + len(part)])
        outside[own.numpy()] = predicted(trees, target.take(own.nonzero()[:, 0]), classes)
    line = (LogisticRegression(C=1e6) if classes else LinearRegression()).fit(
        outside[:, None], target.values.numpy()
    )
    if classes:
        corrected = line.decision_function(predicted(both, test, True)[:, None])
    else:
        corrected = line.predict(predicted(both, test, False)[:, None])
    yield "slope", gain(test, predicted(both, test, classes), corrected)


def predicted(trees: Pipeline, rows: Table, classes: bool) -> np.ndarray:
    """Numbers, or logits of the second of two classes."""
    if not classes:
        return np.asarray(trees.predict(rows), np.float64)
    chance = np.clip(trees.predict_proba(rows)[:, 1], 1e-6, 1 - 1e-6)
    return np.log(chance / (1 - chance))


def gain(test: Table, both: np.ndarray, other: np.ndarray) -> float:
    """Over both, of predictions or logits of the test rows."""
    values = test.values.numpy()
    if test.task == "classes":
        return 100 * float(((other > 0) == values).mean() - ((both > 0) == values).mean())
    rmse = [float(((each - values) ** 2).mean() ** 0.5) for each in (other, both)]
    return 100 * (1 - rmse[0] / rmse[1])


def plan() -> Iterator[tuple[Shift, int, bool]]:
    """Shifts whose dates are a column, each once before any twice; the new ones first."""
    shifts = [make() for make in (*NEW, *SHIFTS)]
    for number in range(SPLITS):
        for shift in shifts:
            if shift.date is not None:
                yield shift, number, True


def table(entries: Sequence[Entry]) -> pd.DataFrame:
    """Mean gain of each way over both by shift, and over new shifts and those seen before."""
    flat = [{"shift": each["shift"], **each["gains"]} for each in entries]
    means = pd.DataFrame(flat).groupby("shift", sort=False).mean()
    for name, own in (("new shifts", True), ("seen before", False)):
        rows = means[[(shift in EXPECTED) == own for shift in means.index]]
        for way in means.columns:
            found = mean_interval(rows[way].dropna())
            if not found.n:
                continue
            said = f"{found.mean:+.1f} [{found.low:.1f}, {found.high:.1f}] n={found.n}"
            print(f"{name}, {way}: {said}")
    return means.round(2)


def main() -> None:
    """Measure the splits that have no entry."""
    torch.set_num_threads(1)
    resume(RESULTS, plan(), measured)
    print(table(read_json(RESULTS)["entries"]).to_string())


if __name__ == "__main__":
    main()
