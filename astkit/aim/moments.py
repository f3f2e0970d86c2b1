"""Earlier moments at which the question of a forecast was open, and what its decisions gained then.

At each, rows before it stand for the old ones, the next ones for the target, and the ones after
these for what a model meets later. How often a decision was better says whether it will be again;
of how much it gains one more moment says little.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from astkit import rng
from astkit.aim.decisions import BOTH, OLD, PLAIN, Decision, gain
from astkit.aim.differ import target_columns
from astkit.aim.proxies import RMSE, Linear, Trees
from astkit.aim.rows import Matrix, Rows
from astkit.aim.sides import Sides, times_of
from astkit.datasets.dependence import Array
from astkit.datasets.table_encoder import TableEncoder
from astkit.progress import Bar

MOST, FEWEST = 12, 6
"""Moments, at most; later parts that share no date, from which on no others are taken."""
THINNED = 4_000
"""Rows before a moment that models are fitted to, at most; each stands for several."""
LEAST_OLD, LEAST = 100, 30
"""Rows before a moment, and recent or later ones, without which it does not count."""
WORK = 4e6
"""Rows times columns times classes of all moments, for which `MOST` are judged."""
WORTH = 3.0
"""Later parts, laid one after another, below which no interval is told."""
LEVEL = 0.05
"""Of the sign test, and of that whether the first and the later moments differ."""


class NoMomentsError(Exception):
    """Why there are none."""


class Moment(NamedTuple):
    """A time, and the places of the rows before, at and after it, int64 ``[n]`` each."""

    start: float
    old: Array
    recent: Array
    later: Array


@dataclass(frozen=True)
class Past:
    """What decisions gained at earlier moments, in the unit of a proxy.

    Attributes:
        lines: a mapping for each moment, in order of time, and decision: ``start``, ``rows`` that
            were judged, ``old_over_recent`` rows, ``decision``, ``gain`` over old, ``over_both``.
        worth: moments that share no later row, which they are worth.
        today: where the target begins, as ``start``; dates as "2011-10-01".
    """

    lines: Sequence[Mapping[str, Any]]
    worth: float
    today: str | float

    @property
    def count(self) -> int:
        """Number of moments."""
        return len(self.of(OLD))

    def of(self, decision: Decision, name: str = "gain") -> Array:
        """Gains of a decision, float64 ``[moments]``."""
        return np.array([each[name] for each in self.lines if each["decision"] == decision.name])

    def used(self, decision: Decision, name: str = "gain") -> tuple[Array, float]:
        """Gains that count for the next moment, and the moments that they are worth.

        Those of the later half where the gains over old are others than before, by the test of
        Mann and Whitney.
        """
        from scipy.stats import mannwhitneyu

        gains, half = self.of(decision), self.count // 2
        if half and mannwhitneyu(gains[:half], gains[half:]).pvalue < LEVEL:
            return self.of(decision, name)[half:], self.worth * (1 - half / self.count)
        return self.of(decision, name), self.worth

    def line(self, decision: Decision) -> dict[str, Any]:
        """What the table of a `Forecast` says of a decision.

        The interval is that of one more moment, of Student's distribution.
        """
        from scipy.stats import t

        said: dict[str, Any] = dict.fromkeys(("won", "past", "past_low", "past_high"))
        if decision == OLD or decision not in PLAIN:
            return said
        gains, worth = self.used(decision)
        mean = float(gains.mean())
        said |= {"won": f"{(gains > 0).sum()} of {len(gains)}", "past": round(mean, 2)}
        if worth >= WORTH:
            reach = float(t.ppf(0.975, worth - 1) * gains.std(ddof=1) * (1 + 1 / worth) ** 0.5)
            said |= {"past_low": round(mean - reach, 2), "past_high": round(mean + reach, 2)}
        return said

    def better_than_both(self, possible: Sequence[Decision]) -> Decision | None:
        """The one of the ``possible`` decisions that was better than both, if one was.

        By a one-sided sign test over moments that share no later row, at 5 % over all decisions but
        both. Source of the correction: Holm, "A simple sequentially rejective multiple test
        procedure", 1979.
        """
        from scipy.stats import binomtest

        tested = []
        for decision in PLAIN:
            if decision == BOTH:
                continue
            gains, worth = self.used(decision, "over_both")
            trials = math.floor(worth)
            wins = math.floor((gains > 0).sum() * worth / len(gains))
            p = binomtest(wins, trials, alternative="greater").pvalue if trials else 1.0
            tested.append((p, -float(np.median(gains)), decision))
        tested.sort(key=lambda each: each[:2])
        for place, (p, _, decision) in enumerate(tested):
            if p > LEVEL / (len(tested) - place):
                return None
            if decision in possible:
                return decision
        return None

    def sentence(self, decision: Decision, unit: str, than: str = "gain") -> str:
        """As "better than the old rows at 9 of 10 earlier moments, by 19 % in the middle"."""
        known = decision in PLAIN and (decision != OLD or than == "over_both")
        gains, _ = self.used(decision if known else BOTH, than)
        won, count, digits = (gains > 0).sum(), len(gains), 0 if unit == RMSE else 1
        if known and not won:
            return f"never so before, at {count} earlier moments"
        other = "the old rows" if than == "gain" else "both"
        middle = float(np.median(gains))
        by = f"{abs(middle):.{digits}f} {unit.removesuffix(' of the RMSE')} in the middle"
        which = f"{count} earlier" if count == self.count else f"the {count} latest"
        said = f"{'' if known else 'both was '}better than {other} at {won} of {which} moments"
        return f"{said}, {'by' if middle >= 0 else 'worse by'} {by}"

    def notes(self) -> list[str]:
        """What has to be known of the moments, as sentences."""
        said = []
        if self.worth < self.count:
            said.append(
                f"rows after one of the {self.count} earlier moments are partly those after the"
                f" next: they are worth {self.worth:.1f} that share none"
            )
        both = self.of(BOTH)
        lately = both[self.count // 2 :]
        differ = len(self.used(BOTH)[0]) < self.count
        said.append(
            f"of the later half of the earlier moments both was better at {(lately > 0).sum()} of"
            f" {len(lately)}" + ", which differs from the first half: this half counts" * differ
        )
        return said


def past_of(
    sides: Sides, proxy: Trees | Linear, date: str | None, horizon: float | None = None
) -> Past:
    """What the plain decisions gained at earlier moments among the old rows.

    Args:
        sides: rows of columns.
        proxy: the one that judges decisions today.
        date: the column that orders the rows; ``None``: they lie in order of time, the target after
            the old rows.
        horizon: how long models are used, in days of a date, in units of a column of numbers, or in
            rows; by default as long as the target lasts.

    Raises `NoMomentsError` where there are none.
    """
    if date is None:
        places = np.arange(len(sides.old) + len(sides.target), dtype=np.float64)
        old, new = np.split(places, [len(sides.old)])
    else:
        old, new = times_of(sides.old, date), times_of(sides.target, date)
    columns, models = proxy.x.shape[1], 1 if proxy.y.ndim > 1 else len(np.unique(proxy.y))
    work = (min(THINNED, len(old)) + len(new)) * columns * models
    most = max(math.ceil(WORTH), min(MOST, int(WORK / work)))
    groups = None if sides.old.groups is None else sides.old.groups.numpy()
    moments, worth = moments_of(old, new, horizon, groups, most, sides.seed)
    targets = sides.old.targets(torch.arange(len(sides.old)))
    assert targets is not None
    y = target_columns(targets) if sides.labels is None else sides.labels[0].numpy()
    lines, rows = [], _with_columns_of(sides.target, sides.old)
    with Bar(total=len(moments), desc="earlier moments", unit="moment", leave=False) as bar:
        for moment in moments:
            lines += judged(rows, y, moment, proxy)
            bar.update()
    table = sides.old.table
    dates = date is not None and table is not None and table.frame[date].dtype.kind == "M"
    lines = [{**each, "start": _shown(each["start"], dates)} for each in lines]
    return Past(lines, worth, _shown(float(np.nanmin(new)), dates))


def _with_columns_of(target: Rows, old: Rows) -> Rows:
    """Old rows without the columns of a table of which the target has no value."""
    if old.table is None or target.table is None:
        return old
    known = [name for name in old.table.frame if target.table.frame[name].notna().any()]
    rows = copy.copy(old)
    rows.table = copy.copy(old.table)
    if isinstance(old.table.encoder, TableEncoder):  # another one may name its columns
        rows.table.frame = old.table.frame[known]
    return rows


def _shown(moment: float, dates: bool) -> str | float:
    """A moment as a date or a number."""
    return str(np.datetime64(math.floor(moment), "D")) if dates else moment


def moments_of(
    old: Array,
    new: Array,
    horizon: float | None,
    groups: Array | None,
    most: int,
    seed: int,
) -> tuple[list[Moment], float]:
    """At most ``most`` moments in order of time, and how many that share no later row they are.

    ``old [N]`` and ``new [M]`` are times, ``groups [N]`` of rows that depend on each other. The old
    rows end before a moment as they end before the target today. A unit of time lies between recent
    and later rows. Raises `NoMomentsError` where there are none.
    """
    dates = np.unique(old[~np.isnan(old)])
    today, end_of_new = float(np.nanmin(new)), float(np.nanmax(new))
    if len(dates) < 2:
        raise NoMomentsError("the old rows have one date")
    if today < dates[-1]:
        raise NoMomentsError("dates of the target lie among those of the old rows, or before them")
    unit = float(np.median(np.diff(dates)))
    end, gap, recent = dates[-1] + unit, today - dates[-1], end_of_new - today + unit
    first = max(dates[len(dates) // 2], dates[0] + 3 * recent)
    span = end - (first + recent + unit)  # of the later rows of all moments
    if horizon is not None and horizon < 0:
        raise NoMomentsError("the test rows do not lie after the target's")
    wanted = recent if horizon is None else max(float(horizon), unit)
    if span < wanted:
        raise NoMomentsError("the old rows last too short a time")
    length = wanted
    for each in (wanted, (end - dates[0]) / 10):
        count = math.floor(span / each)
        if count >= FEWEST:
            length, worth = each, float(min(count, most))
            steps = np.linspace(count - 1, 0, min(count, most)).round() * length
            break
    else:
        worth = span / length
        steps = np.linspace(span - length, 0, most)
    found: list[Moment] = []
    of_date = len(new) / len(np.unique(new))  # rows of the target
    for start in (end - length - unit - recent - steps).tolist():
        later = start + recent + unit
        before = np.flatnonzero((old < start) & (old <= start - gap))
        at = np.flatnonzero((old >= start) & (old < start + recent))
        after = np.flatnonzero((old >= later) & (old < later + length))
        if found and np.array_equal(after, found[-1].later):  # of few dates
            continue
        at = _some(at, round(of_date * len(np.unique(old[at]))), seed, "recent", len(found))
        if groups is not None:  # a model would know the later ones
            after = after[~np.isin(groups[after], groups[at])]
        if len(before) >= LEAST_OLD and min(len(at), len(after)) >= LEAST:
            found.append(Moment(start, before, at, after))
    if not found:
        few = f"fewer than {LEAST_OLD} rows before, or {LEAST} at or after each"
        raise NoMomentsError(f"{few} in time")
    return found, min(worth, float(len(found)))


def judged(rows: Rows, y: Array, moment: Moment, proxy: Trees | Linear) -> list[dict[str, Any]]:
    """Gains of the plain decisions at a ``moment``; ``y``: targets of all old rows.

    All that is fitted knows rows before and at the moment alone.
    """
    before = _some(moment.old, THINNED, 0, "before")
    parts = (before, moment.recent, moment.later)
    x = np.vstack(_inputs(rows, *parts))
    rest = np.zeros(len(moment.later))
    losses = {}
    for decision in PLAIN:
        of_old = np.full(len(before), decision.old * len(moment.old) / len(before))
        of_recent = np.full(len(moment.recent), float(decision.times))
        weights = np.concatenate([of_old, of_recent, rest])
        places = len(weights) - len(rest) + np.arange(len(rest))
        losses[decision] = proxy.losses_of(x, y[np.concatenate(parts)], weights, places)
    own = np.arange(len(rest))
    ratio = len(moment.old) / len(moment.recent)
    return [
        {
            "start": moment.start,
            "rows": len(rest),
            "old_over_recent": ratio,
            "decision": decision.name,
            "gain": gain(losses[OLD], each, proxy.unit, own)[0],
            "over_both": gain(losses[BOTH], each, proxy.unit, own)[0],
        }
        for decision, each in losses.items()
    ]


def _some(rows: Array, most: int, *key: int | str) -> Array:
    """At most so many of the ``rows``, at random, in their order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(rng.permutation(len(rows), *key, "moments").numpy()[:most])]


def _inputs(rows: Rows, *parts: Array) -> list[Matrix]:
    """The inputs of ``parts``, int64 ``[n]`` each, encoded as the first of them says."""
    first, *others = map(torch.from_numpy, parts)
    if rows.table is None:
        return [rows.features(each) for each in (first, *others)]
    table = rows.table.encoded(first)
    read = [table, *(rows.table.encoded(each, like=table) for each in others)]
    return [each.matrix(scaled=False) for each in read]
