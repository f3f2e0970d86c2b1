"""Statistics of a comparison: paired differences, their intervals over seeds and test rows, tests.

Entries are those of `astkit.Comparison`: one mapping per method and seed. "dense" is the control,
"random at 0.30" trains on random samples at that rate.
Needs scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from torch import Tensor

from astkit.datasets.dependence import autocorrelation_time, block_length, block_means, rest

Entry = Mapping[str, Any]
Arm = dict[int, Entry]
"""The entries of one method by seed."""

ERROR = 0.05  # probability of a wrong sign, over all methods of a comparison together
POWER = 0.8  # probability with which an effect is to be shown
NEAR = 0.1  # largest difference between the rates of a policy and of its random control, see there
COSTS = {"flops": "FLOPs", "seconds": "time"}
DENSE, RANDOM = "dense", "random at "
BOTH, ALONE = "both", "target alone"
"""Controls where there are rows of a target: they and the old rows alike, and they alone."""
RowValues = Callable[[Entry], Tensor | None]
"""The results of a run on the test rows, see `units`; ``None`` where they are not known."""


class Interval(NamedTuple):
    """A mean of ``n`` values with its interval; ``low`` and ``high`` are NaN if undefined.

    With ``n`` = 0 all are NaN. ``format(interval, spec)`` applies ``spec`` to each number; ``str``
    shows percentage points.
    """

    mean: float
    low: float
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        spec = spec or "+.2%"
        if math.isnan(self.low):
            equal = {0: "", 1: "", 2: ", all equal or too few"}.get(self.n, ", all equal")
            return f"{self.mean:{spec}}, n = {self.n}{equal}, so without an interval"
        return f"{self.text(spec)}, n = {self.n}"

    def text(self, spec: str) -> str:
        """The mean, and the interval if it is defined; a dash without values."""
        mean, low, high = (format(value, spec) for value in self[:3])
        if not self.n:
            return "–"
        alone = math.isnan(self.low) or mean == low == high
        return mean if alone else f"{mean} [{low}, {high}]"

    def verdict(self, above: str = "higher", below: str = "lower") -> str:
        """``above`` or ``below`` if the whole interval is on that side of 0."""
        return above if self.low > 0 else below if self.high < 0 else "cannot tell yet"

    def __str__(self) -> str:
        return format(self)


def mean_interval(
    values: Iterable[float | None], error: float = ERROR, limits: tuple[float, float] | None = None
) -> Interval:
    """Mean of ``values`` with Student's interval; absent and non-finite values are left out.

    Undefined for fewer than two values, and for values that are all equal (to 1e-9 of the largest),
    since their spread is unknown. Source: "Student", Biometrika 6 (1908).

    ``limits``: the least and the largest value that there may be, such as 0 and 1 of an accuracy:
    the interval ends there, and two values, of which it would tell little, have none.
    """
    mean, low, high, n = estimate(known(values)).interval(error)
    if limits is not None and not math.isnan(low):
        few = n < 3
        low, high = (
            math.nan if few else min(max(end, limits[0]), limits[1]) for end in (low, high)
        )
    return Interval(mean, low, high, n)


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """Geometric mean of positive ``ratios`` with Student's interval of their logarithms.

    Unlike `mean_interval` it contains no negative ratio. Source: Fleming and Wallace, "How not to
    lie with statistics", Communications of the ACM 29 (1986), on means of ratios.
    """
    logarithms = mean_interval([math.log(ratio) for ratio in ratios])
    mean, low, high = map(math.exp, logarithms[:3])
    return Interval(mean, low, high, logarithms.n)


def paired_difference(values: Mapping[Any, float], control: Mapping[Any, float]) -> Interval:
    """Mean of ``values`` minus ``control`` over their common keys, such as seeds."""
    return mean_interval(values[key] - control[key] for key in values if key in control)


@dataclass(frozen=True)
class Estimate:
    """Mean of ``n`` paired differences, one a seed, and the two parts of its variance.

    Attributes:
        seeds: the part that falls with the number of seeds; NaN if unknown.
        common: the part due to the test rows that all seeds share; 0 if unknown.
        units: number of test rows, groups, parts or blocks of them, from which ``common`` was
            estimated; 0 if it is unknown.
        worth: number of independent rows, groups or parts that the test rows are worth; infinite if
            they are unknown.
        blocks: whether neighbouring ones depend on each other, so that ``units`` are blocks.

    Intervals and tests use the mean of Student's quantiles with ``n - 1`` and ``units - 1`` degrees
    of freedom, weighted by ``seeds`` and ``common`` (Cochran and Cox, Experimental Designs, 2nd
    edition (1957), section 4.14). One quantile with Satterthwaite's degrees of freedom (Biometrics
    2 (1946)) is wrong too often with few seeds: in 6 to 8 % of cases with 3 seeds where both parts
    are alike, since seeds that agree by chance also seem to have many degrees of freedom.
    """

    mean: float
    n: int
    seeds: float
    common: float
    units: int
    worth: float = math.inf
    blocks: bool = False

    @property
    def error(self) -> float:
        """Standard error, or NaN."""
        return math.sqrt(self.seeds + self.common)

    def quantile(self, error: float) -> float:
        """Half width of the interval at confidence 1 - ``error``, in standard errors."""
        from scipy import special

        of_seeds = -float(special.stdtrit(self.n - 1, error / 2))
        if not self.common:
            return of_seeds
        of_rows = -float(special.stdtrit(self.units - 1, error / 2))
        weight = self.common / (self.seeds + self.common)
        return weight * of_rows + (1 - weight) * of_seeds

    def interval(self, error: float = ERROR) -> Interval:
        """The mean with its interval at confidence 1 - ``error``."""
        if math.isnan(self.error):
            return Interval(self.mean, math.nan, math.nan, self.n)
        half = self.quantile(error) * self.error if self.error else 0.0
        return Interval(self.mean, self.mean - half, self.mean + half, self.n)

    def p(self, value: float = 0.0) -> float:
        """Largest ``error`` at which the interval contains ``value``; 1 without an interval."""
        from scipy import optimize, special

        gap, least = abs(self.mean - value), 1e-12
        if math.isnan(self.error) or not gap:
            return 1.0
        if not self.error or self.quantile(least) <= gap / self.error:
            return least
        if not self.common:
            return 2 * float(special.stdtr(self.n - 1, -gap / self.error))
        root = optimize.brentq(lambda error: self.quantile(error) - gap / self.error, least, 1.0)
        return float(root)


def estimate(
    values: Sequence[float], rows: np.ndarray | None = None, grouped: bool = False
) -> Estimate:
    """Mean of the differences ``values`` of S seeds, and its variance over seeds and test rows.

    ``rows``: float ``[S, R]``, the difference of each test row at each seed; of a metric that is no
    mean over rows, see `pseudo_values`. Columns that are not finite are left out. ``grouped``: they
    are groups, which are independent and in no order.

    Row i at seed j differs by d_ij = d + r_i + s_j + e_ij, with independent random effects of rows,
    seeds, and both. The mean over S seeds and R rows then has the variance
    V = (var(s) + var(e) / R) / S + var(r) / R. The variance of the S values over S estimates the
    first part, the noise of the rows that differs between seeds included. The second part stays,
    however many seeds there are. Two seeds have the covariance var(r) over the rows, so the mean
    covariance of all pairs of seeds, over R, estimates it; this is the method of moments,
    (MS_rows - MS_residual) / (S R), in the table of the analysis of variance (Searle, Casella and
    McCulloch, Variance Components (1992), chapter 4). Negative estimates count as 0.

    Where neighbouring rows depend on each other, see `autocorrelation_time`, blocks of them take
    the place of rows; the mean over seeds shows it, as the effects of rows are in all of them.
    """
    n, common, units, worth, blocks = len(values), 0.0, 0, math.inf, False
    spread = float(np.std(values, ddof=1)) if n > 1 else 0.0
    unknown = spread <= 1e-9 * max(map(abs, values), default=0.0)  # equal but for rounding
    seeds = math.nan if unknown else spread**2 / n
    kept = None if rows is None else rows[:, np.isfinite(rows).all(0)]
    if kept is not None and kept.size:
        count = kept.shape[1]
        # few rows hardly show it, and blocks without need cost little
        level = min(0.2, 2 / math.sqrt(count))
        time = 1.0 if grouped else autocorrelation_time(kept.mean(0), level)
        worth, length = count / time, block_length(time, count)
        blocks = length > 1
    if kept is not None and n > 1 and kept.size > n:
        means = block_means(kept, length)
        units = means.shape[1]
        covariances = np.cov(means)
        of_pairs = (covariances.sum() - covariances.trace()) / (n * (n - 1))
        common = max(0.0, float(of_pairs)) / units * rest(time, count, units)
        if (kept == kept[0]).all():  # the seed makes no difference
            seeds = 0.0
    return Estimate(fmean(values) if n else math.nan, n, seeds, common, units, worth, blocks)


def holm(p: Mapping[str, float]) -> set[str]:
    """Names of the hypotheses that Holm's step-down procedure rejects.

    With probability of at least 1 - `ERROR` none of them is true. Source: Holm, "A simple
    sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).
    """
    rejected: set[str] = set()
    for name in sorted(p, key=p.__getitem__):
        if p[name] >= ERROR / (len(p) - len(rejected)):
            break
        rejected.add(name)
    return rejected


def seeds_needed(effect: Estimate, error: float = ERROR) -> float | None:
    """Number of seeds with which a true mean of the observed size is shown, with the `POWER`.

    The usual formula, (z_power + z_error)^2 times the variance over seeds, over the squared mean,
    from which the part of the test rows is taken, since no seed reduces it. Half of z_error^2 is
    added for Student's quantiles (Guenther, The American Statistician 35 (1981)). Infinite if the
    test rows are too few. ``None`` if the mean is smaller than its standard error, since the number
    would be arbitrary, and if the spread over seeds is unknown.
    """
    if not abs(effect.mean) > effect.error:
        return None
    quantile = NormalDist().inv_cdf(1 - error / 2)
    allowed = (effect.mean / (quantile + NormalDist().inv_cdf(POWER))) ** 2 - effect.common
    if allowed <= 0:
        return math.inf
    return math.ceil(effect.seeds * effect.n / allowed + quantile**2 / 2) if effect.seeds else None


def by_arm(entries: Sequence[Entry]) -> dict[str, Arm]:
    """The methods in their order. Raises ``ValueError`` for two entries of one method and seed."""
    arms: dict[str, Arm] = {}
    for entry in entries:
        arm = arms.setdefault(entry["policy"], {})
        if entry["seed"] in arm:
            raise ValueError(
                f"entries hold {entry['policy']!r} twice for seed {entry['seed']}: keep one of them"
            )
        arm[entry["seed"]] = entry
    return arms


def is_control(name: str) -> bool:
    """Whether the method of this name is dense training or another control."""
    return name in (DENSE, BOTH, ALONE) or name.startswith(RANDOM)


def random_control(arm: Arm, arms: Mapping[str, Arm]) -> Arm:
    """Entries of random controls with the policy's rate for the same seed; others are left out.

    Rates may differ by the share `NEAR` of the policy's rate, above 0.2 by 0.02.
    """
    named = (RANDOM, "random(")  # the latter where somebody compares such a policy
    controls = [each for name, each in arms.items() if name.startswith(named) and each is not arm]
    nearest: Arm = {}
    for seed, run in arm.items():
        runs = [each[seed] for each in controls if seed in each]
        best = min(runs, key=lambda other: abs(other["rate"] - run["rate"]), default=None)
        if best and abs(best["rate"] - run["rate"]) <= NEAR * min(run["rate"], 0.2) + 1e-9:
            nearest[seed] = best
    return nearest


def is_finite(value: float | None) -> TypeGuard[float]:
    """Whether there is a number that is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def known(values: Iterable[float | None]) -> list[float]:
    """The finite values."""
    return list(filter(is_finite, values))


