"""Controllers: they move a threshold so that the wanted share of samples exceeds it.

One small interface: ``threshold(scores, quota)`` before a decision, ``update(rate, scores)`` after
it, and a state of plain numbers. Here are the default controller and the exact one; others live in
`astkit.gating.tracking` and `astkit.gating.origin`.
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
from astkit.gating.gains import Gain, positive

Draw = Callable[[str], Tensor]


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
    the whole batch first cannot steer a sample-by-sample pass. ``gains`` names the attributes that
    a user may turn while running, besides the target rate; ``state`` those that make up the saved
    state, besides these. ``card`` describes the controller for tables, see `astkit.gating.cards`.

    Args:
        target_rate: set point: wanted share of samples, in (0, 1]; may be turned while running.
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
        the quota. ``draw(purpose)`` gives one number in [0, 1) a row, float32 ``[batch]``: other
        ones for each purpose and batch, and the same again for the same gate's seed.
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

    Scores that are never negative move it on a log scale. Others have no logarithm: then the
    threshold itself moves, in units of the scores' spread, a running mean absolute deviation.

    Args:
        signed: whether scores can be negative; ``None`` looks at the first batch.
    """

    state: ClassVar[tuple[str, ...]] = ("value", "spread", "signed")
    smallest = 1e-30  # below any loss worth telling from zero, and its logarithm is finite

    def __init__(self, target_rate: float, signed: bool | None = None) -> None:
        super().__init__(target_rate)
        self.signed = signed
        self.value: float | None = None
        self.spread = 0.0

    def threshold(self, scores: Tensor, quota: int) -> float:
        # a batch of zeros tells no scale, so the first batch that tells one is the start
        if self.value is None or (self.value == self.smallest and bool((scores > 0).any())):
            if self.signed is None:
                self.signed = bool((scores < 0).any())
            self.value = self.wanted(scores)
            self.spread = _deviation(scores)
        return self.value

    def quantile(self, scores: Tensor) -> float:
        """The quantile of ``scores [batch]`` at ``1 - target_rate``."""
        # float64, because float32 rounding could lift the quantile above its own score
        return float(torch.quantile(scores.double(), 1 - self.target_rate))

    def wanted(self, scores: Tensor) -> float:
        """The threshold that would have suited ``scores [batch]``; above 0 unless signed."""
        found = self.quantile(scores)
        if found == 0 and not self.signed and bool((scores > 0).any()):
            found = float(scores[scores > 0].min())
        return found if self.signed else max(found, self.smallest)

    def started(self) -> float:
        """The threshold; ``RuntimeError`` if it was never asked for."""
        if self.value is None:
            raise RuntimeError("update was called before threshold: ask for a threshold first")
        return self.value

    def stuck(self, step: float, scores: Tensor) -> bool:
        """Whether the threshold can or should not move in the direction of ``step``."""
        value = self.started()
        if self.signed:
            return False
        if step > 0:
            # while all scores are zero there is no scale to move on
            return value >= 1 / self.smallest or (
                value <= self.smallest and not bool((scores > 0).any())
            )
        # where every score above zero is active, a lower threshold would only wind up
        return value <= self.smallest or not bool(((scores > 0) & (scores <= value)).any())

    def move(self, step: float, scores: Tensor) -> None:
        """Add ``step`` to the log-threshold, or ``step`` spreads to a signed one."""
        value = self.started()
        if self.signed:
            self.spread += 0.1 * (_deviation(scores) - self.spread)
            self.value = value + step * self.spread
        elif not self.stuck(step, scores):
            self.value = min(max(value * math.exp(step), self.smallest), 1 / self.smallest)


def _deviation(scores: Tensor) -> float:
    scores = scores.double()  # whole numbers have no mean, half precision a poor one
    return float((scores - scores.mean()).abs().mean())


class LogIntegral(ScaleFree):
    """Integral control of the log-threshold: ``log t += gain * (rate - target)``. The default.

    Multiplicative Robbins-Monro tracking of a quantile; scale-free, so it needs no tuning: with
    ``f`` the density of log-scores at the threshold it is stable for ``gain * f < 2``, and on
    scores that decay as ``exp(-step / tau)`` its rate is off by ``-1 / (tau * gain)``. It starts at
    the first batch's quantile. Scores that can be negative have no logarithm: then the threshold
    itself moves, by ``gain * spread * (rate - target)``, with the running mean absolute deviation
    of the scores as spread, and ``f`` is the density of ``score / spread``.

    ``gain="auto"`` sets the gain to ``damping / f``, within 0.01 to 5, with ``f`` measured at each
    batch's own quantile and averaged over batches (geometrically, 0.1 for the newest).

    Args:
        gain: step size, > 0, or "auto". Read back it is the number in use; setting a number takes
            over from "auto".
        signed: whether scores can be negative; ``None`` looks at the first batch.
        damping: ``gain * f`` that "auto" keeps, in (0, 2); the rate then scatters
            ``sqrt(1 + damping / (2 - damping))`` times as much as that of a perfect threshold.
    """

    gains = ("gain",)
    state = (*ScaleFree.state, "auto", "damping", "density")
    damping = Gain("above 0 and below 2", lambda value: 0 < value < 2, "0.25 adds 7 % of noise")
    _gain = positive('0.5 suits most scores, "auto" measures them')
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
        damping: float = 0.25,
    ) -> None:
        super().__init__(target_rate, signed)
        self.density: float | None = None
        self.damping = damping
        self.gain = 0.5  # what "auto" starts from
        self.gain = gain

    @property
    def gain(self) -> float:
        """The step size in use, > 0."""
        if self.auto and self.density is not None:
            return min(max(self.damping / self.density, 0.01), 5.0)
        return self._gain

    @gain.setter
    def gain(self, gain: float | str) -> None:
        self.auto = gain == "auto"
        if not isinstance(gain, str):
            self._gain = gain
        elif not self.auto:
            raise ValueError(f'gain is {gain!r}, but it must be a number above 0 or "auto"')

    def update(self, rate: float, scores: Tensor) -> None:
        self.started()
        if self.auto:
            self._measure(scores)
        self.move(self.gain * (rate - self.target_rate), scores)

    def _measure(self, scores: Tensor) -> None:
        found = self._density(scores) if len(scores) > 1 else 0.0
        if 0 < found < math.inf:  # a batch of equal scores has no density
            before = found if self.density is None else self.density
            self.density = before * (found / before) ** 0.1

    def _density(self, scores: Tensor) -> float:
        scores, at = scores.double(), self.wanted(scores)
        if not self.signed:
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
