"""Compare the joules of several arms: interleaved windows, ratios within a pair, intervals.

A hot GPU draws more than a cold one. So a pair holds one window of every arm, in an order of its
own, the first pairs are not kept, and a ratio is taken within its pair.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from astkit.profiling.benchmark import Ratio, bootstrap_interval
from astkit.profiling.energy.meter import STEPS, EnergyMeter, open_counter
from astkit.profiling.energy.reading import EnergyCounter, EnergyReading, UnavailableError
from astkit.rng import permutation

PAIRS = 5
MIN_WINDOW_S = 10.0
MAX_SPREAD = 0.03
"""Standard deviation over mean above which an arm is flagged."""


@dataclass(frozen=True)
class EnergyComparison:
    """One reading an arm and pair; the i-th readings of all arms share a pair.

    ``calls`` says how often the arm ran in each window; every joule below is one call's. Where
    anything is missing, ``reason`` says what, and there is neither a ratio nor a table.
    """

    readings: Mapping[str, tuple[EnergyReading, ...]]
    calls: Mapping[str, tuple[int, ...]]
    baseline: str
    seed: int = 0
    missing: str | None = field(default=None, repr=False)

    @property
    def reason(self) -> str | None:
        """Why there are no joules; ``None`` where all were measured."""
        every = [reading for readings in self.readings.values() for reading in readings]
        return self.missing or next((r.reason for r in every if r.joules is None), None)

    def joules(self, name: str) -> tuple[float, ...]:
        """Joules a call of the arm, one number a pair.

        Raises ``ValueError`` for an arm that was not run, or with the reason if there are none.
        """
        _known(name, self.readings)
        if self.reason is not None:
            raise ValueError(f"joules not measured: {self.reason}")
        both = zip(self.readings[name], self.calls[name], strict=True)
        return tuple((reading.joules or 0.0) / calls for reading, calls in both)

    def ratio(self, a: str, b: str) -> Ratio:
        """Joules of ``a`` over joules of ``b``, pair by pair: above 1 means ``b`` spends less.

        Raises as ``joules`` does.
        """
        ratios = np.asarray(self.joules(a)) / np.asarray(self.joules(b))
        low, high = bootstrap_interval(ratios.tolist(), seed=self.seed)
        return Ratio(float(np.median(ratios)), low, high, len(ratios))

    def spread(self, name: str) -> float:
        """Standard deviation (n - 1) over mean of the arm's joules. Raises as ``joules`` does."""
        joules = np.asarray(self.joules(name))
        return float(joules.std(ddof=1) / joules.mean())

    def flags(self) -> list[str]:
        """One sentence for each arm whose readings spread by more than 3 %."""
        if self.reason is not None:
            return []
        spreads = {name: self.spread(name) for name in self.readings}
        return [
            f"{name}: readings spread by {spread:.1%} (more than {MAX_SPREAD:.0%}): let the machine"
            " settle, or measure more pairs"
            for name, spread in spreads.items()
            if spread > MAX_SPREAD
        ]

    def table(self) -> list[dict[str, object]]:
        """One row an arm: median joules a call, and its joules over the baseline's."""
        return [] if self.reason is not None else [self._row(name) for name in self.readings]

    def to_json(self) -> str:
        """The raw readings, the table and the flags as one JSON object."""
        content = {
            "baseline": self.baseline,
            "seed": self.seed,
            "reason": self.reason,
            "readings": {
                name: [{**asdict(r), "calls": n} for r, n in zip(rs, self.calls[name], strict=True)]
                for name, rs in self.readings.items()
            },
            "table": self.table(),
            "flags": self.flags(),
        }
        return json.dumps(content, indent=1, allow_nan=False)

    def __str__(self) -> str:
        if self.reason is not None:
            return f"joules not measured: {self.reason}"
        lines = [
            f"{name}: {np.median(self.joules(name)):.4g} J a call"
            + ("" if name == self.baseline else f", {self.ratio(name, self.baseline)} of baseline")
            for name in self.readings
        ]
        pairs = len(self.readings[self.baseline])
        return "\n".join([*lines, f"baseline {self.baseline}, n = {pairs}", *self.flags()])

    def _row(self, name: str) -> dict[str, object]:
        ratio = self.ratio(name, self.baseline)
        return {
            "arm": name,
            "joules": float(np.median(self.joules(name))),
            "spread": self.spread(name),
            "of_baseline": ratio.median,
            "of_baseline_low": ratio.low,
            "of_baseline_high": ratio.high,
            "pairs": ratio.n,
        }


def compare_energy(
    arms: Mapping[str, Callable[[], object]],
    *,
    device: str | torch.device = "cpu",
    counter: EnergyCounter | None = None,
    pairs: int = PAIRS,
    min_window_s: float = MIN_WINDOW_S,
    warmup: int = 1,
    baseline: str | None = None,
    synchronize: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    seed: int = 0,
) -> EnergyComparison:
    """Run every arm once a pair, each pair in another random order, and read its joules.

    An arm is called until its window lasts ``min_window_s``, or 100 steps of the counter if that
    is more (10 s for a GPU). ``warmup`` pairs are run first and not kept. ``baseline`` is the first
    arm unless named. ``synchronize`` waits for the device before a window's edge. Where no counter
    can be read, no arm is run and the result says why.

    Raises ``ValueError`` for fewer than 2 arms, fewer than 5 pairs (too few for an interval), a
    negative warm-up, a window that is not above 0 or a baseline that is not an arm.
    """
    if len(arms) < 2:
        raise ValueError(f"A comparison needs at least 2 arms, got {len(arms)}.")
    if pairs < PAIRS:
        raise ValueError(f"An interval needs at least {PAIRS} pairs, got {pairs}.")
    if warmup < 0 or not min_window_s > 0:
        raise ValueError(
            f"warmup must be 0 or more pairs and min_window_s above 0, got {warmup} and"
            f" {min_window_s}."
        )
    baseline = next(iter(arms)) if baseline is None else baseline
    _known(baseline, arms)
    try:
        opened = counter or open_counter(torch.device(device))
    except UnavailableError as error:
        return EnergyComparison({}, {}, baseline, seed, str(error))
    readings: dict[str, list[EnergyReading]] = {name: [] for name in arms}
    calls: dict[str, list[int]] = {name: [] for name in arms}
    least = max(min_window_s, STEPS * opened.step_s)
    try:
        for number in range(-warmup, pairs):
            order = permutation(len(arms), seed, "energy order", number).tolist()
            for name in (list(arms)[i] for i in order):
                reading, count = _measure(arms[name], opened, least, clock, synchronize)
                if number >= 0:
                    readings[name].append(reading)
                    calls[name].append(count)
    finally:
        if counter is None:
            opened.close()
    return EnergyComparison(
        {name: tuple(values) for name, values in readings.items()},
        {name: tuple(values) for name, values in calls.items()},
        baseline,
        seed,
    )


def _measure(
    arm: Callable[[], object],
    counter: EnergyCounter,
    least: float,
    clock: Callable[[], float],
    synchronize: Callable[[], None] | None,
) -> tuple[EnergyReading, int]:
    meter, calls = EnergyMeter(counter=counter, clock=clock), 0
    if synchronize is not None:
        synchronize()
    while meter.reading().window_s < least:
        with meter.window():
            arm()
            if synchronize is not None:
                synchronize()
        calls += 1
    return meter.reading(min_window_s=least), calls


def _known(name: str, arms: Mapping[str, object]) -> None:
    if name not in arms:
        raise ValueError(f"Unknown arm {name!r}: choose one of {', '.join(map(repr, arms))}.")
