"""Decisions on a batch of scores in descending order, in tensors alone: no number is read off one.

What `DeviceGate` is made of. Shapes follow from Python numbers, so all of it can be compiled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from astkit.gating.cards import Card
from astkit.gating.controllers import Controller, ScaleFree
from astkit.gating.gains import positive

COUNTERS = ("seen", "active", "fallback_rows", "nonfinite", "overflow", "negative")
COLUMNS = ("rate", "threshold", "overflow")


class Ranked(NamedTuple):
    """A batch of scores in descending order."""

    best: Tensor  # [batch], -inf where the score was not finite
    rows: Tensor  # int64 [batch], where each stood; of equal ones the earlier row comes first
    finite: Tensor  # int64 0-dim, how many were finite


def rank(scores: Tensor) -> Ranked:
    """``scores [batch]`` from the best to the worst."""
    scores = scores.detach() if scores.is_floating_point() else scores.double()
    finite = scores.isfinite()
    kept = scores.masked_fill(~finite, -math.inf)
    best, rows = kept.sort(descending=True, stable=True)
    return Ranked(best, rows, finite.sum())


def quantile(ranked: Ranked, target_rate: float) -> Tensor:
    """The quantile of the finite scores at ``1 - target_rate``, float64 0-dim; as torch's own."""
    place = (1 - target_rate) * (ranked.finite - 1).clamp(min=0).double()
    below, above = place.floor().long(), place.ceil().long()
    around = torch.stack([below, above])
    values = ranked.best.double()[(ranked.finite - 1).clamp(min=0) - around]
    return torch.lerp(values[0], values[1], place - below)


class DeviceLogIntegral(Controller):
    """`LogIntegral` for scores that are never negative, its threshold a 0-dim tensor.

    The law, its start and its limits are the same. Rows with negative scores are never active.

    Args:
        gain: step size, > 0; "auto" is not to be had here.
    """

    held = False
    gains = ("gain",)
    state = ("value",)
    gain = positive("0.5 suits most scores")
    card = Card(
        law="log t += gain * (rate - target), on the device",
        good_for="a GPU, where reading a number waits for all the work that is queued",
        stability="as log_integral: stable iff gain * f < 2, f = density of log-scores at t",
        source="multiplicative Robbins-Monro (1951) quantile tracking; arXiv 2307.16895, P control",
    )

    def __init__(self, target_rate: float, gain: float = 0.5) -> None:
        super().__init__(target_rate)
        self.gain = gain
        self.level = torch.full((), math.nan, dtype=torch.float64)  # NaN before the first batch

    @property
    def value(self) -> float | None:
        """The threshold, ``None`` before the first batch. Reading it waits for the device."""
        level = float(self.level)
        return None if math.isnan(level) else level

    @value.setter
    def value(self, value: float | None) -> None:
        self.level.fill_(math.nan if value is None else value)

    def threshold(self, scores: Tensor, quota: int) -> float:
        """The threshold for this batch, read off the device: for the ordinary gate."""
        self.level = self.level.to(scores.device)
        self.level.copy_(started(self.level, rank(scores), self.target_rate))
        return float(self.level)

    def update(self, rate: float, scores: Tensor) -> None:
        """Move the threshold, after ``rate`` of the batch exceeded it: for the ordinary gate."""
        step = self.level.new_full((), self.gain * (rate - self.target_rate))
        self.level.copy_(moved(self.level, step, rank(scores)))


def started(level: Tensor, ranked: Ranked, target_rate: float) -> Tensor:
    """``level``, or the batch's own quantile where there is no level yet; see `ScaleFree`."""
    smallest, best = ScaleFree.smallest, ranked.best
    found = quantile(ranked, target_rate)
    least = torch.where(best > 0, best, math.inf).amin().double()
    scaled = least < math.inf
    found = torch.where((found == 0) & scaled, least, found).clamp(min=smallest)
    # a batch of zeros tells no scale, so the first batch that tells one is the start
    fresh = level.isnan() | ((level == smallest) & scaled)
    return torch.where(fresh, found, level)  # found is NaN where no score is finite


