"""Whether neighbouring rows depend on each other, and the blocks in which they are then taken.

Rows in their order are a series, such as windows of a recording. Where a test finds that neighbours
depend on each other, the unit of tests, forecasts and verdicts is a block of consecutive rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from astkit import rng

Array = np.ndarray[Any, Any]

LEVEL = 0.01  # of the test
DRAWS = 999  # permutations of it, at most
CLEAR = 10.0  # standard errors at which no permutation is needed: chance does not reach them
WINDOW = 4.0  # autocorrelation times over which autocorrelations are summed
TIMES = 6.0  # autocorrelation times in a block, at least
BLOCKS = (6, 20)  # of a series, at least and at most; longer ones depend less on each other
FEWEST = 30  # independent rows that a verdict needs
RUN = 10  # rows of a class in a row, on average, from which rows may be sorted by class


def autocorrelation_time(values: Array, level: float = LEVEL) -> float:
    """Rows in their order that are worth one independent row: 1 + 2 * the sum of autocorrelations.

    The mean of ``values``, float ``[n]`` or ``[n, d]``, varies as that of n / time independent
    rows; of several columns the largest time counts. 1 unless a permutation test at ``level`` finds
    that neighbours are alike in a column, or share values in different ones, see `_shared`.

    The test's statistic is the largest standardised variance ratio of sums of 2, 4, 8, ... rows
    (Lo and MacKinlay, "Stock market prices do not follow random walks", Review of Financial Studies
    1 (1988)). Autocorrelations are summed over `WINDOW` times their sum (Sokal, "Monte Carlo
    methods in statistical mechanics", 1989), with the correction for the estimated mean of Wolff,
    "Monte Carlo errors with less errors", Computer Physics Communications 156 (2004).
    """
    columns = values.reshape(len(values), -1).astype(np.float64)
    columns = columns[:, np.isfinite(columns).all(0)] if columns.size else columns
    deviation = columns.std(0) if columns.size else np.zeros(0)
    alive = deviation > 1e-9 * np.maximum(np.abs(columns).max(0, initial=0), 1e-300)
    if len(columns) < 8 or not alive.any():
        return 1.0
    columns = (columns[:, alive] - columns[:, alive].mean(0)) / deviation[alive]
    found = _alike(columns)
    random = np.random.default_rng(rng.derive(0, "neighbours", len(columns)))
    times = [1.0]
    if found.max() >= 1:  # below it more permutations are above than the level
        most, least = float(found.max()), CLEAR
        if most <= CLEAR:
            least = _by_chance(lambda moved: _alike(moved).max(), columns, most, level, random)
        times += [_time(column) for column in columns.T[found > least]]
    if columns.shape[1] > 1:
        times += [_time(column) for column in _shared(columns, random)]
    return max(times)


def _alike(columns: Array) -> Array:
    """How much sums of neighbours vary more than those of independent rows, largest z, ``[d]``.

    ``columns [n, d]``: of mean 0 and variance 1.
    """
    n = len(columns)
    sums = np.concatenate([np.zeros_like(columns[:1]), columns.cumsum(0)])
    largest, length = np.full(columns.shape[1], -np.inf), 2
    while length <= max(2, n // 8):
        step = max(1, length // 2)  # between sums, which tell hardly less than all of them
        parts = sums[length::step] - sums[:-length:step]
        ratio = (parts**2).mean(0) / (length * (1 - length / n))
        error = math.sqrt(2 * (2 * length - 1) * (length - 1) / (3 * length * n))
        largest = np.maximum(largest, (ratio - 1) / error)
        length *= 2
    return largest


def _by_chance(
    statistic: Callable[[Array], float],
    columns: Array,
    found: float,
    level: float,
    random: np.random.Generator,
) -> float:
    """What a share ``level`` of permutations of the rows reach of a ``statistic``.

    Infinite once so many reach what was ``found``, where the rest cannot change the answer.
    """
    most, drawn, above = round(level * (DRAWS + 1)), list[float](), 0
    for _ in range(DRAWS):
        drawn.append(float(statistic(random.permutation(columns))))
        above += drawn[-1] >= found
        if above >= most:
            return math.inf
    return sorted(drawn)[-most]


def _shared(columns: Array, random: np.random.Generator) -> list[Array]:
    """The sum or difference of two columns that is most alike in neighbours, if they are at all.

    Overlapping windows share values, but in different columns, each of which may be independent
    from row to row. The autocorrelation has to exceed those of `DRAWS` permutations.
    """
    found, first, second, sign = _most_alike(columns)
    clear = found * len(columns) ** 0.5 > CLEAR
    if not clear and found <= _by_chance(
        lambda moved: _most_alike(moved)[0], columns, found, LEVEL, random
    ):
        return []
    together = columns[:, first] + sign * columns[:, second]
    return [together - together.mean()]


def _most_alike(columns: Array) -> tuple[float, int, int, int]:
    """The largest autocorrelation of a sum or difference of two ``columns [n, d]``, and of which.

    That is at a lag of one row; the last number is 1 for a sum.
    """
    later = columns[:-1].T @ columns[1:] / len(columns)
    later, now = (later + later.T) / 2, columns.T @ columns / len(columns)
    alone = np.diag(later)[:, None] + np.diag(later)
    best = (-math.inf, 0, 0, 1)
    for sign in (1, -1):
        variance = 2 + 2 * sign * now
        enough = variance > 0.2  # else hardly anything is left of two columns
        found = np.where(enough, (alone + 2 * sign * later) / np.maximum(variance, 0.2), -math.inf)
        first, second = np.unravel_index(int(found.argmax()), found.shape)
        best = max(best, (float(found[first, second]), int(first), int(second), sign))
    return best


def _time(column: Array) -> float:
    """The autocorrelation time of a column ``[n]`` of mean 0."""
    n = len(column)
    spectrum = np.abs(np.fft.rfft(column, 2 * n)) ** 2
    covariance = np.fft.irfft(spectrum)[: n // 2] / np.arange(n, n - n // 2, -1)
    times = 1 + 2 * np.cumsum(covariance[1:] / covariance[0])
    windows = np.arange(1, len(times) + 1)
    wide = windows >= WINDOW * np.maximum(times, 0.5)
    place = int(wide.argmax()) if wide.any() else len(times) - 1
    return float(max(1.0, times[place]) * (1 + (2 * windows[place] + 1) / n))


def block_length(time: float, rows: int) -> int:
    """Consecutive rows of a block, for the autocorrelation ``time`` of ``rows`` rows; 1 for 1."""
    if time <= 1:
        return 1
    fewest, most = BLOCKS
    return max(1, min(max(math.ceil(TIMES * time), math.ceil(rows / most)), rows // fewest))


def block_means(values: Array, length: int) -> Array:
    """Values ``[..., blocks]`` of blocks of about ``length`` of the rows ``values [..., n]``.

    Their mean is that of the rows; blocks are equally long, to one row.
    """
    rows = values.shape[-1]
    number = block_numbers(rows, length)
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    return np.add.reduceat(values, starts, axis=-1) * (len(starts) / rows)


def block_numbers(rows: int, length: int) -> Array:
    """The block of each row, int64 ``[rows]``, as in `block_means`."""
    return np.arange(rows) * max(1, rows // length) // rows


def rest(time: float, rows: int, blocks: int) -> float:
    """By how much ``blocks`` of ``rows`` understate the variance of the mean, as a factor.

    Neighbouring blocks are still alike at their ends. Of autocorrelations that fall exponentially,
    with a sum of ``time``, the mean of n rows has the variance time / n * (1 - time / 2n * (1 -
    exp(-2n / time))); that of the blocks and of all rows give the factor.
    """
    if time <= 1 or blocks < 2:
        return 1.0

    def share(n: float) -> float:
        return 1 - time / (2 * n) * (1 - math.exp(-2 * n / time))

    whole, block = share(rows), share(rows / blocks)
    return whole * (blocks - 1) / (blocks * block - whole)


def sorted_by(labels: Array) -> bool:
    """Whether rows with ``labels [n]`` are sorted by them, as files in a folder for each class.

    Each label comes in one run, of at least `RUN` rows on average. The order then says nothing of
    how classes follow each other.
    """
    count = len(np.unique(labels))
    runs = 1 + int((labels[1:] != labels[:-1]).sum())
    return 1 < count == runs and len(labels) >= RUN * count


def centred(values: Array, labels: Array) -> Array:
    """``values [n, ...]`` without the differences between the means of ``labels [n]``."""
    _, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(sums, place, values)
    means = sums / counts.reshape(-1, *[1] * (values.ndim - 1))
    return values - means[place] + values.mean(0)
