"""How often verdicts are wrong: `python -m tests.benchmarks.calibration` writes calibration.json.

Runs with known effects are simulated row by row and judged. A run is right on a test row if the sum
of the method's level and of normal effects of the row, of row and method, of the run's seed, and
of row and run is positive. Their sizes give differences whose variances over rows (0.005 common to
all seeds, 0.045 not) are those of small networks on Fashion-MNIST, trained densely, on a half, and
on rows with a high loss. Dense training is right on 86 % of all possible rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy import optimize, stats

from astkit.comparison.statistics import DENSE, Entry
from astkit.comparison.verdict import SMALLEST_GAIN, Verdict, judge
from astkit.files import write_json
from astkit.rng import derive
from astkit.stamp import describe, stamp
from tests.benchmarks import bench

RESULTS = bench.HERE / "calibration.json"
SEEDS, ROWS, MOST_SEEDS = (3, 5, 10), (300, 2000, 10_000), 40
ROW, ROW_METHOD, ROW_RUN = 1.0, 0.09, 0.18  # standard deviations of the effects
QUANTILES = (np.arange(2000) + 0.5) / 2000
SHAPES = {  # effects of seeds by their quantiles: about 0.3, 0.5 and, in one run of ten, -3 points
    "normal": 0.015 * stats.norm.ppf(QUANTILES),
    "exponential": 0.025 * (stats.expon.ppf(QUANTILES) - 1),
    "one bad run in ten": np.where(QUANTILES < 0.1, -0.14, 0.0),
}
NOTHING, EDGE, MIXED = (0.0,) * 3, (SMALLEST_GAIN,) * 3, (0.0, SMALLEST_GAIN, 0.02)


def level(accuracy: float, shape: str) -> float:
    """The level of a method that is right on this share of all rows, over all seeds."""
    spread = math.hypot(ROW, ROW_METHOD, ROW_RUN)

    def excess(level: float) -> float:
        return float(stats.norm.cdf((level + SHAPES[shape]) / spread).mean() - accuracy)

    return float(optimize.brentq(excess, -9, 9))


class World:
    """Runs of dense training and of policies with the given effects, on one draw of test rows."""

    def __init__(self, effects: Sequence[float], shape: str, rows: int, random: Any) -> None:
        self.random, self.rows = random, rows
        self.methods = {DENSE: (level(0.86, "normal"), "normal")}
        for place, effect in enumerate(effects):
            self.methods[f"policy {place}"] = level(0.86 + effect, shape), shape
        self.again()

    def again(self) -> None:
        """Forget all runs and draw other test rows."""
        self.results: dict[tuple[str, int], torch.Tensor] = {}
        self.entries: list[dict[str, Any]] = []
        common = ROW * self._normal()
        self.of_rows = {name: common + ROW_METHOD * self._normal() for name in self.methods}

    def _normal(self) -> np.ndarray:
        return self.random.standard_normal(self.rows, dtype=np.float32)

    def train(self, first: int, seeds: int) -> list[Verdict]:
        """Verdicts with runs of all methods with seeds from ``first`` to ``seeds`` - 1 added."""
        for seed, (name, (level, shape)) in product(range(first, seeds), self.methods.items()):
            of_seed = SHAPES[shape][self.random.integers(len(QUANTILES))]
            latent = self.of_rows[name] + ROW_RUN * self._normal()
            right = torch.from_numpy(latent > -np.float32(level + of_seed)).float()
            self.results[name, seed] = right
            entry = {"policy": name, "seed": seed, "value": float(right.double().mean())}
            self.entries.append({**entry, "flops": 1.0, "seconds": None, "rate": 1.0})
        return judge(self.entries, rows=self.test_rows)

    def test_rows(self, entry: Entry) -> torch.Tensor:
        """Results of a run on the test rows."""
        return self.results[entry["policy"], entry["seed"]]


def cell(effects: Sequence[float], shape: str, n: int, rows: int, trials: int) -> dict[str, Any]:
    """Verdicts on ``trials`` comparisons of policies with these ``effects``, each on other rows.

    ``wrong``: share of comparisons with an outcome that the effects contradict: of which
    ``wrong_sign`` a sign ("better" and "worse" at an effect of 0 included), ``wrong_none`` a
    "no gain" at a gain of `SMALLEST_GAIN` or more. ``seeds_only``: ``wrong`` if the test rows are
    not regarded. ``covered``: share of intervals that hold their effect.
    ``decided``: share of outcomes other than "cannot tell yet".
    With one policy, ``once_more``: ``wrong`` if the suggested seeds, up to `MOST_SEEDS` in all,
    are added once to a verdict that cannot tell.
    """
    random = np.random.default_rng(derive(0, "calibration", *map(str, effects), shape, n, rows))
    world, found = World(effects, shape, rows, random), defaultdict(list)
    for _ in range(trials):
        world.again()
        verdicts = world.train(0, n)
        signs, nones = wrong(verdicts, effects)
        found["wrong"].append(signs or nones)
        found["wrong_sign"].append(signs)
        found["wrong_none"].append(nones)
        found["seeds_only"].append(any(wrong(judge(world.entries), effects)))
        for verdict, effect in zip(verdicts, effects, strict=True):
            _, low, high, _ = verdict.difference
            found["covered"].append(low <= effect <= high)
            found["decided"].append(verdict.outcome != "cannot tell yet")
        if len(effects) == 1:
            needed = verdicts[0].needed
            if verdicts[0].outcome == "cannot tell yet" and math.isfinite(needed or math.inf):
                verdicts = world.train(n, int(min(max(needed, n + 1), MOST_SEEDS)))
            found["once_more"].append(any(wrong(verdicts, effects)))
    shares = {name: round(fmean(marks), 4) for name, marks in found.items()}
    return {"effects": effects, "shape": shape, "n": n, "rows": rows, "trials": trials, **shares}


def wrong(verdicts: Sequence[Verdict], effects: Sequence[float]) -> tuple[bool, bool]:
    """Whether any outcome states a wrong sign, and whether any "no gain" is wrong."""
    signs = {-1: "worse", 0: "", 1: "better"}
    pairs = list(zip((each.outcome for each in verdicts), effects, strict=True))
    sign = any(o in ("better", "worse") and o != signs[int(np.sign(e))] for o, e in pairs)
    return sign, any(o == "no gain" and e >= SMALLEST_GAIN for o, e in pairs)


def main() -> None:
    """Simulate all cells and write them, with the command and the environment."""
    asked = bench.options(__doc__, RESULTS, trials=2000)
    tables = list(product((NOTHING, EDGE, MIXED), ["normal"], SEEDS, ROWS))
    tables += product((NOTHING,), list(SHAPES)[1:], SEEDS, ROWS)
    tables += product((NOTHING[:1], EDGE[:1]), SHAPES, SEEDS, ROWS[:2])
    cells = []
    for table in tables:
        cells.append(cell(*table, trials=asked.trials))
        print(cells[-1], flush=True)
    command = f"python -m tests.benchmarks.calibration --trials {asked.trials}"
    report = {"command": command, "stamp": stamp(), "cells": cells}
    write_json(asked.out, report)
    print(describe(report["stamp"]))


if __name__ == "__main__":
    main()