def pairs(arm: Arm, control: Arm) -> list[tuple[Entry, Entry]]:
    """Entries of both, for the seeds at which both values are finite."""
    both = [(run, control[seed]) for seed, run in arm.items() if seed in control]
    return [pair for pair in both if all(is_finite(run["value"]) for run in pair)]


def cost_share(cost: float | None, whole: float | None) -> float | None:
    """``cost`` as a share of ``whole``; None unless both are known and positive."""
    if cost is None or whole is None or not (0 < cost < math.inf and 0 < whole < math.inf):
        return None
    return cost / whole


def cost_ratio(arm: Arm, control: Arm, key: str) -> Interval:
    """Cost of the whole run, "flops" or "seconds", as a share of the control's."""
    return ratio_interval(
        known(cost_share(run[key], other[key]) for run, other in pairs(arm, control))
    )


class Gaps(NamedTuple):
    """Differences of a method to its control, by seed, and of their test rows where known.

    Attributes:
        values: float ``[S]``.
        rows: float ``[S, R]``, or ``None`` unless all of these runs have them; see `estimate`.
        grouped: whether they are groups of rows.
    """

    values: np.ndarray
    rows: np.ndarray | None
    grouped: bool = False

    def estimate(self) -> Estimate:
        """Mean and variance of the differences."""
        return estimate(self.values.tolist(), self.rows, self.grouped)


def gaps(arm: Arm, control: Arm, rows: RowValues | None = None) -> Gaps:
    """Differences of ``arm`` to ``control``, for the seeds at which both are finite."""
    both = pairs(arm, control)
    values = np.array([run["value"] - other["value"] for run, other in both])
    of_rows = list[np.ndarray]()
    for run, other in both:
        mine, its = (rows(run), rows(other)) if rows is not None else (None, None)
        if mine is not None and its is not None:
            of_rows.append((mine.double() - its.double()).numpy(force=True))
    complete = both and len(of_rows) == len(both)
    grouped = any(run.get("test_groups") is not None for pair in both for run in pair)
    return Gaps(values, np.stack(of_rows) if complete else None, grouped)
