"""How often verdicts are wrong: `python -m benchmarks.calibration` writes calibration.json.

Runs with known effects are simulated row by row and judged. A run is right on a test row if the sum
of the method's level and of normal effects of the row, of row and method, of the run's seed, and
of row and run is positive. Their sizes give differences whose variances over rows (0.005 common to
all seeds, 0.045 not) are those of small networks on Fashion-MNIST, trained densely, on a half, and
on rows with a high loss. Dense training is right on 86 % of all possible rows.

Rows that depend on each other are simulated in three ways, with methods that are equally good and
data that do not shift: test rows in groups, judged by the root mean squared error, which is no mean
over rows; test rows that follow each other in time; and windows of a stationary recording with
classes, of which the last part is the target of `aim`. Tables of independent rows do not shift
either: how often does `aim` not train on all rows alike? Last, fresh data are drawn, and `aim` is
trained by the forecast for each: how often does a verdict hold the difference that many seeds show?
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy import optimize, signal, stats
from torch.utils.data import TensorDataset

from astkit import TrainConfig, Trainer
from astkit.aim.forecast import forecast_of, foretell
from astkit.aim.sides import sides_of
from astkit.comparison.statistics import DENSE, Entry, estimate
from astkit.comparison.units import jackknife, parts_of_groups, parts_of_rows
from astkit.comparison.verdict import SMALLEST_GAIN, Verdict, judge
from astkit.datasets.dependence import FEWEST
from astkit.files import read_json, write_json
from astkit.rng import derive
from astkit.stamp import describe, stamp
from astkit.trainers.evaluation import wilson_interval
from benchmarks import bench

RESULTS = bench.HERE / "calibration.json"
SEEDS, ROWS, MOST_SEEDS = (3, 5, 10), (300, 2000, 10_000), 40
ROW, ROW_METHOD, ROW_RUN = 1.0, 0.09, 0.18  # standard deviations of the effects
QUANTILES = (np.arange(2000) + 0.5) / 2000
SHAPES = {  # effects of seeds by their quantiles: about 0.3, 0.5 and, in one run of ten, -3 points
    "normal": 0.015 * stats.norm.ppf(QUANTILES),
    "exponential": 0.025 * (stats.expon.ppf(QUANTILES) - 1),
    "one bad run in ten": np.where(QUANTILES < 0.1, -0.14, 0.0),
}
GROUPED = list(product((30, 60, 200), ("even", "uneven"), (0.1, 0.5, 1.0)))
"""Groups, their sizes, and the share of their common error in the variance."""
FOLLOWING = [
    (kind, rows, memory)
    for kind in ("squared error", "accuracy", "rmse")
    for rows, memory in (
        (100, 0.0),
        (500, 0.0),
        (500, 0.1),
        (500, 0.2),
        (500, 0.3),
        (100, 0.5),
        (500, 0.5),
        (1000, 0.9),
        (5000, 0.98),
    )
]
"""What is measured, test rows, and the memory of a first-order autoregression of errors."""
RECORDED = [
    (2500, 500, 0.0, 1.0),
    (1000, 300, 0.5, 0.3),
    (4000, 1000, 0.8, 0.1),
    (2500, 500, 0.97, 0.02),
]
"""Training rows, target rows, memory of inputs, and rate at which states change."""
NULLS = [(500, 120, "numbers"), (500, 120, "classes")]
"""Training rows, target rows and labels of tables without a shift."""
FRESH = [(600, 200, 300)]
"""Old rows, validation rows and test rows of data of which three quarters follow another law."""
OTHERS, MANY = 20, 5000  # seeds and test rows that give the difference of which verdicts tell
SEEDS_EACH, SIZE = 5, 20  # runs of a method, rows of a group on average
WINDOW, CLASSES = 4, 4  # values in a window of a recording, states
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


# --- rows that depend on each other ---


def grouped(groups: int, sizes: str, share: float, trials: int) -> dict[str, Any]:
    """Intervals of the difference of two root mean squared errors that are equal but for chance.

    ``share``: of the variance of a method's errors that rows of a group have in common; half of the
    rest is common to both methods. ``covered``: share of the intervals that hold 0.
    """
    random = np.random.default_rng(derive(0, "groups", groups, sizes, str(share)))
    covered = []
    for _ in range(trials):
        counts = np.full(groups, SIZE)
        if sizes == "uneven":
            counts = random.geometric(1 / SIZE, groups)
        own = np.repeat(np.arange(groups), counts)
        common = random.normal(size=len(own))
        of_method = []
        for _ in range(2):
            alone = math.sqrt(0.5) * (common + random.normal(size=len(own)))
            together = random.normal(size=groups)[own]
            of_method.append(math.sqrt(share) * together + math.sqrt(1 - share) * alone)
        parts = parts_of_groups(torch.from_numpy(own))
        values, pseudo = zip(
            *(roots(runs(each, 0.1, random), parts) for each in of_method), strict=True
        )
        gap = estimate((values[1] - values[0]).tolist(), pseudo[1] - pseudo[0], grouped=True)
        _, low, high, _ = gap.interval()
        covered.append(low <= 0 <= high)
    cell = {"groups": groups, "sizes": sizes, "share": share}
    return {**cell, "covered": fmean(covered), **counted(covered)}


def runs(errors: np.ndarray, spread: float, random: Any) -> np.ndarray:
    """Errors ``[SEEDS_EACH, rows]`` of runs that differ by chance from ``errors [rows]``."""
    noise: np.ndarray = random.normal(size=(SEEDS_EACH, len(errors)))
    return errors + spread * noise


def roots(errors: np.ndarray, parts: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Root mean squared errors of runs with ``errors [S, rows]``, and pseudo-values ``[S, P]``."""
    pseudo = []
    for squares in torch.from_numpy(errors**2):
        pseudo.append(jackknife(lambda rows, of=squares: float(of[rows].mean().sqrt()), parts))
    return np.sqrt((errors**2).mean(1)), torch.stack(pseudo).numpy()


