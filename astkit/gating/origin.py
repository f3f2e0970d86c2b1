"""The controller of oluwafemidiakhoa/adaptive-sparse-training (the original), for comparison."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from astkit.gating.cards import Card
from astkit.gating.controllers import Controller, checked, pooled_rate


class OriginPI(Controller):
    """The original's PI controller: acts on an EMA of the batch rate and moves the threshold.

    ``ema += alpha * (rate - ema)``; ``e = ema - target``; ``t += kp * e + ki * integral``; then
    ``e`` is added to the integral (clamped to +-50) if the unclamped threshold is within (0.01,
    0.99), else the integral is multiplied by 0.9; finally the threshold is clamped to [0, 1]. Since
    ``t`` accumulates, ``kp`` acts as an integral gain and ``ki`` as a double integral gain. Update
    rule and constants follow the report; the code uses the rate since the start, not the batch's.

    With ``f`` the density of scores at the threshold, a fixed distribution and no active clamp,
    ``t - quantile`` obeys ``(z - 1)**2 (z - 1 + alpha) + f alpha z (kp (z - 1) + ki) = 0``; Jury's
    criterion gives the bounds in the card. The damping ratio is about ``kp / 2 * sqrt(f / ki)``:
    0.11 for the defaults at ``f = 1``, a slow oscillation.

    Args:
        kp: gain on the smoothed error.
        ki: gain on its sum.
        alpha: weight of the newest rate in the EMA, in (0, 1].
        start: initial threshold, in units of the scores.
    """

    gains: ClassVar[tuple[str, ...]] = ("kp", "ki", "alpha")
    state: ClassVar[tuple[str, ...]] = ("value", "rate_ema", "integral")
    kp: float = checked("0 or above", "the original's is 0.0015")
    ki: float = checked("0 or above", "the original's is 0.00005")
    alpha: float = checked("above 0 and at most 1", "the original's is 0.3")
    card = Card(
        law="t += kp * e + ki * sum(e), e = EMA(rate) - target, t within [0, 1]",
        good_for=(
            "comparison with the original; scores must lie within [0, 1], and convergence takes"
            " hundreds of batches"
        ),
        stability=(
            "stable iff ki < alpha kp and f (2 kp - ki) < 4 (2 - alpha) / alpha, f = density of"
            " scores at the threshold; linearised, for a fixed distribution and no active clamp"
        ),
        source=(
            "oluwafemidiakhoa/adaptive-sparse-training at 3e66290,"
            " KAGGLE_VIT_BATCHED_STANDALONE.py, SundewAlgorithm, fed with batch rates as its report"
            " says"
        ),
    )

    def __init__(
        self,
        target_rate: float,
        kp: float = 0.0015,
        ki: float = 0.00005,
        alpha: float = 0.3,
        start: float = 0.5,
    ) -> None:
        super().__init__(target_rate)
        self.start = start
        self.kp, self.ki, self.alpha = kp, ki, alpha
        self.value = start
        self.rate_ema = self.target_rate
        self.integral = 0.0

    def threshold(self, scores: Tensor, quota: int) -> float:
        return self.value

    def update(self, rate: float, scores: Tensor) -> None:
        rate = pooled_rate(rate, len(scores))
        self.rate_ema = self.alpha * rate + (1 - self.alpha) * self.rate_ema
        error = self.rate_ema - self.target_rate
        value = self.value + self.kp * error + self.ki * self.integral
        if 0.01 < value < 0.99:
            self.integral = max(-50.0, min(50.0, self.integral + error))
        else:
            self.integral *= 0.9
        self.value = max(0.0, min(1.0, value))
