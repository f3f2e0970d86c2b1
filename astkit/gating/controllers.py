"""Controllers: they move a threshold so that the wanted share of samples exceeds it.

The interface, the exact `TopK`, and the base class of those in `astkit.gating.tracking`; the
original's are in `astkit.gating.origin`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from astkit.gating.cards import Card

Draw = Callable[[str], Tensor]


def check_rate(name: str, rate: float) -> float:
    """``rate`` as a float; ``ValueError`` unless it lies in (0, 1]."""
    if not 0 < rate <= 1:  # also refuses NaN
        raise ValueError(
            f"{name} is {rate}, but a rate is a share of the samples: give a number above 0 and at"
            " most 1, such as 0.1"
        )
    return float(rate)


_RULES: dict[str, Callable[[float], bool]] = {  # comparisons also refuse NaN
    "above 0": lambda value: 0 < value < math.inf,
    "0 or above": lambda value: 0 <= value < math.inf,
    "above 0 and at most 1": lambda value: 0 < value <= 1,
}


def checked(rule: str, advice: str) -> Any:
    """A numeric attribute of a class; setting a value outside ``rule`` raises ``ValueError``."""
    return _Checked(rule, advice)


class _Checked:
    def __init__(self, rule: str, advice: str) -> None:
        self.rule, self.advice = rule, advice

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, instance: Any, value: float) -> None:
        if not isinstance(value, int | float) or not _RULES[self.rule](value):
            name = self.name.lstrip("_")
            raise ValueError(f"{name} is {value}, but it must be {self.rule}: {self.advice}")
        vars(instance)[self.name] = float(value)


class Controller(ABC):
    """A threshold that follows a target rate.

    Args:
        target_rate: set point: wanted share of samples, in (0, 1]; may be changed while training.

    Attributes:
        held: whether the threshold is known before a batch is scored, so that samples can be
            decided one by one.
        gains: attributes that may be changed while training, besides the target rate.
        state: attributes that make up the saved state, besides these.
        card: the controller in words.
    """

    held: ClassVar[bool] = True
    gains: ClassVar[tuple[str, ...]] = ()
    state: ClassVar[tuple[str, ...]] = ()
    card: ClassVar[Card]

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

    def decide(self, scores: Tensor, threshold: float, draw: Draw) -> Tensor | None:
        """Which rows of finite ``scores [batch]`` are active, bool ``[batch]``.

        ``None``, the default, leaves it to the gate: active above the threshold, ties drawn up to
        the quota. ``draw(purpose)`` gives one uniform number in [0, 1) a row, float32 ``[batch]``,
        that depends on the purpose, the batch and the gate's seed alone.
        """
        return None

    @abstractmethod
    def update(self, rate: float, scores: Tensor) -> None:
        """Learn that ``rate`` of ``scores`` exceeded the threshold."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next decision depends on, as plain numbers."""
        names = ("target_rate", *self.gains, *self.state)
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; ``KeyError`` if it lacks a number."""
        for name in ("target_rate", *self.gains, *self.state):
            setattr(self, name, state[name])


class TopK(Controller):
    """The best ``quota`` rows of every batch: the exact rate, no memory, nothing to tune."""

    held = False
    card = Card(
        law="t = the quota-th largest score of the batch",
        good_for="an exact rate in every batch; not for row-by-row use, and blind across batches",
        stability="none needed: there is no feedback",
        source="as in selective backprop of mosaicml/composer and airbench96_faster",
    )

    def threshold(self, scores: Tensor, quota: int) -> float:
        if quota == 0:
            return math.inf
        return float(scores.topk(quota, sorted=True).values[-1])

    def update(self, rate: float, scores: Tensor) -> None:
        """Nothing to learn: the next batch has its own threshold."""


class ScaleFree(Controller):
    """A threshold that starts at the first batch's quantile and adapts to the scale of the scores.

    For non-negative scores it moves on a log scale. From the first batch with a negative score on,
    the threshold itself moves, in units of a running mean absolute deviation of the scores.

    Attributes:
        additive: whether the threshold itself moves, not its logarithm.
    """

    state: ClassVar[tuple[str, ...]] = ("value", "spread", "additive")
    smallest = 1e-30  # the lowest threshold on the log scale

    def __init__(self, target_rate: float) -> None:
        super().__init__(target_rate)
        self.additive = False
        self.value: float | None = None
        self.spread = 0.0

    def threshold(self, scores: Tensor, quota: int) -> float:
        # batches of zeros have no scale, so the first batch with a positive score is the start
        if self.value is None or (
            self.value == self.smallest and least_positive(scores) < math.inf
        ):
            self._check_sign(scores)
            self.value = self.wanted(scores)
            self.spread = _deviation(scores)
        return self.value

    def quantile(self, scores: Tensor) -> float:
        """The quantile of ``scores [batch]`` at ``1 - target_rate``."""
        # float64, because float32 rounding could lift the quantile above its own score
        return float(torch.quantile(scores.double(), 1 - self.target_rate))

    def wanted(self, scores: Tensor) -> float:
        """The threshold that would have suited ``scores [batch]``; above 0 unless additive."""
        found = self.quantile(scores)
        if self.additive:
            return found
        if found == 0 and (least := least_positive(scores)) < math.inf:
            found = least
        return max(found, self.smallest)

    def update(self, rate: float, scores: Tensor) -> None:
        assert self.value is not None, "update needs a threshold: call threshold first"
        self._check_sign(scores)
        self.value = self.moved(self.value, rate, scores)

    @abstractmethod
    def moved(self, value: float, rate: float, scores: Tensor) -> float:
        """The threshold that follows ``value``, which ``rate`` of ``scores`` exceeded."""

    def _check_sign(self, scores: Tensor) -> None:
        if not self.additive and float(scores.amin()) < 0:
            self.become_additive(scores)

    def become_additive(self, scores: Tensor) -> None:
        """Move the threshold itself from now on; the spread of ``scores`` is the first unit."""
        self.additive, self.spread = True, _deviation(scores)

    def stuck(self, value: float, step: float, scores: Tensor) -> bool:
        """Whether ``value`` cannot or should not move in the direction of ``step``."""
        if self.additive:
            return False
        if step > 0:  # batches of zeros have no scale to move on
            lowest = value <= self.smallest and least_positive(scores) == math.inf
            return lowest or value >= 1 / self.smallest
        # where every positive score is active, a lower threshold would only wind up
        return value <= self.smallest or value < least_positive(scores)

    def shifted(self, value: float, step: float, scores: Tensor) -> float:
        """``value`` with ``step`` added to its logarithm, or ``step`` spreads if additive."""
        if self.additive:
            self.spread += 0.1 * (_deviation(scores) - self.spread)
            return value + step * self.spread
        if self.stuck(value, step, scores):
            return value
        return min(max(value * math.exp(step), self.smallest), 1 / self.smallest)


def least_positive(scores: Tensor) -> float:
    """The smallest of ``scores [batch]`` above 0; infinite where there is none."""
    least = float(scores.amin())
    if least > 0:
        return least
    positive = scores[scores > 0]
    return float(positive.amin()) if len(positive) else math.inf


def _deviation(scores: Tensor) -> float:
    scores = scores.double()  # a mean of integers is an error, one of half precision is inexact
    return float((scores - scores.mean()).abs().mean())
