"""Verdicts of a comparison: a policy pays, costs, or it is undecided. Needs scipy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from astkit.runs import intervals, paired
from astkit.runs.intervals import Interval, Seeds
from astkit.runs.paired import COSTS, DENSE, Arm, Entry

ERROR = 0.05  # probability of a wrong outcome, over all policies of a comparison together
EQUAL = (0.97, 1.03)  # shares of dense's FLOPs that are called equal
EXCESS = 1.1  # share of dense's FLOPs above which a policy does not pay


@dataclass(frozen=True)
class Verdict:
    """One policy against dense training and against random samples, paired by seed.

    All differences are the policy's value minus the control's, in the metric's unit.

    Attributes:
        policy, metric, higher: the names, and whether a higher value is better.
        difference: to dense at equal FLOPs; see `astkit.runs.intervals.simultaneous`.
        to_random: to random samples at the same rate, for the seeds that have such a control: of
            n = 0 if none of the comparison's random controls has its rate, None if it needs none.
        flops, seconds: of the whole run, as a share of dense's, or None.
        reach_flops, reach_seconds: cost at which the validation value reaches dense's final one
            (see `astkit.runs.paired.reached_at`), as a share of dense's whole run. None unless all
            seeds reach it, since the mean over those that do would be too low.
        reached: number of seeds that reach it.
        at_equal_seconds: difference to dense's final validation value after as many seconds as
            dense took, or at the end of a shorter run; None without seconds.
        worst_class: difference of the worst classes, or None.
        failed: number of the policy's seeds without a finite value. They are left out of all
            intervals, and the policy then does not pay.
        needed: seeds that would decide with probability 0.8 if the true difference is the observed
            one, or None if that is smaller than its standard error.
        shows: smallest difference that ``n`` seeds would decide with probability 0.8, or None.

    Intervals other than ``difference`` are Student's, at confidence 1 - 0.05 / m for m policies;
    those of shares are geometric means (`astkit.runs.intervals.ratio_interval`).
    """

    policy: str
    metric: str
    higher: bool
    difference: Interval
    to_random: Interval | None
    flops: Interval | None
    seconds: Interval | None
    reach_flops: Interval | None
    reach_seconds: Interval | None
    reached: int
    at_equal_seconds: Interval | None
    worst_class: Interval | None
    failed: int
    needed: Seeds | None
    shows: float | None

    @property
    def n(self) -> int:
        """Number of seeds for which the policy and dense have a finite value."""
        return self.difference.n

    @property
    def outcome(self) -> Literal["pays", "costs", "undecided"]:
        """Sign of the difference; "undecided" if its interval contains 0 or does not exist.

        A policy that spends more than `EXCESS` of dense's FLOPs does not pay.
        """
        worse, better = self.difference.high < 0, self.difference.low > 0
        if not self.higher:
            worse, better = better, worse
        barred = self.failed or self._excessive
        return "costs" if worse else "pays" if better and not barred else "undecided"

    @property
    def sentence(self) -> str:
        """The outcome with its numbers, as one sentence without a full stop."""
        words = {"pays": self._pays, "costs": self._costs, "undecided": self._undecided}
        failed = f"; {_seeds(self.failed)} without a finite {self.metric}" if self.failed else ""
        return f"{self.policy}{words[self.outcome]()}{failed}"

    @property
    def _gap(self) -> str:
        return f"{amount(self.difference, self.metric)} {self._budget}"

    @property
    def _budget(self) -> str:
        if self.flops is None:
            return "at the same budget"
        share, (low, high) = self.flops.mean, EQUAL
        if low <= share <= high:
            return "at equal FLOPs"
        return f"at {share:.2f} {'of' if share < 1 else 'times'} dense's FLOPs"

    @property
    def _excessive(self) -> bool:
        return self.flops is not None and self.flops.mean > EXCESS

    def _pays(self) -> str:
        shares = {"seconds": self.reach_seconds, "FLOPs": self.reach_flops}
        cost = next((cost for cost, share in shares.items() if share and share.high < 1), "")
        slow = self.flops and self.reach_seconds and self.reach_seconds.low > 1
        said = " pays in FLOPs, not in seconds: " if slow else " pays: "
        if share := shares.get(cost):
            reached = share.text(".2f", f" of its {cost}")
            said += f"dense's {self.metric} at {reached}, n = {self.n}; {self._gap}"
        else:
            said += f"{self._gap}, n = {self.n}"
        if cost != "seconds" and self.seconds is not None:
            said += f", in {self.seconds.text('.2f')} times dense's seconds"
        gap = self.to_random
        if gap is not None and gap.n == 0:
            said += "; no random control at its rate"
        elif gap is not None and not (gap.low > 0 if self.higher else gap.high < 0):
            said += "; not shown to be better than random samples at the same rate"
            said += f", n = {gap.n}" * (gap.n < self.n)
        return said

    def _costs(self) -> str:
        mean, *ends, n = self.difference
        low, high = sorted(map(abs, ends))
        loss = amount(Interval(abs(mean), low, high, n), self.metric, sign="")
        return f" costs {loss} {self._budget}, n = {n}"

    def _undecided(self) -> str:
        if self.n == 0:
            return f": undecided, n = 0: no seed with a finite {self.metric} of it and of dense"
        said = f": undecided, {self._gap}, n = {self.n}"
        if self.n == 1:
            return f"{said}; one seed has no interval, so add seeds"
        if self._excessive:
            return f"{said}; a policy does not pay above {EXCESS:g} times dense's FLOPs"
        if math.isnan(self.difference.low):
            return f"{said}; all seeds give the same difference, so its spread is unknown"
        if self.failed:
            return said
        if self.needed is None:
            least = amount(Interval(self.shows or 0.0, math.nan, math.nan, 1), self.metric, sign="")
            return f"{said}; {_seeds(self.n)} would decide a difference of {least} or more"
        low, _, high = (max(1, number - self.n) for number in self.needed)
        return f"{said}; {low} to {high} more seeds would decide a true difference of this size"


def judge(entries: Sequence[Entry], metric: str = "accuracy", higher: bool = True) -> list[Verdict]:
    """One verdict for each policy that is not a control, in the order of ``entries``.

    Args:
        entries: finished arms, see `astkit.runs.paired`. Each policy is compared for the seeds that
            it shares with the control.
        metric: name of ``value`` and of the curves' values; accuracies are shares of samples.
        higher: whether a higher value is better.

    Raises ``ValueError`` if the dense arm is missing, or an arm has two entries for one seed.
    """
    arms = paired.by_arm(entries)
    policies = {name: arm for name, arm in arms.items() if not paired.is_control(name)}
    if policies and DENSE not in arms:
        raise ValueError(f"entries hold no {DENSE!r} arm: train it for the same seeds")
    gaps = {name: paired.differences(arm, arms[DENSE], "value") for name, arm in policies.items()}
    found, error = intervals.simultaneous(gaps, ERROR), ERROR / max(1, len(gaps))
    return [
        Verdict(
            policy=name,
            metric=metric,
            higher=higher,
            difference=found[name],
            needed=intervals.seeds_needed(values, error),
            shows=intervals.smallest_effect(values, error) if len(values) > 1 else None,
            **_beside(arms, name, higher, 1 - error),
        )
        for name, values in gaps.items()
    ]


def _beside(arms: Mapping[str, Arm], name: str, higher: bool, confidence: float) -> dict[str, Any]:
    """The fields of a verdict that do not decide its outcome."""
    arm, dense, random = arms[name], arms[DENSE], paired.random_control(arms[name], arms)
    reach = {f"reach_{key}": paired.reach(arm, dense, key, higher) for key in COSTS}
    shares = {key: paired.ratios(arm, dense, key) for key in COSTS}
    shares |= {key: [] if None in values else values for key, values in reach.items()}

    def interval(values: Sequence[float | None], ratio: bool = False) -> Interval | None:
        of = intervals.ratio_interval if ratio else intervals.student_interval
        found = paired.known(values)
        return of(found, confidence) if found else None

    nothing = Interval(math.nan, math.nan, math.nan, 0)
    absent = nothing if paired.wants_control(name, arms) else None
    return {
        **{key: interval(values, ratio=True) for key, values in shares.items()},
        "to_random": interval(paired.differences(arm, random, "value")) or absent,
        "reached": max(len(values) - values.count(None) for values in reach.values()),
        "at_equal_seconds": interval(paired.at_equal_seconds(arm, dense)),
        "worst_class": interval(paired.differences(arm, dense, "worst_class")),
        "failed": sum(not paired.finite(run["value"]) for run in arm.values()),
    }


def unit(metric: str) -> tuple[int, str]:
    """Factor and unit in which differences are shown: percentage points for accuracies."""
    return (100, "points") if "accuracy" in metric else (1, metric)


def amount(found: Interval, metric: str, sign: Literal["+", ""] = "+") -> str:
    """A difference with its unit and interval; the decimals follow from the interval's width.

    Small numbers, of which hardly a digit would be left, have two significant ones.
    """
    scale, name = unit(metric)
    if math.isnan(found.mean):
        return "–"
    largest = max(abs(value) for value in found[:3] if not math.isnan(value)) * scale
    mean, low, high = (0.0 if abs(v * scale) < 1e-9 * largest else v * scale for v in found[:3])
    ends = [abs(end) for end in (high - mean, low, high) if abs(end) > 1e-9 * largest]
    digits = -math.floor(math.log10(min(ends or [abs(mean) / 10 or 1])))
    digits = min(max(digits, 1), most := 2 if scale > 1 else 6)
    spec = f"{sign}z.2g" if 0 < largest < 5 * 10**-most else f"{sign}z.{digits}f"
    return Interval(mean, low, high, found.n).text(spec, f" {name}" if scale > 1 else f" in {name}")


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"
