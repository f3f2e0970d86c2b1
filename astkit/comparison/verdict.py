"""Verdicts of a comparison: is a policy better or worse than dense training, and by how much?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from astkit.comparison.statistics import (
    DENSE,
    ERROR,
    Entry,
    Interval,
    RowValues,
    by_arm,
    cost_ratio,
    gaps,
    holm,
    is_control,
    is_finite,
    mean_interval,
    pairs,
    random_control,
    seeds_needed,
)
from astkit.datasets.dependence import FEWEST

Outcome = Literal["better", "worse", "no gain", "cannot tell yet", "did not choose"]

NONE_BETTER = "No policy is shown to be better than dense training"
SMALLEST_GAIN = 0.005  # of accuracies: gains below it are called none
EQUAL = 0.03  # largest difference of FLOPs, as a share, that are called the same
EXCESS = 1.1  # share of the FLOPs of dense training above which no gain is at equal cost


@dataclass(frozen=True)
class Verdict:
    """One policy against dense training and against random samples, paired by seed.

    Differences are the policy's value minus the control's, in the metric's unit; intervals are
    single ones at 95 %, of n = 0 where nothing is known; those of costs are geometric means.

    Attributes:
        policy, metric, higher: the names, and whether a higher value is better.
        outcome: what is known of the policy, corrected for the number of policies. "no gain": none
            of ``smallest_gain`` or more; "did not choose": it trained on all rows, with all seeds.
            An improvement with failed seeds, or at more than `EXCESS` of the FLOPs of dense
            training, does not count.
        dense: mean of dense training over the same seeds; NaN without any.
        difference: to dense training, over seeds and, where they are known, test rows.
        to_random: to random samples at the same rate, for the seeds that have such a control.
        test_rows: whether these two intervals cover the test rows.
        compared: number of policies over which the outcome is corrected.
        smallest_gain: gains below it are called none; None: no gain is called so.
        flops, seconds: of the whole run, as a share of those of dense training.
        worth: number of independent rows that the test rows are worth; infinite if unknown.
        blocks: number of blocks of test rows over which intervals are taken, where neighbours
            depend on each other; else ``None``.
        scores_counted: whether the FLOPs include what computing the policy's numbers outside took;
            if not, nothing can be told at equal cost.
        given_forecast: whether one forecast chose the rows of all seeds; another sample of the data
            might bring another one, which intervals do not cover.
        failed: number of the policy's seeds without a finite value, left out of all intervals.
        dense_failed: number of the policy's seeds at which dense training has no finite value.
        since: why it did not choose, in words.
        needed: seeds that would show the observed difference, see `seeds_needed`.
    """

    policy: str
    metric: str
    higher: bool
    outcome: Outcome
    dense: float
    difference: Interval
    to_random: Interval
    test_rows: bool
    compared: int
    smallest_gain: float | None
    flops: Interval
    seconds: Interval
    failed: int
    dense_failed: int
    needed: float | None
    worth: float = math.inf
    blocks: int | None = None
    scores_counted: bool = True
    given_forecast: bool = False
    since: str = ""

    @property
    def n(self) -> int:
        """Number of seeds for which the policy and dense training have a finite value."""
        return self.difference.n

    @property
    def better(self) -> bool | None:
        """Whether the outcome is an improvement; None if it is neither better nor worse."""
        return {"better": True, "worse": False}.get(self.outcome)

    @property
    def gains(self) -> bool:
        """Whether the single interval is on the better side of 0; for what is not corrected."""
        return self.difference.low > 0 if self.higher else self.difference.high < 0

    @property
    def words(self) -> str:
        """The outcome without numbers, for tables."""
        return f"no gain above {self._smallest}" if self.outcome == "no gain" else self.outcome

    @property
    def rule(self) -> str:
        """Why the outcome is open though the single interval excludes 0, in a few words; or ""."""
        _, low, high, _ = self.difference
        opened = self.outcome == "cannot tell yet" and (low > 0 or high < 0)
        return self.reason()[0] if opened else ""

    def amount(self, interval: Interval) -> str:
        """A difference in words, see `amount`; of a loss in percent of that of dense training."""
        return amount(interval, self.metric, math.nan if self.higher else self.dense)

    @property
    def beats_random(self) -> bool | None:
        """Whether it is shown to be better than random samples; None without such a control."""
        low, high = self.to_random[1:3]
        return (low > 0 if self.higher else high < 0) if self.to_random.n else None

    @property
    def shown(self) -> str:
        """The outcome for figures, with the rule that decided and a budget that is not the same."""
        parts = [self.words, self.rule]
        if self.better and self.beats_random is False:
            parts.append("not shown to beat random")
        if unequal(self.flops):
            parts.append(self.cost)
        return ", ".join(dict.fromkeys(filter(None, parts)))

    @property
    def short(self) -> str:
        """The outcome with its difference."""
        since = f", since {self.since}" * bool(self.since)
        gap = f": {self.metric} {self.amount(self.difference)}" * bool(self.n)
        return f"{self.policy}: {self.words}{since}{gap}"

    @property
    def cost(self) -> str:
        """The FLOPs of the whole run beside those of dense training, in words."""
        if unequal(self.flops):
            return f"{self.flops.mean:.2f} x the FLOPs"
        same = "same FLOPs" if self.flops.n else "same budget"
        return same if self.scores_counted else f"{same} without the scores"

    @property
    def sentence(self) -> str:
        """The outcome with its numbers, as one sentence without a full stop."""
        facts = [_seeds(self.n), self.cost]
        if self.seconds.n:
            facts.append(f"{self.seconds.mean:.2f} x the time")
        if self.blocks is not None:
            facts.append(f"test rows in {self.blocks} blocks")
        if self.given_forecast:
            facts.append("given this forecast")
        said = f"{self.short}{',' if self.n else ':'} {', '.join(facts)}"
        said += self.reason()[1] if self.outcome == "cannot tell yet" else ""
        if self.better and self.beats_random is False:
            said += f"; against random samples {self.amount(self.to_random)}"
            said += f", {_seeds(self.to_random.n)}" * (self.to_random.n < self.n)
            said += ": not shown to beat them"
        if self.failed:
            said += f"; {_seeds(self.failed)} without a finite {self.metric}"
        if self.dense_failed:
            said += f"; {_seeds(self.dense_failed)} left out, where dense training failed"
        return said

    @property
    def _smallest(self) -> str:
        scale, name = unit(self.metric)
        value = f"{(self.smallest_gain or 0.0) * scale:g}"
        return f"{value} {name}" if scale > 1 else f"{value} in {name}"

    def reason(self) -> tuple[str, str]:
        """Why nothing can be told yet: the rule in a few words, and in a sentence what would help.

        The rule counts where the single interval excludes 0.
        """
        if not self.scores_counted:
            return "scores not counted", (
                "; scores not counted, so nothing can be told at equal cost: give the policy cost=,"
                " the FLOPs that computing them took"
            )
        if self.worth < FEWEST:
            return "too few test rows", (
                f"; the test rows are worth about {self.worth:.0f} independent ones, and a verdict"
                f" needs {FEWEST}: test on more"
            )
        if self.n < 2:
            return "", "; one seed has no interval, so add seeds" * self.n
        mean, low, high, _ = self.difference
        if math.isnan(low):
            return "", "; all seeds give the same difference, so its spread is unknown"
        if low == high:
            return "", "; the same results on every test row"
        gain = (mean > 0) == self.higher
        if gain and self.failed:
            return "failed seeds", "; a gain with failed seeds does not count"
        if gain and self.flops.mean > EXCESS:
            above = f"above {EXCESS:g} x the FLOPs a gain is not one at equal cost"
            return f"{self.flops.mean:.2f} x the FLOPs", f"; {above}: try a larger budget"
        excludes = "0" if low > 0 or high < 0 else ""
        if self.smallest_gain is not None and (high if self.higher else -low) < self.smallest_gain:
            excludes = f"a gain of {self._smallest}"
        if excludes:
            rule = f"{self.compared} policies compared"
            after = f"but not after correction for {self.compared} policies (Holm)"
            return rule, f"; it excludes {excludes}, {after}"
        if self.needed is None:
            return "", ""
        size = f"a {'gain' if gain else 'difference'} of this size"
        if math.isinf(self.needed):
            return "", f"; however many seeds, more test rows are needed to show {size}"
        more = self.more_seeds
        return "", f"; about {more:,} more seed{'s' * (more != 1)} would show {size}"

    @property
    def more_seeds(self) -> int:
        """How many more seeds would show a difference of this size; 0 if unknown or never."""
        if self.n == 1:
            return 4  # for an interval
        if self.needed is None or math.isinf(self.needed):
            return 0
        return int(float(f"{max(1, self.needed - self.n):.1g}"))  # one digit: it is an estimate


def judge(
    entries: Sequence[Entry],
    metric: str = "accuracy",
    higher: bool = True,
    *,
    rows: RowValues | None = None,
    smallest_gain: float | None = None,
    controls: bool = False,
    given_forecast: Sequence[str] = (),
    since: str = "",
) -> list[Verdict]:
    """One verdict for each policy that is not a control, in the order of ``entries``.

    Args:
        entries: finished runs. Each policy is compared for the seeds that it shares with the
            control.
        metric: name of ``value`` and of the curves' values; accuracies are shares of samples.
        higher: whether a higher value is better.
        rows: returns the results of a run on the test rows, float ``[test_rows]``, in the same
            order for all runs, whose mean is its ``value``, or `pseudo_values`; or ``None``. By
            default intervals are over seeds only.
        smallest_gain: gains below it are called none; by default `SMALLEST_GAIN` for accuracies.
        controls: whether to judge the controls beside dense training in place of the policies.
        given_forecast: policies whose rows one forecast chose for all seeds.
        since: why policies that chose no rows did not.

    Outcomes are corrected for the number of policies: with a probability of at most 5 % any has the
    wrong sign, and of at most 2.5 % any "no gain" is wrong. Test rows that are worth fewer than
    `FEWEST` independent ones tell nothing.

    Raises ``ValueError`` if the dense runs are missing, or a method has two entries for one seed.
    """
    arms = by_arm(entries)
    judged = {name for name in arms if is_control(name) == controls and name != DENSE}
    policies = {name: arm for name, arm in arms.items() if name in judged}
    if policies and DENSE not in arms:
        raise ValueError(f"entries hold no {DENSE!r} runs: train it for the same seeds")
    if smallest_gain is None and unit(metric)[0] > 1:
        smallest_gain = SMALLEST_GAIN
    dense, sign = arms.get(DENSE, {}), 1 if higher else -1
    estimates = {name: gaps(arm, dense, rows).estimate() for name, arm in policies.items()}
    small = dict.fromkeys(estimates, 1.0)
    for name, each in estimates.items():
        if smallest_gain is not None and sign * each.mean < smallest_gain:
            small[name] = each.p(sign * smallest_gain)
    compared = max(1, len(policies))
    differ, bounded = holm({name: each.p() for name, each in estimates.items()}), holm(small)
    verdicts = []
    for name, arm in policies.items():
        each, flops = estimates[name], cost_ratio(arm, dense, "flops")
        to_random = gaps(arm, random_control(arm, arms), rows).estimate()
        failed = sum(not is_finite(run["value"]) for run in arm.values())
        barred = sign * each.mean > 0 and (failed or flops.mean > EXCESS)
        counted = all(run.get("scores_counted", True) for run in arm.values())
        told = counted and each.worth >= FEWEST
        outcome: Outcome = "no gain" if name in bounded and told else "cannot tell yet"
        if name in differ and told and not barred:
            outcome = "better" if sign * each.mean > 0 else "worse"
        if abstained := all(run.get("abstained") for run in arm.values()):
            outcome = "did not choose"
        verdict = Verdict(
            policy=name,
            metric=metric,
            higher=higher,
            outcome=outcome,
            dense=mean_interval(other["value"] for _, other in pairs(arm, dense)).mean,
            difference=each.interval(),
            to_random=to_random.interval(),
            test_rows=each.units > 0,
            compared=compared,
            smallest_gain=smallest_gain,
            flops=flops,
            seconds=cost_ratio(arm, dense, "seconds"),
            failed=failed,
            dense_failed=sum(seed in dense and not is_finite(dense[seed]["value"]) for seed in arm),
            needed=seeds_needed(each, ERROR / compared),
            worth=each.worth,
            blocks=each.units if each.blocks else None,
            scores_counted=counted,
            given_forecast=name in given_forecast,
            since=since if abstained else "",
        )
        verdicts.append(verdict)
    return verdicts


def leading(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The best one, or the only one; ``None`` where none of several is better."""
    known = [each for each in verdicts if each.n]
    better = [each for each in known if each.better]
    if not better and len(known) != 1:
        return None
    return max(better or known, key=lambda each: abs(each.difference.mean))


