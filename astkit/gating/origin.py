"""Controllers of oluwafemidiakhoa/adaptive-sparse-training (the original), for comparison."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from astkit.gating.cards import Card
from astkit.gating.controllers import Controller, Draw, checked

_SOURCE = (
    "oluwafemidiakhoa/adaptive-sparse-training at 3e66290, KAGGLE_VIT_BATCHED_STANDALONE.py,"
    " SundewAlgorithm"
)


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
        kp: gain on the smoothed error; acts as an integral gain.
        ki: gain on its sum; acts as a double integral gain.
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
        source=_SOURCE + ", fed with batch rates as its report says",
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
        self.rate_ema = self.alpha * rate + (1 - self.alpha) * self.rate_ema
        error = self.rate_ema - self.target_rate
        value = self.value + self.kp * error + self.ki * self.integral
        if 0.01 < value < 0.99:
            self.integral = max(-50.0, min(50.0, self.integral + error))
        else:
            self.integral *= 0.9
        self.value = max(0.0, min(1.0, value))


class OriginStochastic(OriginPI):
    """The gate of the original's code: random decisions, limited by an energy reservoir.

    A row above the threshold is active with probability ``sigmoid((score - threshold) /
    temperature)``; other rows are inactive. Rows are processed in order with a reservoir of
    "energy": it starts at 100, an active row requires more than 10 and consumes 10, and each row
    adds a uniform draw from (1, 3), up to 100. The long-run rate is therefore at most 0.2 for any
    threshold. `OriginPI` is updated with the rate since the start, ``all active / all seen``,
    whose response slows down over time.

    Args:
        temperature: of the sigmoid, > 0, in units of the scores.
    """

    held = False  # a decision depends on the rows before it in its batch
    gains = (*OriginPI.gains, "temperature")
    state = (*OriginPI.state, "energy", "active", "seen")
    temperature: float = checked("above 0", "the original's is 0.15")
    card = Card(
        law="active with sigmoid((score - t) / temperature) if score > t and energy > 10; t by PI",
        good_for="reproducing the original's published runs; the rate stays below 0.2",
        stability=(
            "none derived: the rate since the start responds in proportion to 1 / batches, so the"
            " loop is not time-invariant; the reservoir bounds the rate by 2 / 10"
        ),
        source=_SOURCE + ", to the letter",
    )

    def __init__(
        self,
        target_rate: float,
        kp: float = 0.0015,
        ki: float = 0.00005,
        alpha: float = 0.3,
        start: float = 0.5,
        temperature: float = 0.15,
    ) -> None:
        super().__init__(target_rate, kp, ki, alpha, start)
        self.temperature = temperature
        self.energy = 100.0
        self.active = self.seen = 0

    def decide(self, scores: Tensor, threshold: float, draw: Draw) -> Tensor:
        chance = torch.sigmoid((scores.double() - threshold) / self.temperature)
        wanted = (scores > threshold) & (draw("activation") < chance)
        granted = []
        for asks, number in zip(wanted.tolist(), draw("regeneration").tolist(), strict=True):
            granted.append(asks and self.energy > 10)
            self.energy -= 10.0 * granted[-1]
            self.energy = min(100.0, self.energy + 1 + 2 * number)
        return torch.tensor(granted, device=scores.device)

    def update(self, rate: float, scores: Tensor) -> None:
        self.active += round(rate * len(scores))
        self.seen += len(scores)
        super().update(self.active / self.seen, scores)
