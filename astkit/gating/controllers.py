"""Controllers: adapt the threshold so that a target rate of samples exceeds it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from astkit import distributed
from astkit.checks import ABOVE_0, FROM_0, PART, RATE, check_number


class Controller(ABC):
    """Base class of threshold controllers.

    With several processes, each calls ``threshold`` and ``update`` with the scores of its own rows;
    `pooled_rate` in ``update`` keeps the thresholds equal. ``rate`` is the set point.
    """

    by_rank: ClassVar[bool] = False  #: a gate takes the highest scores, not those above a threshold
    gains: ClassVar[tuple[str, ...]] = ()  #: attributes that may be changed during training, too
    state: ClassVar[tuple[str, ...]] = ()  #: further attributes of ``state_dict``
    limits: ClassVar[dict[str, str]] = {}  #: rule of each numeric argument, one of `RULES`
    law: ClassVar[str]  #: how the threshold moves
    good_for: ClassVar[str]  #: what to choose it for

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __setattr__(self, name: str, value: Any) -> None:
        rule = RATE if name == "rate" else self.limits.get(name)
        value = value if rule is None else check_number(name, value, rule)
        super().__setattr__(name, value)

    @abstractmethod
    def threshold(self, scores: Tensor, quota: int) -> float:
        """Threshold for finite ``scores [batch]``; the target is ``quota`` active rows."""

    @abstractmethod
    def update(self, measured_rate: float, scores: Tensor) -> None:
        """Update the controller; a fraction ``measured_rate`` of ``scores`` was active."""

    def state_dict(self) -> dict[str, Any]:
        """State that determines the next decision, as plain numbers."""
        return {name: getattr(self, name) for name in ("rate", *self.gains, *self.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state``; raises ``KeyError`` for a missing entry."""
        for name in ("rate", *self.gains, *self.state):
            setattr(self, name, state[name])


def pooled_rate(rate: float, rows: int) -> float:
    """Fraction of active samples over all processes, of which this one has ``rate`` of ``rows``."""
    if distributed.world() == 1:
        return rate
    selected, offered = distributed.total(round(rate * rows), rows)
    return selected / offered


class TopK(Controller):
    """Selects the ``quota`` highest scores of each batch: exact rate, stateless, no gains.

    As in selective backprop of mosaicml/composer and airbench96_faster.
    """

    by_rank = True
    law = "t = the quota-th largest score of the batch"
    good_for = "an exact rate in every batch; not for sample-by-sample use"

    def threshold(self, scores: Tensor, quota: int) -> float:
        return float(scores.topk(quota).values[-1]) if quota else math.inf

    def update(self, measured_rate: float, scores: Tensor) -> None:
        """Does nothing: the threshold is computed from each batch."""


class ScaleFree(Controller):
    """Base class of threshold controllers that adapt to the scale of the scores.

    Starts at the quantile of the first batch, and updates the logarithm of the threshold, so that
    scores must be 0 or more: ``update`` raises ``ValueError`` for others. With several processes,
    quantile and scores are those of the global batch.
    """

    state: ClassVar[tuple[str, ...]] = ("value",)
    smallest = 1e-30  # the lowest threshold on the log scale

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.value: float | None = None

    def threshold(self, scores: Tensor, quota: int) -> float:
        # a batch of zeros has no scale: initialise at the first batch with a positive score
        if self.value is None or self.value == self.smallest:
            scores = distributed.pooled(scores)
            if self.value is None or least_positive(scores) < math.inf:
                self.value = self.wanted(scores)
        return self.value

    def quantile(self, scores: Tensor) -> float:
        """The quantile of ``scores [batch]`` at ``1 - rate``."""
        # float64: with float32, rounding can place the quantile above its own score
        return float(torch.quantile(scores.double(), 1 - self.rate))

    def wanted(self, scores: Tensor) -> float:
        """Quantile threshold of ``scores [batch]``, above 0."""
        quantile = self.quantile(scores)
        if quantile == 0 and (least := least_positive(scores)) < math.inf:
            quantile = least
        return max(quantile, self.smallest)

    def update(self, measured_rate: float, scores: Tensor) -> None:
        assert self.value is not None, "update needs a threshold: call threshold first"
        if dist.is_available() and dist.is_initialized():
            measured_rate = pooled_rate(measured_rate, len(scores))
            scores = distributed.pooled(scores)
        if (least := float(scores.amin())) < 0:
            raise ValueError(
                f"a score is {least:.3g}, but {type(self).__name__} moves the logarithm of its"
                " threshold: give scores of 0 or more, such as the exponentials of these by a"
                " function as score=, or controller='top_k'"
            )
        self.value = self.moved(self.value, measured_rate, scores)

    @abstractmethod
    def moved(self, value: float, measured_rate: float, scores: Tensor) -> float:
        """Next threshold after ``value``, which a fraction of ``scores`` exceeded."""


