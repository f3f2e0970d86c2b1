"""Is dense training a fair baseline? Its learning rate and length, tried before a comparison.

Dense training with the first seed runs for half of the budget at several learning rates, each with
a fully decayed schedule. Where the user gave no learning rate, the best one on the validation data
is taken for all methods; otherwise nothing is changed, and the report says what dense training
would gain.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from astkit.comparison.training import Task
from astkit.comparison.verdict import unit
from astkit.files import read_json, write_json
from astkit.trainers import Budget
from astkit.trainers.progress import duration

CHOSEN = (1 / 3, 1.0, 3.0, 10.0)  # times 1e-3, of which `compare` takes the best
TRIED = (1 / 3, 1.0, 3.0)  # times the user's learning rate
WIDER = 3  # further rates that are tried where the best one is at an end
LEAST = 0.01  # smallest gain that is noted, for accuracies
LEAST_SHARE = 0.02  # and for other metrics, as a share of the value
NAME = "baseline.json"


@dataclass
class Trial:
    """A run of dense training: validation value, and that of each row if it is a mean of them."""

    value: float
    rows: Tensor | None = None

    def gain(self, other: Trial, metric: str, higher: bool) -> float | None:
        """How much better this run is than ``other``; ``None`` if that may be chance.

        It has to exceed `LEAST`, and twice the standard error of the paired differences of rows.
        """
        gain = (self.value - other.value) * (1.0 if higher else -1.0)
        least = LEAST if unit(metric)[0] > 1 else LEAST_SHARE * abs(other.value)
        error = 0.0
        if self.rows is not None and other.rows is not None:
            differences = (self.rows - other.rows).double()
            error = float(differences.nan_to_num().std()) / math.sqrt(len(differences))
        return gain if gain > max(least, 2 * error) else None


@dataclass
class Baseline:
    """Learning rate for all methods (``None``: as given), and sentences on the baseline."""

    lr: float | None = None
    notes: list[str] = field(default_factory=list)
    metric: str = ""
    higher: bool = True
    trial: Trial | None = None  # half of the budget, at that learning rate

    def look_at(self, value: float | None, rows: Tensor | None, budget: Budget) -> None:
        """Note what the second half of the budget gained a full run of dense training."""
        trial, self.trial = self.trial, None
        if trial is None or value is None:
            return
        gain = Trial(value, rows).gain(trial, self.metric, self.higher)
        if gain is not None:
            name, limit = next((k, v) for k, v in vars(budget).items() if v is not None)
            self.notes.append(
                f"twice the budget gained dense training {spelled(gain, self.metric)}: this"
                f" comparison is about short training; try budget=Budget({name}={2 * limit:g})"
            )

    def save(self, folder: Path) -> None:
        """Keep learning rate and sentences for a later call."""
        write_json(folder / NAME, {"lr": self.lr, "notes": self.notes})

    @classmethod
    def load(cls, folder: Path) -> Baseline | None:
        """What `save` kept; ``None`` without it."""
        kept = read_json(folder / NAME)
        return cls(kept["lr"], list(kept["notes"])) if kept else None


class _Trials:
    """Runs of dense training for half of the budget, by the factor on the learning rate."""

    def __init__(self, task: Task, budget: Budget, seed: int) -> None:
        self.task, self.seed = task, seed
        limits = {name: limit / 2 for name, limit in vars(budget).items() if limit is not None}
        if budget.steps is not None:
            limits = {"steps": max(1, budget.steps // 2)}
        self.budget = Budget(**limits)
        self.metric, self.higher = "", True
        self.found: dict[float, Trial] = {}

    def run(self, factor: float) -> None:
        trainer = self.task.trainer(None, self.seed, self.budget, factor)
        trainer.validates = False
        try:
            trainer.run()
        except FloatingPointError:
            self.found[factor] = Trial(math.nan)
            return
        assert trainer.validation is not None
        measured = trainer.measure(trainer.validation, trainer.validation_rows)
        value, self.metric, self.higher = self.task.value(measured.values())
        self.found[factor] = Trial(value, measured.rows.get(self.metric))

    @property
    def best(self) -> float:
        """The best factor; 1 if all runs diverged."""
        sign = 1 if self.higher else -1
        finite = {
            f: sign * each.value for f, each in self.found.items() if each.value == each.value
        }
        return max(finite, key=finite.__getitem__, default=1.0)


def check_baseline(task: Task, budget: Budget, seed: int, given: bool) -> Baseline:
    """Try dense training at several learning rates; see the module.

    ``given``: whether the learning rate is the user's, which is not changed.
    """
    start, trials = time.monotonic(), _Trials(task, budget, seed)
    for factor in TRIED if given else CHOSEN:
        trials.run(factor)
    for _ in range(0 if given else WIDER):
        if trials.best not in (min(trials.found), max(trials.found)):
            break
        trials.run(trials.best * (3 if trials.best == max(trials.found) else 1 / 3))
    best, rate = trials.best, task.config.peak_lr
    baseline = Baseline(metric=trials.metric, higher=trials.higher)
    if given:
        baseline.trial = trials.found[1.0]
        gain = trials.found[best].gain(baseline.trial, trials.metric, trials.higher)
        if gain is not None:
            known = None if task.make_optimizer is not None else rate
            baseline.notes.append(_untuned(spelled(gain, trials.metric), best, known))
    else:
        baseline.lr, baseline.trial = rate * best, trials.found[best]
        print(f"compare: learning rate {baseline.lr:.2g} for all methods, the best on validation")
    took = duration(time.monotonic() - start)
    print(f"compare: baseline checked by {len(trials.found)} runs of half of the budget, {took}")
    return baseline


def with_lr(task: Task, lr: float | None) -> Task:
    """``task`` with the learning rate ``lr``, unless that is ``None``."""
    return task if lr is None else replace(task, config=replace(task.config, lr=lr))


def spelled(gain: float, metric: str) -> str:
    """A gain in words, such as "+4.2 points"."""
    scale, name = unit(metric)
    return f"+{gain * scale:.1f} points" if scale > 1 else f"{gain:.3g} in {name}"


def _untuned(gain: str, factor: float, rate: float | None) -> str:
    place = f"{factor:.2g} times its learning rate"
    remedy = f"multiply the learning rate in make_optimizer by {factor:.2g}"
    if rate is not None:
        place = f"lr {rate * factor:.2g}"
        remedy = f"pass config=TrainConfig(lr={rate * factor:.2g})"
    return (
        f"dense training gains {gain} at {place}: this comparison is about an untuned baseline;"
        f" {remedy}"
    )