def following(kind: str, rows: int, memory: float, trials: int) -> dict[str, Any]:
    """Verdicts on two equally good methods whose errors on ``rows`` test rows follow each other.

    ``covered``: share of the intervals that hold 0; ``wrong``: share of the outcomes that are
    "better" or "worse". ``worth``: independent rows that the rows are worth, from the variance of
    the means of all trials; ``said``: the median of what verdicts say; ``told``: share of the
    verdicts whose rows are said to be worth enough.
    """
    random = np.random.default_rng(derive(0, "following", kind, rows, str(memory)))
    found = defaultdict[str, list[float]](list)
    for _ in range(trials):
        methods = [runs(each, 0.3, random) for each in series(2, rows, memory, random)]
        results = [as_rows(kind, errors) for errors in methods]
        verdict = judged(results)
        _, low, high, _ = verdict.difference
        found["covered"].append(low <= 0 <= high)
        found["wrong"].append(verdict.better is not None)
        found["said"].append(verdict.worth)
        found["told"].append(verdict.worth >= FEWEST)
        gap = (results[1] - results[0]).mean(0)
        found["means"].append(gap.mean())
        found["spreads"].append(gap.var(ddof=1))
    worth = fmean(found["spreads"]) / float(np.var(found["means"]))
    shares = {name: round(fmean(found[name]), 4) for name in ("covered", "wrong", "told")}
    cell = {"kind": kind, "rows": rows, "memory": memory, "worth": round(worth)}
    said = {"said": round(float(np.median(found["said"])))}
    return {**cell, **said, **shares, **counted(found["covered"])}


def series(count: int, rows: int, memory: float, random: Any) -> np.ndarray:
    """First-order autoregressions of variance 1, ``[count, rows]``."""
    noise = random.normal(size=(count, rows + 500)) * math.sqrt(1 - memory**2)
    values: np.ndarray = signal.lfilter([1], [1, -memory], noise, axis=1)[:, 500:]
    return values


