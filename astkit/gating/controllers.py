"""Controllers: they move a threshold so that the wanted share of samples exceeds it.

The interface, the default controller and the exact one; others are in `astkit.gating.tracking` and
`astkit.gating.origin`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from astkit.gating.cards import Card
from astkit.gating.density import density

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
    """A number as an attribute of a class: values outside ``rule`` of `_RULES` are refused."""
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


class ScaleFree(Controller):
    """A threshold that starts at the first batch's quantile and moves in units of the scores' own.

    Scores that are never negative move it on a log scale. Negative scores have no logarithm: from
    the first batch that holds one, the threshold itself moves, in units of the scores' spread, a
    running mean absolute deviation.

    Args:
        signed: whether scores can be negative; ``None`` until one is, ``False`` refuses them.

    Attributes:
        additive: whether the threshold itself moves, not its logarithm.
    """

    state: ClassVar[tuple[str, ...]] = ("value", "spread", "additive")
    smallest = 1e-30  # below any loss worth telling from zero, and its logarithm is finite

    def __init__(self, target_rate: float, signed: bool | None = None) -> None:
        super().__init__(target_rate)
        self.signed, self.additive = signed, signed is True
        self.value: float | None = None
        self.spread = 0.0

    def threshold(self, scores: Tensor, quota: int) -> float:
        # a batch of zeros tells no scale, so the first batch that tells one is the start
        if self.value is None or (self.value == self.smallest and bool((scores > 0).any())):
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
        if found == 0 and bool((scores > 0).any()):
            found = float(scores[scores > 0].min())
        return max(found, self.smallest)

    def update(self, rate: float, scores: Tensor) -> None:
        if self.value is None:
            raise RuntimeError("update was called before threshold: ask for a threshold first")
        self._check_sign(scores)
        self.value = self.moved(self.value, rate, scores)

    @abstractmethod
    def moved(self, value: float, rate: float, scores: Tensor) -> float:
        """The threshold that follows ``value``, which ``rate`` of ``scores`` exceeded."""

    def _check_sign(self, scores: Tensor) -> None:
        if self.additive or not bool((scores < 0).any()):
            return
        if self.signed is False:
            raise ValueError(
                f"signed is False, but scores go down to {float(scores.min()):.6g}: give"
                " signed=None, or a score that is never negative"
            )
        self.become_additive(scores)

    def become_additive(self, scores: Tensor) -> None:
        """Move the threshold itself from now on, in units of the spread of ``scores`` at first."""
        self.additive, self.spread = True, _deviation(scores)

    def stuck(self, value: float, step: float, scores: Tensor) -> bool:
        """Whether ``value`` cannot or should not move in the direction of ``step``."""
        if self.additive:
            return False
        if step > 0:
            # while all scores are zero there is no scale to move on
            return value >= 1 / self.smallest or (
                value <= self.smallest and not bool((scores > 0).any())
            )
        # where every score above zero is active, a lower threshold would only wind up
        return value <= self.smallest or not bool(((scores > 0) & (scores <= value)).any())

    def shifted(self, value: float, step: float, scores: Tensor) -> float:
        """``value`` with ``step`` added to its logarithm, or ``step`` spreads if additive."""
        if self.additive:
            self.spread += 0.1 * (_deviation(scores) - self.spread)
            return value + step * self.spread
        if self.stuck(value, step, scores):
            return value
        return min(max(value * math.exp(step), self.smallest), 1 / self.smallest)


def _deviation(scores: Tensor) -> float:
    scores = scores.double()  # whole numbers have no mean, half precision a poor one
    return float((scores - scores.mean()).abs().mean())


class LogIntegral(ScaleFree):
    """Integral control of the log-threshold: ``log t += gain * (rate - target)``. The default.

    Scale-free, so it needs no tuning: with ``f`` the density of log-scores at the threshold it is
    stable for ``gain * f < 2``, and on scores that decay as ``exp(-step / tau)`` its rate is off by
    ``-1 / (tau * gain)``. After a negative score the threshold itself moves, by ``gain * spread *
    (rate - target)``, and ``f`` is the density of ``score / spread``; see `ScaleFree`.

    ``gain="auto"`` sets the gain to ``0.25 / f``, within 0.01 to 5, with ``f`` measured at each
    batch's own quantile and averaged over batches (geometrically, 0.1 for the newest); the rate
    then scatters 7 % more than that of a perfect threshold.

    Args:
        gain: step size, > 0, or "auto"; read back, it is the number in use.
        signed: whether scores can be negative; ``None`` until one is, ``False`` refuses them.
    """

    gains = ("gain",)
    state = (*ScaleFree.state, "auto", "density")
    damping = 0.25  # gain * f that "auto" keeps: sqrt(1 + 0.25 / 1.75) = 1.07 times the scatter
    _gain: float = checked("above 0", '0.5 suits most scores, "auto" measures them')
    card = Card(
        law="log t += gain * (rate - target)",
        good_for="the default: any scores, any scale, nothing to tune",
        stability=(
            "stable iff gain * f < 2, f = density of log-scores at the threshold; the rate's"
            " standard deviation is sqrt(1 + gain f / (2 - gain f)) times the binomial one"
        ),
        source="multiplicative Robbins-Monro (1951) quantile tracking; arXiv 2307.16895, P control",
    )

    def __init__(
        self,
        target_rate: float,
        gain: float | str = 0.5,
        signed: bool | None = None,
    ) -> None:
        super().__init__(target_rate, signed)
        self.density: float | None = None
        self._gain = 0.5  # what "auto" starts from
        self.gain = gain

    @property
    def gain(self) -> float:
        """The step size in use, > 0."""
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

    def become_additive(self, scores: Tensor) -> None:
        super().become_additive(scores)
        self.density = None  # it was one of log-scores

    def moved(self, value: float, rate: float, scores: Tensor) -> float:
        if self.auto:
            self._measure(scores)
        return self.shifted(value, self.gain * (rate - self.target_rate), scores)

    def _measure(self, scores: Tensor) -> None:
        found = self._density(scores) if len(scores) > 1 else 0.0
        if 0 < found < math.inf:  # a batch of equal scores has no density
            before = found if self.density is None else self.density
            self.density = before * (found / before) ** 0.1

    def _density(self, scores: Tensor) -> float:
        scores, at = scores.double(), self.wanted(scores)
        if not self.additive:
            return density(scores.log(), math.log(at))
        return density(scores / self.spread, at / self.spread) if self.spread else 0.0


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