def least_positive(scores: Tensor) -> float:
    """Smallest positive value of ``scores [batch]``; infinity if there is none."""
    least = float(scores.amin())
    if least > 0:
        return least
    positive = scores[scores > 0]
    return float(positive.amin()) if len(positive) else math.inf


def density(values: Tensor, at: float) -> float:
    """Density estimate at ``at`` from at least two samples ``values [n]``, per unit.

    ``k / (2 r n)`` with ``r`` the distance to the ``(k + 1)``-th nearest value and ``k = ceil(n **
    0.8 / 3)``; infinite if ``r`` is 0. Source: Loftsgaarden and Quesenberry, "A Nonparametric
    Estimate of a Multivariate Density Function", 1965.
    """
    n = len(values)
    nearest = math.ceil(n**0.8 / 3)
    radius = float((values.double() - at).abs().kthvalue(nearest + 1).values)
    return nearest / (2 * radius * n) if radius else math.inf


class LogIntegral(ScaleFree):
    """Integral control of the log-threshold (default): ``log t += gain * (rate - target)``.

    With ``f`` the density of log-scores at the threshold, it is stable iff ``gain * f < 2``; the
    rate's standard deviation is ``sqrt(1 + gain f / (2 - gain f))`` times the binomial one. For
    scores that decay as ``exp(-step / tau)``, the rate has an offset of ``-1 / (tau * gain)``.
    Thresholds stay within 1e-30 to 1e30.
    Source: multiplicative Robbins-Monro (1951) quantile tracking; P control in arXiv 2307.16895.

    Args:
        gain: step size, > 0, or "auto": ``0.25 / f``, within 0.01 to 5, with ``f`` measured at each
            batch's own quantile and averaged over batches (geometrically, 0.1 for the newest).
    """

    gains = ("gain",)
    state = ("value", "auto", "density")
    damping = 0.25  # gain * f for "auto": standard deviation times sqrt(1 + 0.25 / 1.75) = 1.07
    law = "log t += gain * (rate - target)"
    good_for = "default: any scores, any scale, no tuning"

    def __init__(self, rate: float, gain: float | str = 0.5) -> None:
        super().__init__(rate)
        self.density: float | None = None
        self.gain = gain

    @property
    def gain(self) -> float:
        """Current step size, > 0."""
        if self.auto and self.density is not None:
            return min(max(self.damping / self.density, 0.01), 5.0)
        return self._gain

    @gain.setter
    def gain(self, gain: float | str) -> None:
        if isinstance(gain, str) and gain != "auto":
            raise ValueError(f'gain is {gain!r}: give {ABOVE_0}, or "auto"')
        # "auto" starts at 0.5
        self._gain = 0.5 if gain == "auto" else check_number("gain", gain, ABOVE_0)
        self.auto = gain == "auto"

    def moved(self, value: float, measured_rate: float, scores: Tensor) -> float:
        if self.auto and len(scores) > 1:
            latest = density(scores.double().log(), math.log(self.wanted(scores.double())))
            if 0 < latest < math.inf:
                before = latest if self.density is None else self.density
                self.density = before * (latest / before) ** 0.1
        step = self.gain * (measured_rate - self.rate)
        least, lowest = least_positive(scores), value <= self.smallest
        # a batch of zeros has no scale; below all positive scores a step would only cause windup
        if (lowest and least == math.inf) if step > 0 else (lowest or value < least):
            return value
        factor = math.exp(min(step, 140.0))  # which is more than the whole range
        return min(max(value * factor, self.smallest), 1 / self.smallest)


