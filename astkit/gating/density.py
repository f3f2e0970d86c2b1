"""The density of scores at a threshold: how strongly the rate answers when the threshold moves."""

from __future__ import annotations

import math

from torch import Tensor


def density(values: Tensor, at: float) -> float:
    """Density of the distribution that ``values [n]`` were drawn from, at ``at``, per unit.

    ``k / (2 r n)`` with ``r`` the distance of ``at`` to its ``(k + 1)``-th nearest value and ``k =
    ceil(n ** 0.8 / 3)``: the window is as wide as the values around it are sparse, and no outlier
    counts. Source: Loftsgaarden and Quesenberry, "A Nonparametric Estimate of a Multivariate
    Density Function", 1965. Infinite where that many values coincide; 0 for infinite values.

    Raises ``ValueError`` for fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError(f"values holds {n}, but a density needs at least two: give more rows")
    nearest = math.ceil(n**0.8 / 3)
    radius = float((values.double() - at).abs().kthvalue(nearest + 1).values)
    return nearest / (2 * radius * n) if radius else math.inf


def log_density(scores: Tensor, threshold: float) -> float:
    """Density of the logarithms of ``scores [n]`` at ``log(threshold)``, per unit of log-score.

    The slope of the activation rate against the log-threshold, so an integral controller of the
    log-threshold is stable below the gain ``2 / log_density``. See `density` for the estimate.

    Raises ``ValueError`` for a negative score, a threshold that is not above 0, or fewer than two
    scores.
    """
    if not threshold > 0:
        raise ValueError(f"threshold is {threshold}, but only numbers above 0 have a logarithm")
    if bool((scores < 0).any()):
        raise ValueError(
            f"scores go down to {float(scores.min())}, but negative ones have no logarithm: use"
            " density(scores / spread, threshold / spread)"
        )
    return density(scores.double().log(), math.log(threshold))
