"""Tuning of a gate with Optuna, with dense training as control. Needs astkit[tune].

The budget of each trial is the FLOPs of dense training over the task's epochs; the objective is
the final validation accuracy; the test split is never used. Trials of all processes that share a
storage file are counted together.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from astkit import files, rng
from astkit.gating import LogIntegral
from astkit.runs import arms
from astkit.runs.intervals import paired_difference
from astkit.trainers import Budget, Trainer
from astkit.trainers.state import SCHEDULES

try:
    import optuna
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tuning needs optuna, which is not installed: pip install 'astkit[tune]'"
    ) from error
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

_WRONG = (AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that Optuna raises for an invalid journal."""

GATE, DENSE, RANDOM = "batched gate", "dense", "random"
RATES, GAINS, LR_FACTOR = (0.05, 0.6), (0.1, 2.0), 10.0

Parameters = dict[str, Any]


@dataclass(frozen=True)
class Tuning:
    """Search for target rate, schedule and gain of a gate with `LogIntegral`.

    The dense control is tuned over the parameters it shares: each schedule once, or, with
    ``lr``, as many trials over schedule and learning rate as the gate.

    Args:
        task: the task to train; its epochs set the FLOPs of a trial.
        storage: journal file, created if missing; several processes may use it concurrently.
        lr: also tune the learning rate, within a factor of ten of the task's value.
        seed: seed of each trial's training, and of the search.
    """

    task: arms.Task
    storage: Path
    lr: bool = False
    seed: int = 0

    @cached_property
    def flops(self) -> float:
        """FLOPs of dense training over the task's epochs, from the cost of one batch."""
        work = arms.trainer(self.task, DENSE, self.seed, Budget(epochs=self.task.epochs))
        next(work.steps())
        a_row = work.ledger.flops.total / work.ledger.samples.trained
        return a_row * len(self.task.splits.train) * self.task.epochs

    def study(self, arm: str) -> optuna.Study:
        """The stored study of ``arm``, "batched gate" or "dense".

        Raises ``ValueError`` if the file contains a study of another task or other settings.
        """
        settings = self._settings  # first, since it raises for an invalid task
        study = optuna.create_study(
            storage=self._open(),
            study_name=arm,
            direction="maximize",
            load_if_exists=True,
        )
        if study.user_attrs.get("settings", settings) != settings:
            raise ValueError(
                f"{self.storage} contains a search with other settings of the task, lr or seed,"
                " whose trials are not comparable: choose another file, or restore those settings"
            )
        study.set_user_attr("settings", settings)
        return study

    def _open(self) -> optuna.storages.JournalStorage:
        file = files.check_target(self.storage)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            _check_journal(file)
            backend = JournalFileBackend(str(file), JournalFileOpenLock(str(file)))
            return optuna.storages.JournalStorage(backend)
        except _WRONG as error:
            raise ValueError(f"{file} contains no search: choose another file") from error

    @cached_property
    def _settings(self) -> str:
        try:
            return json.dumps([self.task.settings(), self.flops, self.lr, self.seed])
        except TypeError as error:
            raise ValueError(
                f"the task cannot be written as JSON ({error}): give score and controller by name"
            ) from error

    def run(self, trials: int, announce: Callable[[str], None] = print) -> None:
        """Search until the gate has ``trials`` trials, including those of other processes.

        A trial that diverges is stored as failed and counted; an interrupted one is not counted.
        A killed one remains "running", is counted, and is shown by `best`.
        """
        if trials < 1:
            raise ValueError(f"trials is {trials}: give 1 or more")
        for arm, count in ((DENSE, trials if self.lr else len(SCHEDULES)), (GATE, trials)):
            study = self.study(arm)
            while (turn := self._next(study, arm, count)) is not None:
                trial, parameters = turn
                outcome = self._tell(study, trial, arm, parameters)
                shown = ", ".join(f"{name} {_short(value)}" for name, value in parameters.items())
                announce(f"{arm}, trial {trial.number}: {shown}: {outcome}")

    def _next(
        self, study: optuna.Study, arm: str, count: int
    ) -> tuple[optuna.Trial, Parameters] | None:
        # no other process may start a trial between count and draw
        turn = JournalFileOpenLock(f"{self.storage}.turn")
        turn.acquire()
        try:
            there = study.get_trials(deepcopy=False)
            counted = [trial for trial in there if not _interrupted(trial)]
            if len(counted) >= count:
                return None
            # seeded by the trial's number, so a resumed search repeats no draws
            seed = rng.derive(self.seed, "tuning", arm, len(there)) % 2**32
            study.sampler = optuna.samplers.TPESampler(seed=seed)
            if arm == DENSE and not self.lr:
                tried = {trial.params["schedule"] for trial in counted}
                study.enqueue_trial({"schedule": next(s for s in SCHEDULES if s not in tried)})
            trial = study.ask()
            return trial, self._suggest(trial, arm)
        finally:
            turn.release()

    def _suggest(self, trial: optuna.Trial, arm: str) -> Parameters:
        found: Parameters = {"schedule": trial.suggest_categorical("schedule", list(SCHEDULES))}
        if self.lr:
            low, high = self.task.config.lr / LR_FACTOR, self.task.config.lr * LR_FACTOR
            found["lr"] = trial.suggest_float("lr", low, high, log=True)
        if arm == GATE:
            found["target_rate"] = trial.suggest_float("target_rate", *RATES, log=True)
            found["gain"] = trial.suggest_float("gain", *GAINS, log=True)
        return found

    def _tell(
        self, study: optuna.Study, trial: optuna.Trial, arm: str, parameters: Parameters
    ) -> str:
        try:
            epochs = self.trainer(arm, parameters, self.seed).run().epochs
            value = float(epochs[-1]["val_accuracy"])
        except (FloatingPointError, ValueError) as error:  # the training diverged
            trial.set_user_attr("error", str(error))
            study.tell(trial, state=TrialState.FAIL)
            return f"failed, {error}"
        except BaseException:
            study.tell(trial, state=TrialState.FAIL)
            raise
        study.tell(trial, value)
        return f"validation accuracy {value:.2%}"

    def trainer(self, arm: str, parameters: Parameters, seed: int) -> Trainer:
        """A trainer for ``arm`` with ``parameters`` instead of the task's."""
        config = {name: parameters[name] for name in ("schedule", "lr") if name in parameters}
        task = replace(self.task, config=replace(self.task.config, **config))
        if "target_rate" in parameters:
            rate = parameters["target_rate"]
            controller = LogIntegral(rate, parameters["gain"])
            gate = {**task.gate, "target_rate": rate, "controller": controller}
            task = replace(task, gate=gate)
        return arms.trainer(task, arm, seed, Budget(flops=self.flops))

    def best(self, seeds: int = 3) -> pd.DataFrame:
        """Retrain the best trial of gate and control with new seeds; one row per arm.

        ``searched`` is the best of many trials, so it is biased upwards; ``validation accuracy`` is
        the mean over ``n`` seeds not used in the search; ``above dense`` is the paired
        difference, with its 95 % interval from ``from`` to ``to``. The third row is random
        selection at the gate's rate and schedule.

        Raises ``ValueError`` if an arm has no completed trial.
        """
        rows, found = [], {arm: self._best(arm) for arm in (GATE, DENSE)}
        accuracies: dict[str, dict[int, float]] = {}
        for arm in (GATE, DENSE, RANDOM):
            counts, parameters, value = found.get(arm, ({}, found[GATE][1], None))
            new = range(self.seed + 1, self.seed + 1 + seeds)
            works = {seed: self.trainer(arm, parameters, seed) for seed in new}
            values = {seed: work.run().epochs[-1]["val_accuracy"] for seed, work in works.items()}
            accuracies[arm] = values
            row = {"arm": arm, **counts, "searched": value, "n": seeds}
            row["validation accuracy"] = sum(values.values()) / seeds
            row["FLOPs"] = sum(work.ledger.flops.total for work in works.values()) / seeds
            rows.append({**row, **parameters})
        table = pd.DataFrame(rows).set_index("arm")
        gaps = [paired_difference(accuracies[arm], accuracies[DENSE]) for arm in table.index]
        at = list(table.columns).index("FLOPs")
        for name, part in (("to", "high"), ("from", "low"), ("above dense", "mean")):
            table.insert(at, name, [getattr(gap, part) for gap in gaps])
        return table

    def _best(self, arm: str) -> tuple[dict[str, int], Parameters, float]:
        trials = self.study(arm).get_trials(deepcopy=False)
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        if not complete:
            raise ValueError(
                f"{self.storage} contains no completed trial of {arm!r}: run the search first"
            )
        first = max(complete, key=lambda trial: trial.value or 0.0)
        counts = {"trials": len(trials)}
        for state in (TrialState.FAIL, TrialState.RUNNING):
            counts[state.name.lower()] = sum(trial.state == state for trial in trials)
        return counts, dict(first.params), float(first.value or 0.0)


def _check_journal(file: Path) -> None:
    """Raise if the file is not a journal; Optuna would append to any file."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    for line in lines if lines and lines[-1].endswith(b"\n") else lines[:-1] or lines:
        if not isinstance(json.loads(line)["op_code"], int):
            raise ValueError("op_code is not a number")


def _interrupted(trial: optuna.trial.FrozenTrial) -> bool:
    return trial.state == TrialState.FAIL and "error" not in trial.user_attrs


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def quiet() -> None:
    """Silence Optuna's log, which duplicates the messages of `Tuning.run`."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
