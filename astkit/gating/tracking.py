"""Controllers that follow scores which keep moving: one by feedback, one by looking back."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from astkit.gating.cards import Card
from astkit.gating.controllers import ScaleFree, checked


class VelocityPI(ScaleFree):
    """PI on the log-threshold in velocity form, and a bounded drift that follows ramps.

    ``drift += kii * e``; ``log t += kp * (rate - rate before) + ki * e + drift`` with ``e = rate -
    target``. The drift is a second integrator: on scores that decay as ``exp(-step / tau)`` it
    settles at ``-1 / tau`` and leaves no error. It stays within +-0.05 and stands still while it
    could only wind up: while the threshold cannot move in the error's direction, or while the error
    is saturated (beyond three binomial standard deviations, or all or none of the rows active where
    chance makes that rarer than 1 in 100). All state is in increments, so that turning a gain or
    the target moves nothing by itself.

    With ``f`` the density of log-scores at the threshold, ``log t - log quantile`` obeys
    ``z (z - 1)**2 + f (kp (z - 1)**2 + ki z (z - 1) + kii z**2) = 0``; Jury's criterion gives the
    bound on its card (for ``kii = 0`` save the root of the idle drift). More ``kp`` adds noise and
    settles no sooner, since the rate answers the threshold at once; more ``kii`` overshoots after a
    fall of the scores at the smallest targets. Negative scores: see `ScaleFree`.

    Args:
        kp: gain of the rate's change, >= 0.
        ki: gain of the error, > 0.
        kii: gain of the drift, >= 0; 0 and ``kp=0`` make this a `LogIntegral`.
        signed: whether scores can be negative; ``None`` until one is, ``False`` refuses them.
    """

    gains = ("kp", "ki", "kii")
    state = (*ScaleFree.state, "drift", "last")
    kp: float = checked("0 or above", "0.1 is plenty")
    ki: float = checked("above 0", "0.5 suits most scores")
    kii: float = checked("0 or above", "0.003 follows a decay within some 200 batches")
    steepest = 0.05  # of the drift: scores that fall by 1/e in 20 batches
    card = Card(
        law="log t += kp * (rate - rate before) + ki * e + drift, drift += kii * e",
        good_for="scores that fall or rise steadily: no lasting error where log_integral has one",
        stability=(
            "stable iff f (4 kp + 2 ki + kii) < 4 with ki > 0, f = density of log-scores at the"
            " threshold; linearised, while the drift is free"
        ),
        source="PI in velocity form with conditional integration; the bound is Jury's criterion",
    )

    def __init__(
        self,
        target_rate: float,
        kp: float = 0.1,
        ki: float = 0.5,
        kii: float = 0.003,
        signed: bool | None = None,
    ) -> None:
        super().__init__(target_rate, signed)
        self.kp, self.ki, self.kii = kp, ki, kii
        self.drift = 0.0
        self.last: float | None = None

    def become_additive(self, scores: Tensor) -> None:
        super().become_additive(scores)
        self.drift = 0.0  # it was one of the logarithm

    def moved(self, value: float, rate: float, scores: Tensor) -> float:
        error = rate - self.target_rate
        if not (self.stuck(value, error, scores) or self._saturated(rate, len(scores))):
            drift = self.drift + self.kii * error
            self.drift = min(max(drift, -self.steepest), self.steepest)
        change = 0.0 if self.last is None else rate - self.last
        self.last = rate
        return self.shifted(value, self.kp * change + self.ki * error + self.drift, scores)

    def _saturated(self, rate: float, rows: int) -> bool:
        p = self.target_rate
        if rate in (0, 1):  # the error is at least so large; how large, no rate can say
            return (p if rate == 1 else 1 - p) ** rows < 0.01
        return abs(rate - p) > 3 * math.sqrt(p * (1 - p) / rows)


class QuantileEMA(ScaleFree):
    """The running mean of the batches' quantiles: ``log t += alpha * (log quantile - log t)``.

    Each batch's quantile at ``1 - target`` is that of Weibull's plotting position ``(n + 1) (1 -
    target)``: where that is a whole number, the next score exceeds it with probability ``target``,
    for any distribution; the usual quantile is exceeded more often. For fewer than ``1 / target``
    rows it is their maximum, and the rate about ``1 / (n + 1)``. Averaging leaves a small error of
    its own. A batch's threshold is known before it.

    The rate takes no part, so there is no feedback to become unstable. On scores that decay as
    ``exp(-step / tau)`` the threshold lags by ``1 / alpha`` batches and the rate is off by ``-f /
    (tau * alpha)``, ``f`` the density of log-scores at the threshold: with ``alpha = gain * f`` it
    does as `LogIntegral`. Negative scores are averaged as they are.

    Args:
        alpha: weight of the newest batch, in (0, 1].
        signed: whether scores can be negative; ``None`` until one is, ``False`` refuses them.
    """

    gains = ("alpha",)
    state = ("value", "additive")
    alpha: float = checked("above 0 and at most 1", "0.2 averages over some 10 batches")
    card = Card(
        law="log t += alpha * (log quantile(scores, 1 - target) - log t)",
        good_for="the fastest return after a jump, at any target; no gain depends on the density",
        stability=(
            "stable for every alpha in (0, 1]: an average of the past without feedback, its only"
            " root is 1 - alpha; the rate's standard deviation is sqrt(1 + alpha / (2 - alpha))"
            " times the binomial one"
        ),
        source="exponential smoothing of Weibull's (1939) sample quantile",
    )

    def __init__(self, target_rate: float, alpha: float = 0.2, signed: bool | None = None) -> None:
        super().__init__(target_rate, signed)
        self.alpha = alpha

    def quantile(self, scores: Tensor) -> float:
        host = scores.double().cpu().numpy()
        return float(np.quantile(host, 1 - self.target_rate, method="weibull"))

    def moved(self, value: float, rate: float, scores: Tensor) -> float:
        found = self.wanted(scores)
        if self.additive:
            return value + self.alpha * (found - value)
        # a batch of zeros tells no scale
        return value * (found / value) ** self.alpha if found > self.smallest else value
