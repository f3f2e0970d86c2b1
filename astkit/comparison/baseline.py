"""Is dense training a fair baseline? Its learning rate and length, tried before a comparison.

Dense training with the first seed runs for half of the budget at several learning rates, each with
a fully decayed schedule; a torch scheduler goes half of its way. Where the user gave no learning
rate, the best one on the validation data is taken for all methods; otherwise nothing is changed,
and the report says what dense training would gain. Where the validation data are others, dense
training may do best with a rate at which it hardly learns, so that a method which follows them has
a rate of its own, found in the same way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from astkit.comparison.plan import Method, Plan
from astkit.comparison.progress import RunsBar
from astkit.comparison.statistics import DENSE, Interval
from astkit.comparison.training import RunRecord, train_to_end
from astkit.comparison.verdict import amount, unit
from astkit.files import read_json, write_json
from astkit.progress import announce, duration
from astkit.trainers import Budget
from astkit.trainers.progress import Show, follow, show_nothing

CHOSEN = (1 / 3, 1.0, 3.0, 10.0)  # times 1e-3, of which `compare` takes the best
TRIED = (1 / 3, 1.0, 3.0)  # times the user's learning rate
WIDER = 3  # further rates that are tried where the best one is at an end
LEAST = 0.01  # smallest gain that is noted, for accuracies
LEAST_SHARE = 0.02  # and for other metrics, as a share of the value
NAME = "baseline.json"


@dataclass
class Trial:
    """A run of dense training: its validation value, and that of each row if it is their mean."""

    value: float
    rows: Tensor | None = None
    metric: str = "accuracy"
    higher: bool = True

    def is_better(self, other: Trial) -> bool:
        """Whether this run is better than ``other``, and not by chance alone.

        By more than `LEAST`, and than twice the standard error of the paired differences of rows.
        """
        gain = (self.value - other.value) * (1.0 if self.higher else -1.0)
        least = LEAST if unit(self.metric)[0] > 1 else LEAST_SHARE * abs(other.value)
        error = 0.0
        if self.rows is not None and other.rows is not None:
            differences = (self.rows - other.rows).double()
            error = float(differences.nan_to_num().std()) / math.sqrt(len(differences))
        return gain > max(least, 2 * error)

    def beside(self, other: Trial) -> str:
        """The difference to ``other`` in words."""
        difference = Interval(self.value - other.value, math.nan, math.nan, 1)
        whole = math.nan if self.higher else other.value
        return f"{self.metric} {amount(difference, self.metric, whole)}"


@dataclass
class Baseline:
    """Learning rate for all methods (``None``: as given), and sentences on the baseline.

    ``rates``: those of methods that have another one, by label.
    """

    lr: float | None = None
    rates: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    trial: Trial | None = None  # half of the budget, at that learning rate

    def say_rates(self, labels: Iterable[str]) -> list[str]:
        """A sentence for each method that has another rate."""
        own = [label for label in labels if self.rates.get(label, self.lr) != self.lr]
        return [
            f"{label}: learning rate {self.rates[label]:.2g}, its best on the validation data,"
            f" which differ from the training data; {self.lr:.2g} for the others"
            for label in own
        ]

    def look_at(self, value: float | None, rows: Tensor | None, budget: Budget) -> None:
        """Note what the second half of the budget gained a full run of dense training."""
        trial, self.trial = self.trial, None
        if trial is None or value is None:
            return
        longer = replace(trial, value=value, rows=rows)
        if longer.is_better(trial):
            name, limit = next((k, v) for k, v in vars(budget).items() if v is not None)
            self.notes.append(
                "training is short: twice the budget makes dense training better"
                f" ({longer.beside(trial)}); try budget=Budget({name}={2 * limit:g})"
            )

    def save(self, folder: Path) -> None:
        """Keep everything for a later call."""
        trial = None if self.trial is None else vars(self.trial)
        write_json(folder / NAME, {**vars(self), "trial": trial})

    @classmethod
    def load(cls, folder: Path) -> Baseline | None:
        """What `save` kept; ``None`` without it."""
        kept = read_json(folder / NAME)
        if not kept:
            return None
        baseline = cls(kept["lr"], dict(kept["rates"]), list(kept["notes"]))
        trial = kept.get("trial")
        if trial is not None and trial["value"] is not None:
            rows = trial["rows"]
            if rows is not None:
                trial["rows"] = torch.tensor([math.nan if row is None else row for row in rows])
            baseline.trial = Trial(**trial)
        return baseline


def find_rates(
    plan: Plan,
    followers: Iterable[str],
    trained: Container[tuple[str, int]],
    check: bool,
    bar: RunsBar,
) -> Baseline:
    """The baseline as checked now, or by an earlier call in the folder of the plan.

    Where no rate is given, controls with rows of a target have their own, and so have policies that
    choose rows by a forecast.

    Args:
        followers: the labels of these.
        trained: runs that exist, of which the rate is no longer to be chosen.
        check: whether to check a baseline that was not.
    """
    task, first, start = plan.task, plan.seeds[0], time.monotonic()
    fixed = task.make_optimizer is not None or task.config.lr is not None
    baseline = Baseline.load(plan.folder)
    kept = {} if baseline is None else baseline.rates
    own = plan.target_controls | {label: plan.policies[label] for label in followers}
    waiting = [each for each in own if not (fixed or each in kept or (each, first) in trained)]
    bar.begin("baseline")
    if baseline is None:
        baseline = Baseline()
        if check:
            baseline = check_baseline(plan, fixed or (DENSE, first) in trained, bar, waiting)
    while waiting and baseline.lr is not None:
        label = waiting.pop(0)
        trials = _try_rates(plan, own[label], bar, later=waiting)
        baseline.rates[label] = task.config.peak_lr * _best(trials)
    if bar.ended:
        took = duration(time.monotonic() - start)
        announce(f"compare: baseline checked by {bar.ended} runs of half of the budget, {took}")
    return baseline


def check_baseline(plan: Plan, fixed: bool, bar: RunsBar, later: Sequence[str] = ()) -> Baseline:
    """Try dense training at several learning rates; see the module.

    ``fixed``: whether the learning rate is the user's, which is not changed; ``later``: methods
    that have their rates tried after it.
    """
    trials = _try_rates(plan, plan.dense, bar, fixed, later)
    best, rate = _best(trials), plan.task.config.peak_lr
    baseline = Baseline(trial=trials[1.0] if fixed else trials[best])
    if not fixed:
        baseline.lr = rate * best
        announce(f"compare: learning rate {baseline.lr:.2g}, the best on validation data")
    elif trials[best].is_better(trials[1.0]):
        place = f"lr {rate * best:.2g}"
        remedy = f"pass config=TrainConfig(lr={rate * best:.2g})"
        if plan.task.make_optimizer is not None:
            place = f"{best:.2g} times its learning rate"
            remedy = f"multiply the learning rate in make_optimizer by {best:.2g}"
        baseline.notes.append(
            f"dense training is better at {place} ({trials[best].beside(trials[1.0])}): this"
            f" comparison is about an untuned baseline; {remedy}"
        )
    return baseline


def _try_rates(
    plan: Plan, method: Method, bar: RunsBar, fixed: bool = False, later: Sequence[str] = ()
) -> dict[float, Trial]:
    """Runs of the first seed by factor: `TRIED` if a rate is ``fixed``.

    Else `CHOSEN`, and up to `WIDER` more beyond an end where the best one is.
    """
    trials: dict[float, Trial] = {}
    waiting, wider = (list(TRIED), 0) if fixed else (list(CHOSEN), WIDER)
    others = [label for label in later for _ in range(len(CHOSEN) + WIDER)]
    while waiting:
        to_come = [method.label] * (len(waiting) + wider) + others
        factor = waiting.pop(0)
        with bar.run(method.label, plan.seeds[0], to_come, bool(wider or others)):
            trials[factor] = try_rate(plan, method, factor, bar.show)
        best, lowest, highest = _best(trials), min(trials), max(trials)
        if wider and not waiting and best in (lowest, highest):
            waiting.append(best * (3 if best == highest else 1 / 3))
            wider -= 1
    return trials


def try_rate(plan: Plan, method: Method, factor: float, show: Show = show_nothing) -> Trial:
    """``method`` for half of the budget with ``factor`` times the learning rate."""
    task, seed, budget = plan.task, plan.seeds[0], plan.budget
    half = {name: limit / 2 for name, limit in vars(budget).items() if limit is not None}
    if budget.steps is not None:
        half = {"steps": max(1, budget.steps // 2)}
    trainer = task.trainer(method.new_policy(seed), seed, Budget(**half), factor)
    try:
        if method.keeps_best:
            record = RunRecord(0, trainer.device, indexed=False, keeps_best=True)
            train_to_end(trainer, task, record, show)
        else:
            for _ in follow(trainer, show):
                pass
    except FloatingPointError:
        return Trial(math.nan)
    measured = trainer.measure_validation()
    value, metric, higher = task.value(measured.values())
    return Trial(value, measured.rows.get(metric), metric, higher)


def _best(trials: dict[float, Trial]) -> float:
    """The best factor; 1 if all runs diverged."""
    values = {
        factor: trial.value if trial.higher else -trial.value
        for factor, trial in trials.items()
        if not math.isnan(trial.value)
    }
    return max(values, key=values.__getitem__, default=1.0)
