"""Means over seeds with confidence intervals, simultaneous intervals, and number of seeds needed.

Needs scipy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from astkit.profiling import bootstrap_interval
from astkit.runs.paired import known
from astkit.trainers.evaluator import wilson_interval

MANY = 20  # number of values from which the interval is a bootstrap instead of Student's
POWER = 0.8  # probability with which an effect is to be shown


class Interval(NamedTuple):
    """A mean of ``n`` values with its interval; ``low`` and ``high`` are NaN if undefined.

    They are undefined for fewer than two values, and for values that are all equal (to 1e-9 of the
    largest), since their spread is unknown.

    ``format(interval, spec)`` applies ``spec`` to each number; ``str`` shows percentage points.
    """

    mean: float
    low: float
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        spec = spec or "+.2%"
        if math.isnan(self.low):
            equal = ", all equal" if self.n > 1 else ""
            return f"{self.mean:{spec}}, n = {self.n}{equal}, so without an interval"
        return f"{self.text(spec)}, n = {self.n}"

    def text(self, spec: str, unit: str = "") -> str:
        """The mean with its ``unit``, and the interval if it is defined."""
        mean = f"{self.mean:{spec}}{unit}"
        return mean if math.isnan(self.low) else f"{mean} [{self.low:{spec}}, {self.high:{spec}}]"

    def verdict(self, above: str = "better", below: str = "worse") -> str:
        """``above`` or ``below`` if the whole interval is on that side of 0, else "undecided"."""
        return above if self.low > 0 else below if self.high < 0 else "undecided"

    def __str__(self) -> str:
        return format(self)


def mean_interval(values: Iterable[float | None]) -> Interval:
    """Mean of ``values`` with its 95 % interval; absent and non-finite values are left out.

    Student's t below `MANY` values, a percentile bootstrap otherwise: with 3 values, a 95 %
    bootstrap interval covers the true mean in only 74 % of cases.
    """
    found = known(values)
    if len(found) >= MANY and _spread(found):
        return Interval(fmean(found), *bootstrap_interval(found, "mean"), len(found))
    return student_interval(found)


def student_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of ``values`` with Student's interval; without values the mean is NaN.

    Source: "Student", "The probable error of a mean", Biometrika 6 (1908).
    """
    n, spread = len(values), _spread(values)
    if not spread:
        return Interval(fmean(values) if n else math.nan, math.nan, math.nan, n)
    mean, half = fmean(values), _quantile(n, 1 - confidence) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def _spread(values: Sequence[float]) -> float:
    """Standard deviation; 0 for fewer than two values, and for values equal but for rounding."""
    spread = stdev(values) if len(values) > 1 else 0.0
    return spread if spread > 1e-9 * max(map(abs, values), default=0.0) else 0.0


def ratio_interval(ratios: Sequence[float], confidence: float = 0.95) -> Interval:
    """Geometric mean of positive ``ratios`` with Student's interval of their logarithms.

    Unlike `student_interval` it contains no negative ratio. Source: Fleming and Wallace, "How not
    to lie with statistics", Communications of the ACM 29 (1986), on means of ratios.
    """
    found = student_interval([math.log(ratio) for ratio in ratios], confidence)
    mean, low, high = map(math.exp, found[:3])
    return Interval(mean, low, high, found.n)


def paired_difference(values: Mapping[Any, float], control: Mapping[Any, float]) -> Interval:
    """Mean of ``values`` minus ``control`` over their common keys, such as seeds."""
    return mean_interval(values[key] - control[key] for key in values if key in control)


def split_error(accuracy: float, rows: int) -> float:
    """Half width of Wilson's 95 % interval of an ``accuracy`` measured on ``rows`` samples.

    It is the uncertainty due to the finite test split, independent of the number of seeds.
    """
    low, high = wilson_interval(round(accuracy * rows), rows)
    return (high - low) / 2