def moved(level: Tensor, step: Tensor, ranked: Ranked) -> Tensor:
    """``level * exp(step)`` within its limits; see `ScaleFree.stuck`."""
    positive = ranked.best > 0
    # where every score above zero is active, a lower threshold would only wind up; and while all
    # scores are zero there is no scale to rise on
    falls = (positive & (ranked.best <= level)).any()
    free = torch.where(step > 0, (level > ScaleFree.smallest) | positive.any(), falls)
    stepped = (level * step.exp()).clamp(ScaleFree.smallest, 1 / ScaleFree.smallest)
    return torch.where(free, stepped, level)


class Decision(NamedTuple):
    """What was decided on a batch, all of it on the device."""

    rows: Tensor  # int64 [size], the rows to train on
    weight: Tensor  # float32 [size], 0 or 1
    fallback: Tensor  # bool 0-dim, whether the fallback added rows
    counts: Tensor  # int64 [6], what the batch adds to each of COUNTERS
    log: Tensor  # float64 [3], COLUMNS of this batch
    level: Tensor  # float64 0-dim, the threshold of the next batch


def fixed_k(
    scores: Tensor, quota: int, size: int, fallback: int, min_active: int, least: float | None
) -> Decision:
    """The ``quota`` best rows of ``scores [batch]`` are active, whatever their scores.

    ``size`` rows are taken. ``least`` is reported as the threshold; by default the score of the
    ``quota``-th row.
    """
    ranked = rank(scores)
    level = (
        ranked.best[quota - 1].double()
        if least is None
        else torch.full((), least, dtype=torch.float64, device=scores.device)
    )
    count = ranked.finite.clamp(max=quota)
    return _decision(
        ranked, count, size, fallback, min_active, level, count.double() / ranked.finite, level
    )


def capacity(
    scores: Tensor,
    level: Tensor,
    target_rate: float,
    gain: float,
    size: int,
    fallback: int,
    min_active: int,
) -> Decision:
    """The rows of ``scores [batch]`` above the threshold are active, which then moves.

    ``level`` is the threshold so far, float64 0-dim, NaN before the first batch; ``size`` rows are
    taken.
    """
    ranked = rank(scores)
    threshold = started(level, ranked, target_rate)
    count = (ranked.best > threshold).sum()
    rate = count.double() / ranked.finite
    after = moved(threshold, gain * (rate - target_rate), ranked)
    return _decision(ranked, count, size, fallback, min_active, threshold, rate, after)


def _decision(
    ranked: Ranked,
    count: Tensor,
    size: int,
    fallback: int,
    min_active: int,
    threshold: Tensor,
    rate: Tensor,
    level: Tensor,
) -> Decision:
    """The ``size`` best rows, the first ``count`` (0-dim) with weight 1 and the others with 0.

    Where fewer than ``min_active`` rows count, the best rows up to ``fallback`` do. In the place of
    rows without a finite score stands the best row once more, weighing nothing, since a loss of NaN
    would spoil the sum whatever its weight.
    """
    finite = ranked.finite
    filled = (finite.clamp(max=fallback) - count).clamp(min=0)
    added = torch.where(count < min_active, filled, 0)
    places = torch.arange(size, device=finite.device)
    usable = places < finite
    weight = (places < count + added).float()
    overflow = (count - size).clamp(min=0)
    nonfinite = len(ranked.best) - finite
    negative = (ranked.best < 0).sum() - nonfinite
    return Decision(
        torch.where(usable, ranked.rows[:size], ranked.rows[:1]),
        weight,
        added > 0,
        torch.stack((finite, count, added, nonfinite, overflow, negative)),
        torch.stack((rate, threshold, overflow)).double(),
        level,
    )
