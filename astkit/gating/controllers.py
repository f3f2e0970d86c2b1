"""Controllers: adapt the threshold so that a target rate of samples exceeds it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from astkit import distributed
from astkit.gating.cards import Card


def check_rate(name: str, rate: float) -> float:
    """``rate`` as a float; ``ValueError`` unless it lies in (0, 1]."""
    if not 0 < rate <= 1:  # also rejects NaN
        raise ValueError(
            f"{name} is {rate}, but a rate is a share of the samples: give a number above 0 and at"
            " most 1, such as 0.1"
        )
    return float(rate)


_RULES: dict[str, Callable[[float], bool]] = {  # comparisons also reject NaN
    "above 0": lambda value: 0 < value < math.inf,
    "0 or above": lambda value: 0 <= value < math.inf,
    "above 0 and at most 1": lambda value: 0 < value <= 1,
}


class _Checked:
    """A numeric attribute; raises ``ValueError`` for values that violate ``rule``."""

    def __init__(self, rule: str, advice: str) -> None:
        self.rule, self.advice = rule, advice

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, instance: Any, value: float) -> None:
        if not isinstance(value, int | float) or not _RULES[self.rule](value):
            name = self.name.lstrip("_")
            raise ValueError(f"{name} is {value}, but it must be {self.rule}: {self.advice}")
        vars(instance)[self.name] = float(value)


checked: Any = _Checked  # for the type checker, such an attribute is a float


class Controller(ABC):
    """Base class of threshold controllers.

    With several processes (`astkit.distributed`), each calls ``threshold`` and ``update`` with the
    scores of its own rows; use `pooled_rate` in ``update`` to keep the thresholds equal.

    Attributes:
        held: whether the threshold is known before the batch is scored, which sample-by-sample
            decisions require.
        gains: attributes, besides the target rate, that may be changed during training.
        state: further attributes to include in ``state_dict``.
        card: description of the controller.
    """

    held: ClassVar[bool] = True
    gains: ClassVar[tuple[str, ...]] = ()
    state: ClassVar[tuple[str, ...]] = ()
    card: ClassVar[Card]

    def __init__(self, target_rate: float) -> None:
        self.target_rate = target_rate

    @property
    def target_rate(self) -> float:
        """Set point: fraction of active samples, in (0, 1]; may be changed during training."""
        return self._target_rate

    @target_rate.setter
    def target_rate(self, rate: float) -> None:
        self._target_rate = check_rate("target_rate", rate)

    @abstractmethod
    def threshold(self, scores: Tensor, quota: int) -> float:
        """Threshold for finite ``scores [batch]``; the target is ``quota`` active rows."""

    @abstractmethod
    def update(self, rate: float, scores: Tensor) -> None:
        """Update the controller; ``rate`` is the fraction of ``scores`` above the threshold."""

    def state_dict(self) -> dict[str, Any]:
        """State that determines the next decision, as plain numbers."""
        names = ("target_rate", *self.gains, *self.state)
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state``; raises ``KeyError`` for a missing entry."""
        for name in ("target_rate", *self.gains, *self.state):
            setattr(self, name, state[name])


def pooled_rate(rate: float, rows: int) -> float:
    """Fraction of active samples over all processes, of which this one has ``rate`` of ``rows``."""
    if distributed.world() == 1:
        return rate
    selected, offered = distributed.total(round(rate * rows), rows)
    return selected / offered


class TopK(Controller):
    """Selects the ``quota`` highest scores of each batch: exact rate, stateless, no gains."""

    held = False
    card = Card(
        law="t = the quota-th largest score of the batch",
        good_for="an exact rate in every batch; not for sample-by-sample use",
        stability="not applicable: no feedback",
        source="as in selective backprop of mosaicml/composer and airbench96_faster",
    )

    def threshold(self, scores: Tensor, quota: int) -> float:
        if quota == 0:
            return math.inf
        return float(scores.topk(quota, sorted=True).values[-1])

    def update(self, rate: float, scores: Tensor) -> None:
        """Does nothing: the threshold is computed from each batch."""


class ScaleFree(Controller):
    """Base class of threshold controllers that adapt to the scale of the scores.

    Starts at the quantile of the first batch. Updates the logarithm of the threshold; from the
    first negative score on, the threshold itself. With several processes, quantile and scores are
    those of the global batch.

    Attributes:
        additive: whether updates are added to the threshold rather than to its logarithm.
        distribution: whether `moved` needs all scores, and not only their least values.
    """

    state: ClassVar[tuple[str, ...]] = ("value", "additive")
    distribution: bool = False
    smallest = 1e-30  # the lowest threshold on the log scale

    def __init__(self, target_rate: float) -> None:
        super().__init__(target_rate)
        self.value: float | None = None
        self.additive = False

    def threshold(self, scores: Tensor, quota: int) -> float:
        # a batch of zeros has no scale: initialise at the first batch with a positive score
        if self.value is None or self.value == self.smallest:
            scores = distributed.pooled(scores)
            if self.value is None or least_positive(scores) < math.inf:
                self._check_sign(scores)
                self.value = self.wanted(scores)
        return self.value

    def quantile(self, scores: Tensor) -> float:
        """The quantile of ``scores [batch]`` at ``1 - target_rate``."""
        # float64: with float32, rounding can place the quantile above its own score
        return float(torch.quantile(scores.double(), 1 - self.target_rate))

    def wanted(self, scores: Tensor) -> float:
        """Quantile threshold of ``scores [batch]``; above 0 unless additive."""
        found = self.quantile(scores)
        if self.additive:
            return found
        if found == 0 and (least := least_positive(scores)) < math.inf:
            found = least
        return max(found, self.smallest)

    def update(self, rate: float, scores: Tensor) -> None:
        assert self.value is not None, "update needs a threshold: call threshold first"
        if distributed.world() > 1:
            rate, scores = pooled_rate(rate, len(scores)), self._pooled(scores)
        self._check_sign(scores)
        self.value = self.moved(self.value, rate, scores)

    def _pooled(self, scores: Tensor) -> Tensor:
        """The scores of all processes, or only the lowest and the least positive one."""
        lowest, least = distributed.least(float(scores.amin()), least_positive(scores))
        if self.additive or self.distribution or lowest < 0:
            return distributed.pooled(scores)
        return torch.tensor([lowest, least], dtype=torch.float64)

    @abstractmethod
    def moved(self, value: float, rate: float, scores: Tensor) -> float:
        """Next threshold after ``value``, which a fraction ``rate`` of ``scores`` exceeded."""

    def _check_sign(self, scores: Tensor) -> None:
        if not self.additive and float(scores.amin()) < 0:
            self.become_additive(scores)

    def become_additive(self, scores: Tensor) -> None:
        """Switch to additive updates, at the first batch ``scores`` with a negative score."""
        self.additive = True


def least_positive(scores: Tensor) -> float:
    """Smallest positive value of ``scores [batch]``; infinity if there is none."""
    least = float(scores.amin())
    if least > 0:
        return least
    positive = scores[scores > 0]
    return float(positive.amin()) if len(positive) else math.inf