def simultaneous(
    differences: Mapping[str, Sequence[float]], error: float = 0.05
) -> dict[str, Interval]:
    """Intervals of several mean differences; those that exclude 0 are the ones Holm rejects.

    Outcomes: Holm's step-down procedure on two-sided paired t-tests. With probability of at least
    1 - ``error``, no mean that is 0 has an interval without 0 (Holm, "A simple sequentially
    rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979)).

    Intervals: Student's at confidence 1 - ``error`` / m for m differences, which cover all means
    together with at least that probability (Dunn, "Multiple comparisons among means", JASA 56
    (1961)). If Holm rejects 0 and this interval contains 0, it is restricted to the side of the
    mean, with 0 as its open end (the bound of rejected hypotheses in Strassburger and Bretz,
    "Compatible simultaneous lower confidence bounds for the Holm procedure", Statistics in Medicine
    27 (2008)). That adds the errors of Holm's test to Dunn's: in simulations with every other mean
    at 0, all means were covered in 93 % of cases (tests/benchmarks/calibration.json).
    """
    from scipy import special

    m, found, p = len(differences), {}, {}
    for name, values in differences.items():
        found[name] = each = student_interval(values, 1 - error / m)
        if spread := _spread(values):
            t = each.mean / (spread / math.sqrt(each.n))
            p[name] = 2 * float(special.stdtr(each.n - 1, -abs(t)))
        else:
            p[name] = 1.0
    for step, name in enumerate(sorted(p, key=p.__getitem__)):
        if p[name] >= error / (m - step):
            break
        mean, low, high, n = found[name]
        least = sys.float_info.min  # smaller ones are 0 under torch.set_flush_denormal(True)
        cut = (max(low, least), high) if mean > 0 else (low, min(high, -least))
        found[name] = Interval(mean, *cut, n)
    return found


class Seeds(NamedTuple):
    """Number of seeds for the observed spread, and for the ends of the spread's interval."""

    low: int
    expected: int
    high: int


def seeds_needed(values: Sequence[float], error: float = 0.05) -> Seeds | None:
    """Seeds with which a paired t-test shows the mean of ``values`` with probability `POWER`.

    ``low`` and ``high`` take the spread at the ends of its 80 % chi-square interval, as Browne
    recommends for small pilots ("On the use of a pilot sample for sample size determination",
    Statistics in Medicine 14 (1995)). ``None`` if the mean is smaller than its standard error,
    since the number would be arbitrary, or if there are fewer than two different values.
    """
    from scipy import special

    n, spread = len(values), _spread(values)
    mean = abs(fmean(values)) if n else 0.0
    if not spread or mean < spread / math.sqrt(n):
        return None
    factors = [math.sqrt((n - 1) / special.chdtri(n - 1, tail)) for tail in (0.1, 0.9)]
    low, high = (seeds_for(mean / (spread * factor), error) for factor in factors)
    return Seeds(low, seeds_for(mean / spread, error), high)


def seeds_for(effect: float, error: float = 0.05) -> int:
    """Smallest n at which a two-sided paired t-test has the `POWER`; at most 100,000.

    ``effect``: mean difference in standard deviations of the difference, not 0. The power is the
    probability of a decision with the effect's sign. Source: noncentral t distribution; Cohen,
    Statistical Power Analysis (1988), chapter 2.
    """
    from scipy import special

    def enough(n: int) -> bool:
        quantile, shift = _quantile(n, error), abs(effect) * math.sqrt(n)
        return bool(1 - special.nctdtr(n - 1, shift, quantile) >= POWER)

    low, high = 1, 2
    while not enough(high) and high < 100_000:
        low, high = high, min(2 * high, 100_000)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def smallest_effect(values: Sequence[float], error: float = 0.05) -> float:
    """Mean difference that as many seeds, with the spread of ``values``, show with `POWER`.

    In the unit of ``values``, of which there are at least 2. Source: as `seeds_for`.
    """
    from scipy import special

    n = len(values)
    shift = float(special.nctdtrinc(n - 1, 1 - POWER, _quantile(n, error)))
    return shift * stdev(values) / math.sqrt(n)


def _quantile(n: int, error: float) -> float:
    """Student's two-sided quantile for the mean of ``n`` values."""
    from scipy import special

    return float(special.stdtrit(n - 1, 1 - error / 2))
