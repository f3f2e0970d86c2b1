"""Controllers that track the quantile of the scores, and the density of the scores there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from astkit.gating.cards import Card
from astkit.gating.controllers import ScaleFree, checked, least_positive


def density(values: Tensor, at: float) -> float:
    """Density estimate at ``at`` from the samples ``values [n]``, per unit.

    ``k / (2 r n)`` with ``r`` the distance of ``at`` to its ``(k + 1)``-th nearest value and ``k =
    ceil(n ** 0.8 / 3)``. Infinite if that many values coincide; 0 for infinite values. Source:
    Loftsgaarden and Quesenberry, "A Nonparametric Estimate of a Multivariate Density Function",
    1965.

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

    This is the slope of the activation rate against the log-threshold: integral control of the
    log-threshold is stable for gains below ``2 / log_density``. See `density`.

    Raises ``ValueError`` for a negative score, a threshold that is not above 0, or fewer than two
    scores.
    """
    if not threshold > 0 or bool((scores < 0).any()):
        raise ValueError(
            f"threshold is {threshold} and scores go down to {float(scores.min())}, but only"
            " positive numbers have a logarithm: use density(scores / spread, threshold / spread)"
        )
    return density(scores.double().log(), math.log(threshold))


class LogIntegral(ScaleFree):
    """Integral control of the log-threshold (default): ``log t += gain * (rate - target)``.

    With ``f`` the density of log-scores at the threshold, it is stable for ``gain * f < 2``. For
    scores that decay as ``exp(-step / tau)``, the rate has an offset of ``-1 / (tau * gain)``.
    After a negative score, ``gain * spread * (rate - target)`` is added to the threshold itself,
    with ``spread`` a running mean absolute deviation, and ``f`` is the density of
    ``score / spread``.

    ``gain="auto"`` sets the gain to ``0.25 / f``, within 0.01 to 5, with ``f`` measured at each
    batch's own quantile and averaged over batches (geometrically, 0.1 for the newest); the rate's
    standard deviation is then 7 % above that of the exact quantile.

    Args:
        gain: step size, > 0, or "auto"; reading it returns the current value.
    """

    gains = ("gain",)
    state = ("value", "spread", "additive", "auto", "density")
    damping = 0.25  # gain * f for "auto": standard deviation times sqrt(1 + 0.25 / 1.75) = 1.07
    _gain: float = checked("above 0", 'use 0.5 for most scores, or "auto"')
    card = Card(
        law="log t += gain * (rate - target)",
        good_for="default: any scores, any scale, no tuning",
        stability=(
            "stable iff gain * f < 2, f = density of log-scores at the threshold; the rate's"
            " standard deviation is sqrt(1 + gain f / (2 - gain f)) times the binomial one"
        ),
        source="multiplicative Robbins-Monro (1951) quantile tracking; arXiv 2307.16895, P control",
    )

    def __init__(self, target_rate: float, gain: float | str = 0.5) -> None:
        super().__init__(target_rate)
        self.spread = 0.0
        self.density: float | None = None
        self._gain = 0.5  # initial value for "auto"
        self.gain = gain

    def config(self) -> dict[str, Any]:
        """Constructor arguments; the gain that "auto" arrives at is state."""
        return {"target_rate": self.target_rate, "gain": "auto" if self.auto else self._gain}

    @property
    def gain(self) -> float:
        """Current step size, > 0."""
        if self.auto and self.density is not None:
            return min(max(self.damping / self.density, 0.01), 5.0)
        return self._gain

    @gain.setter
    def gain(self, gain: float | str) -> None:
        if not isinstance(gain, str):
            self._gain = gain
        elif gain != "auto":
            raise ValueError(f'gain is {gain!r}, but it must be a number above 0 or "auto"')
        self.auto = gain == "auto"

    @property
    def distribution(self) -> bool:  # type: ignore[override]
        return self.auto

    def become_additive(self, scores: Tensor) -> None:
        super().become_additive(scores)
        self.spread = _deviation(scores)
        self.density = None  # it was measured on log-scores

    def moved(self, value: float, rate: float, scores: Tensor) -> float:
        if self.auto and len(scores) > 1 and 0 < (found := self._density(scores)) < math.inf:
            before = found if self.density is None else self.density
            self.density = before * (found / before) ** 0.1
        step = self.gain * (rate - self.target_rate)
        if self.additive:
            self.spread += 0.1 * (_deviation(scores) - self.spread)
            return value + step * self.spread
        least, lowest = least_positive(scores), value <= self.smallest
        # a batch of zeros has no scale; below all positive scores a step would only cause windup
        if (lowest and least == math.inf) if step > 0 else (lowest or value < least):
            return value
        return min(max(value * math.exp(step), self.smallest), 1 / self.smallest)

    def _density(self, scores: Tensor) -> float:
        scores, at = scores.double(), self.wanted(scores)
        if not self.additive:
            return density(scores.log(), math.log(at))
        return density(scores / self.spread, at / self.spread) if self.spread else 0.0


class QuantileEMA(ScaleFree):
    """Moving average of batch quantiles: ``log t += alpha * (log quantile - log t)``.

    The quantile at ``1 - target`` uses Weibull's plotting position ``(n + 1) (1 - target)``: if
    that is an integer, the next score exceeds it with probability ``target`` for any distribution.
    For fewer than ``1 / target`` rows it is the maximum, and the rate is about ``1 / (n + 1)``.

    For scores that decay as ``exp(-step / tau)``, the threshold lags by ``1 / alpha`` batches and
    the rate has an offset of ``-f / (tau * alpha)``, with ``f`` the density of log-scores at the
    threshold, as `LogIntegral` with ``gain = alpha / f``. With negative scores, the quantiles
    themselves are averaged.

    Args:
        alpha: weight of the newest batch, in (0, 1].
    """

    gains = ("alpha",)
    distribution = True
    alpha: float = checked("above 0 and at most 1", "0.2 averages over about 10 batches")
    card = Card(
        law="log t += alpha * (log quantile(scores, 1 - target) - log t)",
        good_for="fast recovery after a jump; no gain depends on the density",
        stability=(
            "stable for every alpha in (0, 1]: an average of the past without feedback, its only"
            " root is 1 - alpha; the rate's standard deviation is sqrt(1 + alpha / (2 - alpha))"
            " times the binomial one"
        ),
        source="exponential smoothing of Weibull's (1939) sample quantile",
    )

    def __init__(self, target_rate: float, alpha: float = 0.2) -> None:
        super().__init__(target_rate)
        self.alpha = alpha

    def quantile(self, scores: Tensor) -> float:
        host = scores.double().cpu().numpy()
        return float(np.quantile(host, 1 - self.target_rate, method="weibull"))

    def moved(self, value: float, rate: float, scores: Tensor) -> float:
        found = self.wanted(scores)
        if self.additive:
            return value + self.alpha * (found - value)
        # a batch of zeros has no scale
        return value * (found / value) ** self.alpha if found > self.smallest else value


def _deviation(scores: Tensor) -> float:
    scores = scores.double()  # integer tensors have no mean; half precision is inexact
    return float((scores - scores.mean()).abs().mean())