def as_rows(kind: str, errors: np.ndarray) -> np.ndarray:
    """What a run has on its test rows, ``[S, columns]``, for its ``errors [S, rows]``."""
    if kind == "rmse":
        return roots(errors, parts_of_rows(errors.shape[1]))[1]
    return errors**2 if kind == "squared error" else (errors < 1).astype(float)


def judged(results: Sequence[np.ndarray]) -> Verdict:
    """The verdict on a policy, from the ``[S, columns]`` of dense training and of it."""
    named = dict(zip((DENSE, "policy"), results, strict=True))
    plain = {"flops": 1.0, "seconds": None, "rate": 1.0}
    entries = [
        {"policy": name, "seed": seed, "value": float(columns.mean()), **plain}
        for name, rows in named.items()
        for seed, columns in enumerate(rows)
    ]
    of_rows = lambda entry: torch.from_numpy(named[entry["policy"]][entry["seed"]])  # noqa: E731
    return judge(entries, "error", False, rows=of_rows)[0]


def recorded(train: int, target: int, memory: float, rate: float, trials: int) -> dict[str, Any]:
    """Forecasts of `aim` for a recording without a shift, in windows whose class is its state.

    ``alarms``: share of those in which a test finds a difference. ``said``: the median of how many
    rows the target is said to be worth; ``told``: share of those that it is worth enough.
    """
    random = np.random.default_rng(derive(0, "recorded", train, target, str(memory), str(rate)))
    alarms, worth, rows = [], [], train + target
    for trial in range(trials):
        state = random.integers(CLASSES, size=1 + rows)[np.cumsum(random.random(rows) < rate)]
        values = series(3, rows + WINDOW - 1, memory, random)
        windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW, axis=1)
        x, y = torch.tensor(windows.transpose(1, 2, 0)).float(), torch.from_numpy(state)
        x[:, :, 0] += 1.5 * y[:, None]
        parts = [TensorDataset(x[part], y[part]) for part in (slice(train), slice(train, None))]
        sides = sides_of(*parts, seed=trial)
        alarms.append(bool(foretell(sides, train_on_target=False).lines))
        worth.append(sides.worth)
    cell = {"train": train, "target": target, "memory": memory, "rate": rate}
    said = {"said": round(float(np.median(worth))), "told": fmean(w >= FEWEST for w in worth)}
    return {**cell, **said, "alarms": fmean(alarms), **counted(alarms)}


def alike(train: int, target: int, labels: str, trials: int) -> dict[str, Any]:
    """Answers of `aim` for tables of independent rows of one law.

    ``alarms``: share of those in which a test finds a difference; ``drawn``: not all rows alike.
    """
    random = np.random.default_rng(derive(0, "alike", train, target, labels))
    alarms, drawn = [], []
    for trial in range(trials):
        x = torch.from_numpy(random.normal(size=(train + target, 4))).float()
        y = x.sum(1) + torch.from_numpy(random.normal(size=len(x))).float()
        y = (y > 0).long() if labels == "classes" else y[:, None]
        parts = [TensorDataset(x[part], y[part]) for part in (slice(train), slice(train, None))]
        found = foretell(sides_of(*parts, seed=trial), train_on_target=False)
        alarms.append(bool(found.lines))
        drawn.append(found.weights is not None)
    cell = {"train": train, "target": target, "labels": labels}
    shares = {"alarms": fmean(alarms), "drawn": fmean(drawn)}
    return {**cell, **shares, **counted(alarms)}


