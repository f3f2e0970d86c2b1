"""Which data to train on: old rows, target rows, both, and in which share, judged on the target.

Cross-validation over the target: a proxy, fitted to old rows and to some of the target's as a
`Decision` says, is judged on target rows that it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from astkit import rng
from astkit.aim.gains import gain
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
        weighted: whether old rows count by the ratio of the target's density to theirs.
    """

    old: bool = True
    times: int = 0
    weighted: bool = False

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
WEIGHTED = (Decision(weighted=True), Decision(times=1, weighted=True))
"""All decisions, the simplest first."""


def folds_of(units: Array, forward: bool, seed: int) -> list[Fold]:
    """Folds over whole ``units`` int ``[M]``, ``forward`` or in random order."""
    return forward_folds(units) if forward else random_folds(units, seed)


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

    def line(self, unit: str, **more: Any) -> dict[str, Any]:
        """A line of the tables of a `Forecast`."""
        ends = {name: round(getattr(self, name), 2) for name in ("gain", "low", "high")}
        return {"decision": self.decision.name, **ends, "unit": unit, **more}


Proxy = Callable[[Array, Array, Array, Array], Array]
"""``(x, y, weights, others)``: predictions for ``others`` of a model fitted to weighted rows."""
Ratio = Callable[[Array], Array]
"""``(rows of the target)``: weights of the old rows, shaped by these alone, mean 1."""


@dataclass(frozen=True)
class Judge:
    """Judges decisions by a proxy.

    Attributes:
        old, target: inputs and labels of each, ``([n, d], [n])``.
        proxy: fits and predicts; ``losses``: ``(predictions, labels) -> [n]``.
        ratio: see `Ratio`.
        folds: of the target's rows.
        units: int ``[M]``, of target rows that depend on each other.
        unit: of gains, see `astkit.aim.gains.gain`.
        forward: whether the target's rows are in order of time, and folds go forward.
        rows_per_sample: old rows that each of ``old`` stands for.
    """

    old: tuple[Array, Array]
    target: tuple[Array, Array]
    proxy: Proxy
    losses: Callable[[Array, Array], Array]
    ratio: Ratio
    folds: Sequence[Fold]
    units: Array
    unit: str
    forward: bool = False
    rows_per_sample: float = 1.0

    def said(self, by: str) -> str:
        """As "judged by boosted trees on later rows of the target"."""
        return f"judged by {by} on {'later' if self.forward else 'other'} rows of the target"

    def judge(self, decisions: Sequence[Decision]) -> list[Judgement]:
        """Gains of all ``decisions``, of which the first has to be `OLD`."""
        losses = {each: np.full(len(self.units), np.nan) for each in decisions}
        judged = np.concatenate([judge for _, judge in self.folds])
        for each in decisions:
            if not each.shaped:  # the same in all folds
                losses[each][judged] = self._losses(each, None, judged[:0], judged)
        for fit, judge in self.folds:
            ratio = self.ratio(fit) if any(each.weighted for each in decisions) else None
            for each in decisions:
                if each.shaped:
                    losses[each][judge] = self._losses(each, ratio, fit, judge)
        old = losses[decisions[0]]
        return [Judgement(each, own, *self.gain(old, own)) for each, own in losses.items()]

    def _losses(self, decision: Decision, ratio: Array | None, fit: Array, judge: Array) -> Array:
        parts: list[tuple[Array, Array, Array]] = []
        if decision.old:
            own = np.ones(len(self.old[1])) if ratio is None or not decision.weighted else ratio
            parts.append((*self.old, own * self.rows_per_sample))
        if decision.times:
            x, y = (part[fit] for part in self.target)
            parts.append((x, y, np.full(len(fit), float(decision.times))))
        x, y, weights = (np.concatenate(each) for each in zip(*parts, strict=True))
        others, wanted = (part[judge] for part in self.target)
        return self.losses(self.proxy(x, y, weights, others), wanted)

    def gain(
        self, old: Array, new: Array, folds: Sequence[int] | None = None
    ) -> tuple[float, float]:
        """Gain and error on the rows of some ``folds``, by default all.

        The error is that over units of rows, or over folds if that is larger. Where these go
        forward it is that of the next part of the time, whose gain varies as those of the folds do.
        """
        chosen = range(len(self.folds)) if folds is None else folds
        judged = [self.folds[fold][1] for fold in chosen]
        rows = np.concatenate(judged)
        own = self.units[rows]
        if self.forward:  # blocks in which gains are alike
            rows = rows[np.argsort(own, kind="stable")]
            length = block_length(autocorrelation_time(old[rows] - new[rows]), len(rows))
            own = block_numbers(len(rows), length)
        whole, error = gain(old[rows], new[rows], self.unit, own)
        if len(judged) > 2:
            each = [gain(old[part], new[part], self.unit, self.units[part])[0] for part in judged]
            of_next = 1.0 if self.forward else 0.0
            error = max(error, float(np.std(each, ddof=1) * (1 / len(each) + of_next) ** 0.5))
        return whole, error


def choose(found: Sequence[Judgement], judge: Judge) -> tuple[Judgement, Judgement]:
    """The decision to take, and the same with the gain that is quoted.

    The simplest whose gain is within one error of the largest; where no gain is sure, both unless
    its interval lies below old. The gain that is quoted was chosen on other folds.
    """
    chosen = _simplest(found, [(each.gain, each.error) for each in found])
    if chosen is found[0] or len(judge.folds) < 2:
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
}


def in_words(decision: Decision) -> str:
    """As "train on both, target rows four times"."""
    return SAID.get(decision.name, f"train on {decision.name}")


def answer(quoted: Judgement, unit: str, judged: str) -> str:
    """What to train on, and by how much that is better, in one line.

    ``unit``: see `astkit.aim.gains.gain`; ``judged``: see `Judge.said`.
    """
    said = f"forecast: {in_words(quoted.decision)}"
    if quoted.decision == OLD:
        return f"{said}: nothing else is better, {judged}"
    digits = {"points": 1, "% of the RMSE": 0}.get(unit, 2)
    ends = quoted.gain, quoted.low, quoted.high
    value, low, high = (f"{each:.{digits}f}" for each in ends)
    if quoted.low <= 0:
        short = unit.removesuffix(" of the RMSE")
        return f"{said}, whose gain cannot be told yet [{low}, {high}] {short}, {judged}"
    better = {
        "points": f"accuracy {value} points higher",
        "% of the RMSE": f"RMSE {value} % lower",
    }.get(unit, f"{value} {unit} less")
    return f"{said}: {better} [{low}, {high}], {judged}"


def _simplest(found: Sequence[Judgement], gains: Sequence[tuple[float, float]]) -> Judgement:
    sure = [value for value, error in gains if value - Z * error > 0]
    if not sure:
        return both_or_old(found)
    best = max(range(len(found)), key=lambda n: gains[n][0])
    least = gains[best][0] - gains[best][1]
    return next(each for each, (value, _) in zip(found, gains, strict=True) if value >= least)


def both_or_old(found: Sequence[Judgement]) -> Judgement:
    """What is done where nothing is known to gain: both, unless this is known to lose."""
    both = next((each for each in found if each.decision == BOTH), found[0])
    return both if both.high >= 0 else found[0]
