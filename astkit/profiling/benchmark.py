"""Seconds and joules of several arms, compared fairly: interleaved rounds, medians, intervals.

A machine changes speed while it is measured, and a hot GPU draws more than a cold one. So each
round runs every arm once, in an order of its own, and arms are compared within a round: what slows
a whole round cancels in its ratio.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch

from astkit.profiling.counters import EnergyCounter, UnavailableError, open_counter
from astkit.profiling.energy import STEPS, EnergyMeter, EnergyReading
from astkit.rng import derive, permutation

Arms = Mapping[str, Callable[[], object]]

LEVEL = 0.95
RESAMPLES = 2_000
PAIRS = 5
MIN_WINDOW_S = 10.0
MAX_SPREAD = 0.03
"""Standard deviation over mean of an arm's joules above which it is flagged."""


@dataclass(frozen=True)
class Ratio:
    """Median of ``n`` ratios, each taken within a round, with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.median:.2f}x [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Timings:
    """Seconds of each arm, one number a round; the i-th numbers of all arms share a round.

    ``baseline`` is the arm that ``table`` compares the others with.
    """

    seconds: Mapping[str, tuple[float, ...]]
    baseline: str

    def median(self, name: str) -> float:
        """Median seconds of the arm. Raises ``ValueError`` for an arm that was not run."""
        return float(np.median(self._of(name)))

    def ratio(self, a: str, b: str) -> Ratio:
        """Seconds of ``a`` over seconds of ``b``, round by round: above 1 means ``b`` is faster.

        Raises ``ValueError`` for an arm that was not run or when ``b`` took no measurable time.
        """
        over, under = np.asarray(self._of(a)), np.asarray(self._of(b))
        if not (under > 0).all():
            raise ValueError(f"arm {b!r} took no measurable time: let it do more work a call")
        ratios = over / under
        low, high = bootstrap_interval(ratios.tolist())
        return Ratio(float(np.median(ratios)), low, high, len(ratios))

    def table(self) -> list[dict[str, object]]:
        """One row an arm: median seconds, its interval, and how many times the baseline's speed.

        ``speedup`` is the baseline's seconds over the arm's, as ``ratio`` gives it.
        """
        rows: list[dict[str, object]] = []
        for name in self.seconds:
            low, high = bootstrap_interval(self._of(name))
            of_arm = {"seconds": self.median(name), "seconds_low": low, "seconds_high": high}
            ratio = self.ratio(self.baseline, name)
            rows.append({"arm": name, **of_arm, **_columns("speedup", ratio), "rounds": ratio.n})
        return rows

    def to_json(self) -> str:
        """The raw seconds and the table as one JSON object."""
        return json.dumps({**asdict(self), "table": self.table()}, indent=1, allow_nan=False)

    def _of(self, name: str) -> tuple[float, ...]:
        _known(name, self.seconds)
        return self.seconds[name]


def interleaved(
    arms: Arms,
    *,
    rounds: int = 15,
    warmup: int = 2,
    baseline: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] | None = None,
) -> Timings:
    """Run every arm once a round, each round in another random order, and time each run.

    The first ``warmup`` rounds are not kept. ``baseline`` is the first arm unless named.
    ``synchronize`` (``torch.cuda.synchronize``) is called before each reading of ``clock``
    (seconds), so that queued work is charged to the arm that queued it. Two calls use the same
    orders.

    Raises ``ValueError`` when there are no arms, fewer than 2 rounds, a negative warm-up or a
    baseline that is not an arm. What an arm raises passes through.
    """
    if not arms:
        raise ValueError("there are no arms to compare: pass at least one named function")
    if rounds < 2:
        raise ValueError(f"rounds is {rounds}, but an interval needs at least 2")
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}, but counts rounds: give 0 or more")
    baseline = next(iter(arms)) if baseline is None else baseline
    _known(baseline, arms)
    wait, names = synchronize or (lambda: None), list(arms)
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


def bootstrap_interval(
    values: Sequence[float], statistic: Literal["median", "mean"] = "median"
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median or mean of ``values``: (low, high).

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. With few
    values it is too narrow: 95 % covered 83 % for means of 5 normal values, 91 % of 15
    (medians: 94 % and 92 %).

    Raises ``ValueError`` for fewer than 2 values, a value that is not finite or an unknown
    statistic.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        raise ValueError(f"values are {list(values)}: an interval needs at least 2, all finite")
    if statistic not in ("median", "mean"):
        raise ValueError(f"unknown statistic {statistic!r}: choose 'median' or 'mean'")
    sample = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(derive(0, "bootstrap"))
    draws = sample[random.integers(len(sample), size=(RESAMPLES, len(sample)))]
    estimates = np.median(draws, axis=1) if statistic == "median" else draws.mean(axis=1)
    low, high = np.quantile(estimates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class EnergyComparison:
    """One reading an arm and pair; the i-th readings of all arms share a pair.

    ``calls`` says how often the arm ran in each window; every joule below is one call's. Where
    anything is missing, ``reason`` says what, and there is neither a ratio nor a table.
    """

    readings: Mapping[str, tuple[EnergyReading, ...]]
    calls: Mapping[str, tuple[int, ...]]
    baseline: str
    reason: str | None = None

    def joules(self, name: str) -> tuple[float, ...]:
        """Joules a call of the arm, one number a pair.

        Raises ``ValueError`` for an arm that was not run, or with the reason if there are none.
        """
        if self.reason is not None:
            raise ValueError(str(self))
        _known(name, self.readings)
        both = zip(self.readings[name], self.calls[name], strict=True)
        return tuple((reading.joules or math.nan) / calls for reading, calls in both)

    def ratio(self, a: str, b: str) -> Ratio:
        """Joules of ``a`` over joules of ``b``, pair by pair: above 1 means ``b`` spends less.

        Raises as ``joules`` does.
        """
        return Timings({a: self.joules(a), b: self.joules(b)}, b).ratio(a, b)

    def table(self) -> list[dict[str, Any]]:
        """One row an arm: median joules a call, and its joules over the baseline's.

        ``spread`` is the standard deviation (n - 1) of its joules over their mean.
        """
        rows: list[dict[str, Any]] = []
        for name in self.readings if self.reason is None else ():
            joules, ratio = np.asarray(self.joules(name)), self.ratio(name, self.baseline)
            spread = float(joules.std(ddof=1) / joules.mean())
            of_arm = {"arm": name, "joules": float(np.median(joules)), "spread": spread}
            rows.append({**of_arm, **_columns("of_baseline", ratio), "pairs": ratio.n})
        return rows

    def flags(self) -> list[str]:
        """One sentence for each arm whose readings spread by more than 3 %."""
        return [
            f"{row['arm']}: readings spread by {row['spread']:.1%} (more than {MAX_SPREAD:.0%}):"
            " let the machine settle, or measure more pairs"
            for row in self.table()
            if row["spread"] > MAX_SPREAD
        ]

    def to_json(self) -> str:
        """The raw readings, the table and the flags as one JSON object."""
        content = {**asdict(self), "table": self.table(), "flags": self.flags()}
        return json.dumps(content, indent=1, allow_nan=False)

    def __str__(self) -> str:
        if self.reason is not None:
            return f"joules not measured: {self.reason}"
        lines = [
            f"{row['arm']}: {row['joules']:.4g} J a call, {self.ratio(row['arm'], self.baseline)}"
            f" of {self.baseline}, n = {row['pairs']}"
            for row in self.table()
        ]
        return "\n".join([*lines, *self.flags()])


def compare_energy(
    arms: Arms,
    *,
    device: str | torch.device = "cpu",
    counter: EnergyCounter | None = None,
    pairs: int = PAIRS,
    min_window_s: float = MIN_WINDOW_S,
    synchronize: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> EnergyComparison:
    """Measure the joules of every arm once a pair, each pair in another random order.

    An arm is called until its window lasts ``min_window_s``, or 100 steps of the counter if that
    is more (10 s for a GPU). The first arm is the baseline, and one more pair is run first and not
    kept. ``synchronize`` waits for the device before a window's edge. Where no counter can be read,
    no arm is run and the result says why.

    Raises ``ValueError`` for fewer than 2 arms, fewer than 5 pairs (too few for an interval) or a
    window that is not above 0.
    """
    if len(arms) < 2:
        raise ValueError(f"arms are {list(arms)}, but a comparison needs at least 2")
    if pairs < PAIRS:
        raise ValueError(f"pairs is {pairs}, but an interval needs at least {PAIRS}")
    if not min_window_s > 0:
        raise ValueError(f"min_window_s is {min_window_s}: give seconds above 0")
    try:
        opened = counter or open_counter(torch.device(device))
    except UnavailableError as error:
        return EnergyComparison({}, {}, next(iter(arms)), str(error))
    found: dict[str, list[tuple[EnergyReading, int]]] = {name: [] for name in arms}
    least = max(min_window_s, STEPS * opened.step_s)
    wait = synchronize or (lambda: None)

    def window(name: str) -> Callable[[], None]:
        return lambda: found[name].append(_measure(arms[name], opened, least, clock, wait))

    try:
        timed = interleaved({name: window(name) for name in arms}, rounds=pairs, warmup=1)
    finally:
        if counter is None:
            opened.close()
    kept = {name: tuple(zip(*windows[1:], strict=True)) for name, windows in found.items()}
    readings, calls = ({name: both[i] for name, both in kept.items()} for i in (0, 1))
    missing = (r.reason for arm in readings.values() for r in arm if r.joules is None)
    return EnergyComparison(readings, calls, timed.baseline, next(missing, None))


def _measure(
    arm: Callable[[], object],
    counter: EnergyCounter,
    least: float,
    clock: Callable[[], float],
    wait: Callable[[], None],
) -> tuple[EnergyReading, int]:
    meter, calls = EnergyMeter(counter=counter, clock=clock), 0
    wait()
    while meter.reading().window_s < least:
        with meter.window():
            arm()
            wait()
        calls += 1
    return meter.reading(min_window_s=least), calls


def _columns(name: str, ratio: Ratio) -> dict[str, float]:
    return {name: ratio.median, f"{name}_low": ratio.low, f"{name}_high": ratio.high}


def _known(name: str, arms: Mapping[str, object]) -> None:
    if name not in arms:
        raise ValueError(f"unknown arm {name!r}: choose one of {', '.join(map(repr, arms))}")