def fresh(old: int, target: int, test: int, trials: int) -> dict[str, Any]:
    """Verdicts of `aim` over dense training on fresh draws of the data, a forecast each.

    Linear models of four columns; validation rows follow the law of a quarter of the old rows.
    ``covered``: share of the intervals, over seeds and test rows, that hold the difference that
    `OTHERS` seeds and `MANY` test rows show. ``drawn``: share in which rows were weighted.
    """
    covered, drawn = [], []
    for trial in range(trials):
        random = torch.Generator().manual_seed(derive(0, "fresh", old, target, test, trial))
        train = drifted(old, 0.75, random)
        held, tested, many = (drifted(rows, 0.0, random) for rows in (target, test, MANY))
        results: list[Any] = [[], []]
        shown: list[list[float]] = [[], []]
        for place, policy in enumerate((None, "aim")):
            for seed in range(SEEDS_EACH + OTHERS):
                model = trained(train, held, policy, seed)
                if seed < SEEDS_EACH:
                    results[place].append(errors_of(model, tested).numpy())
                else:
                    shown[place].append(float(errors_of(model, many).mean()))
        _, low, high, _ = judged([np.stack(each) for each in results]).difference
        covered.append(low <= fmean(shown[1]) - fmean(shown[0]) <= high)
        drawn.append(forecast_of(train, held).weights is not None)
    cell = {"train": old, "target": target, "test": test}
    return {**cell, "covered": fmean(covered), "drawn": fmean(drawn), **counted(covered)}


def drifted(rows: int, other: float, random: torch.Generator) -> TensorDataset:
    """Rows of which a share follows an ``other`` law, with other inputs."""
    turned = torch.rand(rows, generator=random) < other
    x = torch.randn(rows, 4, generator=random) + 0.5 * turned[:, None]
    y = x.sum(1) * (1 - 2 * turned.float()) + torch.randn(rows, generator=random)
    return TensorDataset(x, y[:, None])


def trained(
    train: TensorDataset, held: TensorDataset, policy: str | None, seed: int
) -> torch.nn.Module:
    """A linear model after four epochs."""
    torch.manual_seed(seed)
    config = TrainConfig(lr=0.03, batch_size=50, seed=seed)
    options: dict[str, Any] = {"criterion": squared, "epochs": 4, "device": "cpu"}
    model = torch.nn.Linear(4, 1)
    Trainer(model, train, held, policy=policy, config=config, **options).run(progress=False)
    return model


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Squared error of each row."""
    return (outputs - targets).square().squeeze(1)


@torch.no_grad()
def errors_of(model: torch.nn.Module, data: TensorDataset) -> torch.Tensor:
    """Squared errors ``[rows]``."""
    return squared(model(data.tensors[0]), data.tensors[1])


def counted(marks: Sequence[float]) -> dict[str, Any]:
    """Number of the trials, and the ends of Wilson's interval of the share of ``marks``."""
    low, high = wilson_interval(int(sum(marks)), len(marks))
    return {"trials": len(marks), "low": round(low, 4), "high": round(high, 4)}


def main() -> None:
    """Simulate the parts of ``--only`` and write them, with the command and the environment.

    Parts that are not simulated stay in the file as they are.
    """
    tables = list(product((NOTHING, EDGE, MIXED), ["normal"], SEEDS, ROWS))
    tables += product((NOTHING,), list(SHAPES)[1:], SEEDS, ROWS)
    tables += product((NOTHING[:1], EDGE[:1]), SHAPES, SEEDS, ROWS[:2])
    parts: dict[str, tuple[Callable[..., dict[str, Any]], list[Any], int]] = {
        "seeds": (cell, tables, 2000),
        "groups": (grouped, GROUPED, 1000),
        "series": (following, FOLLOWING, 1000),
        "recordings": (recorded, RECORDED, 1000),
        "tables": (alike, NULLS, 1000),
        "fresh": (fresh, FRESH, 200),
    }
    asked = bench.options(__doc__, RESULTS, trials=int, only=list(parts))
    report = read_json(asked.out)
    for name in asked.only:
        simulate, settings, trials = parts[name]
        trials, cells = asked.trials or trials, []
        for setting in settings:
            cells.append(simulate(*setting, trials=trials))
            print(cells[-1], flush=True)
        command = f"python -m benchmarks.calibration --only {name} --trials {trials}"
        report[name] = {"command": command, "stamp": stamp(), "cells": cells}
        write_json(asked.out, report)
        print(describe(report[name]["stamp"]))


if __name__ == "__main__":
    main()