class QuantileEMA(ScaleFree):
    """Moving average of batch quantiles: ``log t += alpha * (log quantile - log t)``.

    The quantile at ``1 - target`` uses Weibull's (1939) plotting position ``(n + 1) (1 - target)``:
    if that is an integer, the next score exceeds it with probability ``target`` for any
    distribution. For fewer than ``1 / target`` rows it is the maximum, and the rate is about ``1 /
    (n + 1)``. Without feedback it is stable for every alpha; the rate's standard deviation is
    ``sqrt(1 + alpha / (2 - alpha))`` times the binomial one. For scores that decay as ``exp(-step /
    tau)``, the threshold lags by ``1 / alpha`` batches.

    Args:
        alpha: weight of the newest batch, in (0, 1].
    """

    gains = ("alpha",)
    limits: ClassVar[dict[str, str]] = {"alpha": RATE}
    law = "log t += alpha * (log quantile(scores, 1 - target) - log t)"
    good_for = "fast recovery after a jump; no gain depends on the density"

    def __init__(self, rate: float, alpha: float = 0.2) -> None:
        super().__init__(rate)
        self.alpha = alpha

    def quantile(self, scores: Tensor) -> float:
        return float(np.quantile(scores.double().cpu(), 1 - self.rate, method="weibull"))

    def moved(self, value: float, measured_rate: float, scores: Tensor) -> float:
        wanted = self.wanted(scores)
        # a batch of zeros has no scale
        return value * (wanted / value) ** self.alpha if wanted > self.smallest else value


class OriginPI(Controller):
    """The original's PI controller: acts on an EMA of the batch rate and moves the threshold.

    ``ema += alpha * (rate - ema)``; ``e = ema - target``; ``t += kp * e + ki * integral``; then
    ``e`` is added to the integral (clamped to +-50) if the unclamped threshold is within (0.01,
    0.99), else the integral is multiplied by 0.9; finally the threshold is clamped to [0, 1].

    With ``f`` the density of scores at the threshold, ``t - quantile`` obeys ``(z - 1)**2 (z - 1 +
    alpha) + f alpha z (kp (z - 1) + ki) = 0``: by Jury's criterion stable iff ``ki < alpha kp`` and
    ``f (2 kp - ki) < 4 (2 - alpha) / alpha``. The damping ratio is about ``kp / 2 * sqrt(f / ki)``:
    0.11 for the defaults at ``f = 1``. Source: SundewAlgorithm in KAGGLE_VIT_BATCHED_STANDALONE.py
    of oluwafemidiakhoa/adaptive-sparse-training at 3e66290, fed with the rate of the batch as its
    report says; the code uses the rate since the start.

    Args:
        kp: gain on the smoothed error.
        ki: gain on its sum.
        alpha: weight of the newest rate in the EMA, in (0, 1].
        start: initial threshold, within [0, 1].
    """

    gains: ClassVar[tuple[str, ...]] = ("kp", "ki", "alpha")
    state: ClassVar[tuple[str, ...]] = ("value", "rate_ema", "integral")
    limits: ClassVar[dict[str, str]] = {
        "kp": FROM_0,
        "ki": FROM_0,
        "alpha": RATE,
        "start": PART,
    }
    law = "t += kp * e + ki * sum(e), e = EMA(rate) - target, t within [0, 1]"
    good_for = (
        "comparison with the original; scores must lie within [0, 1], and convergence takes"
        " hundreds of batches"
    )

    def __init__(
        self,
        rate: float,
        kp: float = 0.0015,
        ki: float = 0.00005,
        alpha: float = 0.3,
        start: float = 0.5,
    ) -> None:
        super().__init__(rate)
        self.kp, self.ki, self.alpha = kp, ki, alpha
        self.start = start
        self.value = self.start
        self.rate_ema = self.rate
        self.integral = 0.0

    def threshold(self, scores: Tensor, quota: int) -> float:
        return self.value

    def update(self, measured_rate: float, scores: Tensor) -> None:
        pooled = pooled_rate(measured_rate, len(scores))
        self.rate_ema = self.alpha * pooled + (1 - self.alpha) * self.rate_ema
        error = self.rate_ema - self.rate
        value = self.value + self.kp * error + self.ki * self.integral
        if 0.01 < value < 0.99:
            self.integral = max(-50.0, min(50.0, self.integral + error))
        else:
            self.integral *= 0.9
        self.value = max(0.0, min(1.0, value))
