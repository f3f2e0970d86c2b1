"""Which data to train on: old rows, target rows, both, and in which share, judged on the target.

Cross-validation over the target: a proxy, fitted to old rows and to some of the target's as a
`Decision` says, is judged on target rows that it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from astkit import rng
from astkit.aim.differ import WeightsOf
from astkit.aim.proxies import POINTS, RMSE, Proxy
from astkit.aim.sides import Sides
from astkit.datasets.dependence import Array, autocorrelation_time, block_length, block_numbers

Fold = tuple[Array, Array]
"""Rows of the target to fit, and to judge: int64 each."""

RANDOM_FOLDS = 4
FORWARD_PARTS = 4
"""Parts of a target in order: models of the first ones are judged on the next."""
Z = 1.96


@dataclass(frozen=True)
class Decision:
    """What a training would be done on.

    Attributes:
        old: whether old rows take part; ``times``: how often a target row counts, 0 for not at all.
        weighted: whether old rows count by the ratio of the target's density to theirs, taken to a
            ``power``. Source of the powers: Shimodaira, "Improving predictive inference under
            covariate shift", 2000.
    """

    old: bool = True
    times: int = 0
    weighted: bool = False
    power: float = 1.0

    @property
    def shaped(self) -> bool:
        """Whether rows of the target take part, or weigh old ones."""
        return self.weighted or self.times > 0

    @property
    def name(self) -> str:
        """As "old", "both x4", "weighted both", "target"."""
        rows = "both" if self.old and self.times else "old" if self.old else "target"
        share = f" x{self.times}" if self.old and self.times > 1 else ""
        return f"{'weighted ' if self.weighted else ''}{rows}{share}"


OLD, BOTH, TARGET = Decision(), Decision(times=1), Decision(old=False, times=1)
PLAIN = (OLD, BOTH, Decision(times=4), TARGET)
WEIGHTED, WEIGHTED_BOTH = Decision(weighted=True), Decision(times=1, weighted=True)
FLAT = Decision(weighted=True, power=0.5)
DECISIONS = {each.name: each for each in (*PLAIN, WEIGHTED, WEIGHTED_BOTH)}
"""By name, the simplest first."""


def random_folds(units: Array, seed: int) -> list[Fold]:
    """Folds over whole ``units`` int ``[M]`` in random order."""
    count = int(units.max()) + 1
    place = rng.permutation(count, seed, "decisions").numpy() % min(RANDOM_FOLDS, count)
    fold = place[units]
    return [
        (np.flatnonzero(fold != each), np.flatnonzero(fold == each)) for each in np.unique(fold)
    ]


def forward_folds(units: Array) -> list[Fold]:
    """Folds that go forward: fitted to earlier rows, judged on the next part, a unit between."""
    count = int(units.max()) + 1
    starts = [round(count * part / FORWARD_PARTS) for part in range(FORWARD_PARTS + 1)]
    folds = []
    for begin, end in pairwise(starts[1:]):
        fit = np.flatnonzero(units < max(1, begin - 1))
        judge = np.flatnonzero((units >= begin) & (units < end))
        if len(fit) and len(judge):
            folds.append((fit, judge))
    return folds


@dataclass(frozen=True)
class Judgement:
    """Gains of a decision over training on old rows, in the unit of the metric.

    Attributes:
        losses: of each judged target row, float64 ``[M]``; NaN for others.
        gain, error: on all folds.
    """

    decision: Decision
    losses: Array
    gain: float = 0.0
    error: float = 0.0

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.gain - Z * self.error

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.gain + Z * self.error

    def line(self, **more: Any) -> dict[str, Any]:
        """A line of the table of a `Forecast`."""
        ends = {name: round(getattr(self, name), 2) for name in ("gain", "low", "high")}
        return {"decision": self.decision.name, **ends, **more}


@dataclass(frozen=True)
class Judge:
    """Judges decisions by a proxy that is fitted to old rows and a part of the target's.

    It is judged on the rest of these.

    Attributes:
        sides: old rows and target; ``proxy``: see `astkit.aim.proxies`.
        weights_of: weights of old rows; ``None`` where these are like the target's.
    """

    sides: Sides
    proxy: Proxy
    weights_of: WeightsOf | None

    @cached_property
    def folds(self) -> list[Fold]:
        """Of the target's rows; where these are in order they go forward.

        Rows of a group of which earlier ones are fitted to are then not judged.
        """
        units = self.sides.judged.numpy()
        if not self.sides.forward:
            return random_folds(units, self.sides.seed)
        folds, groups = forward_folds(units), self.sides.target.groups
        if groups is not None:
            own = groups.numpy()
            folds = [(fit, judge[~np.isin(own[judge], own[fit])]) for fit, judge in folds]
        return [(fit, judge) for fit, judge in folds if len(judge)]

    @property
    def said(self) -> str:
        """As "judged by boosted trees on later rows of the target"."""
        others = "later" if self.sides.forward else "other"
        return f"judged by {self.proxy.name} on {others} rows of the target"

    def judge(self, decisions: Sequence[Decision]) -> list[Judgement]:
        """Gains of all ``decisions``, of which the first has to be `OLD`."""
        losses = {each: np.full(len(self.sides.target), np.nan) for each in decisions}
        judged = np.concatenate([judge for _, judge in self.folds])
        for each in decisions:
            if not each.shaped:  # the same in all folds
                losses[each][judged] = self._losses(each, None, judged[:0], judged)
        for fit, judge in self.folds:
            ratio = None
            if self.weights_of is not None and any(each.weighted for each in decisions):
                ratio = self.weights_of(torch.from_numpy(fit), self.sides.sample).numpy()
            for each in decisions:
                if each.shaped:
                    losses[each][judge] = self._losses(each, ratio, fit, judge)
        old = losses[decisions[0]]
        return [Judgement(each, own, *self.gain(old, own)) for each, own in losses.items()]

    def _losses(self, decision: Decision, ratio: Array | None, fit: Array, judge: Array) -> Array:
        sample = len(self.sides.sample)
        weights = np.zeros(sample + len(self.sides.target))
        if decision.old:
            weights[:sample] = len(self.sides.old) / sample  # each stands for several
        if decision.weighted and ratio is not None:
            weights[:sample] *= ratio**decision.power
        weights[sample + fit] = decision.times
        return self.proxy.losses(weights, judge)

    def gain(
        self, old: Array, new: Array, folds: Sequence[int] | None = None
    ) -> tuple[float, float]:
        """Gain and error on the rows of some ``folds``, by default all.

        The error is that over units of rows, or over folds if that is larger. Where these go
        forward it is that of the next part of the time, whose gain varies as those of the folds do.
        """
        chosen = range(len(self.folds)) if folds is None else folds
        judged = [self.folds[fold][1] for fold in chosen]
        rows, units = np.concatenate(judged), self.sides.judged.numpy()
        own = units[rows]
        if self.sides.forward:  # blocks in which gains are alike
            rows = rows[np.argsort(own, kind="stable")]
            length = block_length(autocorrelation_time(old[rows] - new[rows]), len(rows))
            own = block_numbers(len(rows), length)
        whole, error = gain(old[rows], new[rows], self.proxy.unit, own)
        if len(judged) > 2:
            each = [gain(old[part], new[part], self.proxy.unit, units[part])[0] for part in judged]
            of_next = 1.0 if self.sides.forward else 0.0
            error = max(error, float(np.std(each, ddof=1) * (1 / len(each) + of_next) ** 0.5))
        return whole, error


def gain(dense: Array, chosen: Array, unit: str, own: Array) -> tuple[float, float]:
    """Gain in ``unit`` and its standard error, from losses of the same rows, float64 ``[n]`` each.

    Of squared errors it is the reduction of their root mean in percent, with the error of the delta
    method; else the mean difference. ``own``: int ``[n]``, units of rows; infinite error for one.
    """
    if unit != RMSE:
        differences = dense - chosen
        return float(differences.mean()), _error(differences, own)
    if not dense.any():  # nothing is left to gain
        return 0.0, 0.0
    ratio = chosen.mean() / dense.mean()
    spread = _error(chosen - ratio * dense, own) / dense.mean()
    return float(100 * (1 - ratio**0.5)), float(100 * spread / (2 * max(ratio, 1e-12) ** 0.5))


def _error(values: Array, own: Array) -> float:
    """Standard error of the mean of ``values [n]``, which depend on each other within a unit.

    Source: Liang and Zeger, "Longitudinal data analysis using generalized linear models", 1986.
    """
    count = len(np.unique(own))
    if count < 2:
        return np.inf
    sums = np.bincount(own, values - values.mean())
    return float(np.sqrt((sums**2).sum() * count / (count - 1)) / len(values))


def choose(found: Sequence[Judgement], judge: Judge) -> tuple[Judgement, Judgement]:
    """The decision to take, and the same with the gain that is quoted.

    Of those whose gain is sure the simplest within one error of the largest; without any, both
    unless its interval lies below old. The gain that is quoted was chosen on other folds.
    """
    chosen = _simplest(found, [(each.gain, each.error) for each in found])
    alone = len(found) == 2  # then nothing was chosen among several
    if chosen is found[0] or alone or len(judge.folds) < 2:
        return chosen, chosen
    halves = [range(0, len(judge.folds), 2), range(1, len(judge.folds), 2)]
    values = []
    for own, others in (halves, halves[::-1]):
        gains = [judge.gain(found[0].losses, each.losses, own) for each in found]
        best = _simplest(found, gains)
        values.append(judge.gain(found[0].losses, best.losses, others)[0])
    quoted = replace(chosen, gain=float(np.mean(values)))
    if quoted.low > 0:
        return chosen, quoted
    both = both_or_old(found)  # chance chose it
    return both, both


SAID = {
    "old": "train on the old rows",
    "both": "train on both",
    "both x4": "train on both, target rows four times",
    "target": "train on the target's rows alone",
    "weighted old": "train on the old rows, weighted by the target",
    "weighted both": "train on both, old rows weighted by the target",
}


def in_words(decision: Decision) -> str:
    """As "train on both, target rows four times"."""
    return SAID.get(decision.name, f"train on {decision.name}")


def answer(
    quoted: Judgement, found: Sequence[Judgement], unit: str, judged: str, past: str = ""
) -> str:
    """What to train on, and by how much that is better, in one line.

    ``unit``: see `gain`; ``judged``: see `Judge.said`; ``past``: what earlier moments say of it.
    """
    said = f"forecast: {in_words(quoted.decision)}"
    digits = {POINTS: 1, RMSE: 0}.get(unit, 2)
    short = unit.removesuffix(" of the RMSE")
    if past:
        judged = f"on the target's own folds, and {past}"
    if quoted.decision == OLD and found[-1].decision.times:
        return f"{said}: nothing else is better, {judged}"
    told = found[-1] if quoted.decision == OLD else quoted
    value, low, high = (f"{each:.{digits}f}" for each in (told.gain, told.low, told.high))
    if quoted.decision == OLD:
        return f"{said}: no gain of weights can be told [{low}, {high}] {short}, {judged}"
    if quoted.low <= 0 and (not past or quoted.gain < 0):
        comma = "" if past else ","
        return f"{said}, whose gain cannot be told yet [{low}, {high}] {short}{comma} {judged}"
    better = {
        POINTS: f"accuracy {value} points higher",
        RMSE: f"RMSE {value} % lower",
    }.get(unit, f"{value} {unit} less")
    return f"{said}: {better} [{low}, {high}]{'' if past else ','} {judged}"


def _simplest(found: Sequence[Judgement], gains: Sequence[tuple[float, float]]) -> Judgement:
    sure = [(value, error) for value, error in gains if value - Z * error > 0]
    if not sure:
        return both_or_old(found)
    best, error = max(sure)
    near = [each for each in sure if each[0] >= best - error]
    return next(each for each, own in zip(found, gains, strict=True) if own in near)


def both_or_old(found: Sequence[Judgement]) -> Judgement:
    """What is done where nothing is known to gain: both, unless this is known to lose."""
    both = next((each for each in found if each.decision == BOTH), found[0])
    return both if both.high >= 0 else found[0]