def unequal(flops: Interval) -> bool:
    """Whether FLOPs, as a share of those of dense training, are known not to be the same."""
    return abs(flops.mean - 1) > EQUAL


def unit(metric: str) -> tuple[float, str]:
    """Factor and unit in which differences are shown: percentage points for accuracies."""
    return (100, "points") if "accuracy" in metric else (1, metric)


def in_unit(value: float, metric: str) -> str:
    """A value of the metric, as "85.00 %" of accuracies."""
    return f"{value:.2%}".replace("%", " %") if unit(metric)[0] > 1 else f"{value:.4g}"


def amount(interval: Interval, metric: str, whole: float = math.nan) -> str:
    """A difference in words, as "1.2 points higher [0.5, 1.9]" or "3.1 % lower [2.0, 4.2]".

    Accuracies are in points; others in percent of ``whole``, if it is above 0, else as they are.
    The ends of the interval count as the word says, so that a negative one is on its other side.
    The decimals follow from the interval's width; small numbers have two significant digits.
    """
    if not interval.n:
        return "–"
    scale, name = unit(metric)
    if name != "points":
        scale, name = (100 / whole, "%") if whole > 0 else (1, "")
    mean, low, high = (value * scale for value in interval[:3])
    words = f"{name} higher".strip()
    if mean < 0:
        mean, low, high, words = -mean, -high, -low, words.replace("higher", "lower")
    largest = max(abs(value) for value in (mean, low, high) if not math.isnan(value))
    mean, low, high = (0.0 if abs(v) < 1e-9 * largest else v for v in (mean, low, high))
    ends = [abs(end) for end in (high - mean, low, high) if abs(end) > 1e-9 * largest]
    digits = -math.floor(math.log10(min(ends or [mean / 10 or 1])))
    digits = min(max(digits, 1), most := 2 if name else 6)
    spec = "z.2g" if 0 < largest < 5 * 10**-most else f"z.{digits}f"
    ends_shown = "" if math.isnan(low) else f" [{low:{spec}}, {high:{spec}}]"
    return f"{mean:{spec}} {words}{ends_shown}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"
