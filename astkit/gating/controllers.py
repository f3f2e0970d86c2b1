"""Controllers: they move a threshold so that the wanted share of samples exceeds it.

One small interface: ``threshold(scores, quota)`` before a decision, ``update(rate, scores)`` after
it, and a state of plain numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor


def check_rate(name: str, rate: float) -> float:
    """``rate`` as a float; ``ValueError`` unless it lies in (0, 1]."""
    if not 0 < rate <= 1:  # also refuses NaN
        raise ValueError(
            f"{name} is {rate}, but a rate is a share of the samples: give a number above 0 and at"
            " most 1, such as 0.1"
        )
    return float(rate)


class Controller(ABC):
    """A threshold that follows a target rate.

    ``held`` says whether the threshold is known before a batch is scored; a controller that needs
    the whole batch first cannot steer a sample-by-sample pass. ``state`` names the attributes that
    make up the saved state.
    """

    held: ClassVar[bool] = True
    state: ClassVar[tuple[str, ...]] = ()

    def __init__(self, target_rate: float) -> None:
        self.target_rate = target_rate

    @property
    def target_rate(self) -> float:
        """The set point: wanted share of samples, in (0, 1]."""
        return self._target_rate

    @target_rate.setter
    def target_rate(self, rate: float) -> None:
        self._target_rate = check_rate("target_rate", rate)

    @abstractmethod
    def threshold(self, scores: Tensor, quota: int) -> float:
        """The threshold for this batch of finite ``scores [batch]``; ``quota`` rows are wanted."""

    @abstractmethod
    def update(self, rate: float, scores: Tensor) -> None:
        """Learn that ``rate`` of ``scores`` exceeded the threshold."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next decision depends on, as plain numbers."""
        return {
            "target_rate": self.target_rate,
            **{name: getattr(self, name) for name in self.state},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; ``KeyError`` if it lacks a number."""
        for name in ("target_rate", *self.state):
            setattr(self, name, state[name])


class LogIntegral(Controller):
    """Integral control of the log-threshold: ``log t += gain * (rate - target)``. The default.

    Multiplicative Robbins-Monro tracking of a quantile; scale-free, so it needs no tuning: with
    ``f`` the density of log-scores at the threshold it is stable for ``gain * f < 2``, and on
    scores that decay as ``exp(-step / tau)`` its rate is off by ``-1 / (tau * gain)``. It starts at
    the first batch's quantile. Scores that can be negative have no logarithm: then the threshold
    itself moves, by ``gain * spread * (rate - target)``, with the running mean absolute deviation
    of the scores as spread.

    Args:
        gain: step size, > 0.
        signed: whether scores can be negative; ``None`` looks at the first batch.
    """

    state = ("value", "spread", "signed")
    smallest = 1e-30  # below any loss worth telling from zero, and its logarithm is finite

    def __init__(self, target_rate: float, gain: float = 0.5, signed: bool | None = None) -> None:
        super().__init__(target_rate)
        if not gain > 0:
            raise ValueError(f"gain is {gain}, but it must be above 0: 0.5 suits most scores")
        self.gain = gain
        self.signed = signed
        self.value: float | None = None
        self.spread = 0.0

    def threshold(self, scores: Tensor, quota: int) -> float:
        if self.value is None:
            if self.signed is None:
                self.signed = bool((scores < 0).any())
            # float64, because float32 rounding could lift the quantile above its own score
            start = float(torch.quantile(scores.double(), 1 - self.target_rate))
            if start == 0 and not self.signed and bool((scores > 0).any()):
                start = float(scores[scores > 0].min())
            self.value = start if self.signed else max(start, self.smallest)
            self.spread = _deviation(scores)
        return self.value

    def update(self, rate: float, scores: Tensor) -> None:
        if self.value is None:
            raise RuntimeError("update was called before threshold: ask for a threshold first")
        step = self.gain * (rate - self.target_rate)
        if self.signed:
            self.spread += 0.1 * (_deviation(scores) - self.spread)
            self.value += step * self.spread
        elif step > 0 or bool(((scores > 0) & (scores <= self.value)).any()):
            # where every score above zero is active, a lower threshold would only wind up
            self.value = min(max(self.value * math.exp(step), self.smallest), 1 / self.smallest)


def _deviation(scores: Tensor) -> float:
    scores = scores.double()  # whole numbers have no mean, half precision a poor one
    return float((scores - scores.mean()).abs().mean())


class OriginPI(Controller):
    """The origin's controller, exactly: PI on an EMA of the batch rate, added to the threshold.

    ``ema += alpha * (rate - ema)``; ``e = ema - target``; ``t += kp * e + ki * integral``, then the
    integral takes ``e`` in (clamped to +-50) if the unclamped threshold lies within (0.01, 0.99),
    else it decays by 0.9; last the threshold is clamped to [0, 1]. Since ``t`` accumulates, ``kp``
    acts as an integral gain and ``ki`` as a double one. Source: ``SundewAlgorithm`` in
    KAGGLE_VIT_BATCHED_STANDALONE.py and its report's constants; the report describes the EMA over
    batch rates, as here, while that code feeds it the rate since the start.
    """

    state = ("value", "rate_ema", "integral")

    def __init__(
        self,
        target_rate: float,
        kp: float = 0.0015,
        ki: float = 0.00005,
        alpha: float = 0.3,
        start: float = 0.5,
    ) -> None:
        super().__init__(target_rate)
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


class TopK(Controller):
    """The best ``quota`` rows of every batch: the exact rate, no memory, nothing to tune."""

    held = False

    def threshold(self, scores: Tensor, quota: int) -> float:
        if quota == 0:
            return math.inf
        return float(scores.topk(quota, sorted=True).values[-1])

    def update(self, rate: float, scores: Tensor) -> None:
        """Nothing to learn: the next batch has its own threshold."""
