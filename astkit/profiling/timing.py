"""Comparison of the times of several functions: interleaved rounds, medians, intervals.

The speed of a machine varies over time. Therefore each round runs every function once, in random
order, and ratios are taken within a round: a slowdown of a whole round cancels in them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astkit.rng import derive, permutation

LEVEL = 0.95
RESAMPLES = 2_000


@dataclass(frozen=True)
class Ratio:
    """Median of ``n`` ratios, one per round, with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    n: int

    def text(self, spec: str) -> str:
        """The median and the interval as numbers of this format."""
        return f"{self.median:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return self.text(".2f").replace(" ", "x ", 1)


@dataclass(frozen=True)
class Timings:
    """Seconds of each arm (a named function), one value per round; ``baseline`` of ``table``."""

    seconds: Mapping[str, tuple[float, ...]]
    baseline: str

    def median(self, name: str) -> float:
        """Median seconds of the arm."""
        return float(np.median(self.seconds[name]))

    def ratio(self, a: str, b: str) -> Ratio:
        """Seconds of ``a`` over seconds of ``b``, round by round: above 1 means ``b`` is faster.

        Raises ``ValueError`` if the time of ``b`` is not measurable.
        """
        ratios = np.asarray(self.seconds[a]) / np.asarray(self.seconds[b])
        return Ratio(float(np.median(ratios)), *bootstrap_interval(ratios.tolist()), len(ratios))

    def table(self) -> list[dict[str, object]]:
        """One row per arm: median seconds, and the speed relative to the baseline (`ratio`)."""
        rows: list[dict[str, object]] = []
        for name in self.seconds:
            speed = self.ratio(self.baseline, name)
            row = {"arm": name, "seconds": self.median(name), "speedup": speed.median}
            ends = {"speedup_low": speed.low, "speedup_high": speed.high, "rounds": speed.n}
            rows.append({**row, **ends})
        return rows


def interleaved(
    arms: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    warmup: int = 2,
    baseline: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] | None = None,
) -> Timings:
    """Run and time every arm once per round, in a new random order each round.

    The first ``warmup`` rounds are discarded. ``baseline`` defaults to the first arm.
    ``synchronize`` (such as ``torch.cuda.synchronize``) is called before each reading of ``clock``
    (seconds), so that queued work is attributed to the arm that queued it. Orders are
    deterministic.
    """
    names, wait = list(arms), synchronize or (lambda: None)
    baseline = baseline or names[0]
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(-warmup, rounds):
        for place in permutation(len(names), 0, "benchmark order", number).tolist():
            wait()
            start = clock()
            arms[names[place]]()
            wait()
            if number >= 0:
                seconds[names[place]].append(clock() - start)
    return Timings({name: tuple(values) for name, values in seconds.items()}, baseline)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median of ``values``: (low, high).

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. Of 5 normal
    values it covered the median in 94 % of trials, of 15 in 92 %.

    Raises ``ValueError`` for fewer than 2 values, or non-finite ones.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        raise ValueError(f"values are {list(values)}: an interval needs at least 2, all finite")
    sample = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(derive(0, "bootstrap"))
    draws = sample[random.integers(len(sample), size=(RESAMPLES, len(sample)))]
    low, high = np.quantile(np.median(draws, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
