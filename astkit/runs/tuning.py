"""Search of a gate's settings with Optuna, with dense training as control. Needs astkit[tune].

The budget of each trial is the FLOPs of dense training over some epochs; the objective is the final
validation accuracy; the test data are never used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from astkit import files, rng
from astkit.gating import Gate, LogIntegral, Policy, RandomSubset
from astkit.identity import configuration
from astkit.runs.comparison_task import DENSE, Task
from astkit.runs.intervals import paired_difference
from astkit.trainers import Budget, Trainer
from astkit.trainers.state import SCHEDULES

GATE, RANDOM = "gate", "random"
RATES, GAINS, LR_FACTOR = (0.05, 0.6), (0.1, 2.0), 10.0


@dataclass(frozen=True)
class Tuning:
    """Search for target rate, schedule and gain of a gate with `LogIntegral`.

    The dense control is tuned over the parameters it shares: each schedule once, or, with
    ``lr``, as many trials over schedule and learning rate as the gate.

    Args:
        task: model, data and settings of all trials.
        epochs: of dense training, whose FLOPs each trial spends.
        storage: Optuna's journal file, created if missing; processes may share it.
        lr: also tune the learning rate, within a factor of ten of the task's value.
        seed: seed of each trial's training, and of the search.
    """

    task: Task
    epochs: float
    storage: Path
    lr: bool = False
    seed: int = 0

    @cached_property
    def flops(self) -> float:
        """FLOPs of dense training over the epochs, from the cost of one batch."""
        work = self.task.trainer(None, self.seed, Budget(epochs=self.epochs))
        next(work.steps())
        a_row = work.ledger.flops.total / work.ledger.samples.trained
        return a_row * (work.train.num_samples or 0) * self.epochs

    def study(self, arm: str) -> optuna.Study:
        """The stored study of ``arm``, "gate" or "dense".

        Raises ``ValueError`` for a file that is not a journal or holds a search of other settings.
        """
        shared = self.task.settings(Budget(flops=self.flops), self.seed)
        settings = [shared, self.lr, self.seed]
        file, text = files.check_target(self.storage), json.dumps(configuration(settings))
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            content = file.read_bytes() if file.exists() else b""
            if content and not content.startswith(b'{"op_code"'):
                raise ValueError("it is no journal")  # Optuna would append to any file
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(file)))
            study = optuna.create_study(
                storage=storage, study_name=arm, direction="maximize", load_if_exists=True
            )
        except Exception as error:  # Optuna raises many kinds for an invalid journal
            raise ValueError(f"{file} contains no search ({error}): choose another file") from error
        if study.user_attrs.get("settings", text) != text:
            raise ValueError(
                f"{file} contains a search with other epochs, lr, seed or settings of the task,"
                " whose trials are not comparable: choose another file, or restore those settings"
            )
        study.set_user_attr("settings", text)
        # a resumed search must not repeat its first draws
        draws = rng.derive(self.seed, "tuning", arm, len(study.trials)) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=draws)
        if arm == DENSE and not self.lr:
            study.sampler = optuna.samplers.GridSampler({"schedule": list(SCHEDULES)})
        return study

    def run(self, trials: int) -> None:
        """Search until the gate has ``trials`` completed trials; prints each."""
        if trials < 1:
            raise ValueError(f"trials is {trials}: give 1 or more")
        for arm, count in ((DENSE, trials if self.lr else len(SCHEDULES)), (GATE, trials)):
            study = self.study(arm)
            left = count - len(study.get_trials(states=(TrialState.COMPLETE,)))
            study.optimize(
                partial(self._objective, arm),
                n_trials=max(0, left),
                catch=(FloatingPointError, ValueError),  # training diverged: a failed trial
                callbacks=[optuna.study.MaxTrialsCallback(count), partial(_announce, arm)],
            )

    def _objective(self, arm: str, trial: optuna.Trial) -> float:
        trial.suggest_categorical("schedule", list(SCHEDULES))
        if self.lr:
            low, high = self.task.config.lr / LR_FACTOR, self.task.config.lr * LR_FACTOR
            trial.suggest_float("lr", low, high, log=True)
        if arm == GATE:
            trial.suggest_float("target_rate", *RATES, log=True)
            trial.suggest_float("gain", *GAINS, log=True)
        return self._accuracy(self.trainer(arm, trial.params, self.seed))

    def _accuracy(self, work: Trainer) -> float:
        work.run()
        return float(work.evaluate(self.task.held("validation"))["accuracy"])

    def trainer(self, arm: str, parameters: dict[str, Any], seed: int) -> Trainer:
        """A trainer for ``arm``; ``parameters`` replace the task's settings."""
        config = {name: parameters[name] for name in ("schedule", "lr") if name in parameters}
        task = replace(self.task, config=replace(self.task.config, **config))
        policy: Policy | None = None
        if arm != DENSE:
            rate = parameters["target_rate"]
            policy = RandomSubset(rate, seed=seed)
            if arm == GATE:
                law = LogIntegral(rate, parameters["gain"])
                policy = Gate(rate, controller=law, seed=seed)
        return task.trainer(policy, seed, Budget(flops=self.flops))

    def best(self, seeds: int = 3) -> pd.DataFrame:
        """Retrain the best trial of gate and control with new seeds; one row per arm.

        ``searched`` is the best of many trials, so it is biased upwards; ``validation accuracy`` is
        the mean over ``n`` seeds not used in the search; ``above dense`` is the paired difference
        with its 95 % interval. The third row is random selection at the gate's rate and schedule.

        Raises ``ValueError`` if an arm has no completed trial.
        """
        found = {arm: self.study(arm).best_trial for arm in (GATE, DENSE)}
        rows, accuracies = [], dict[str, dict[int, float]]()
        for arm in (DENSE, GATE, RANDOM):
            trial = found.get(arm, found[GATE])
            new = range(self.seed + 1, self.seed + 1 + seeds)
            works = {seed: self.trainer(arm, trial.params, seed) for seed in new}
            ends = {seed: self._accuracy(work) for seed, work in works.items()}
            accuracies[arm] = ends
            row = {"arm": arm, "searched": trial.value if arm in found else None, "n": seeds}
            row["validation accuracy"] = sum(ends.values()) / seeds
            row["above dense"] = str(paired_difference(ends, accuracies[DENSE]))
            row["FLOPs"] = sum(work.ledger.flops.total for work in works.values()) / seeds
            rows.append({**row, **trial.params})
        return pd.DataFrame(rows).set_index("arm")


def _announce(arm: str, study: optuna.Study, trial: FrozenTrial) -> None:
    shown = ", ".join(f"{name} {value}" for name, value in trial.params.items())
    ended = "failed" if trial.value is None else f"validation accuracy {trial.value:.2%}"
    print(f"{arm}, trial {trial.number}: {shown}: {ended}", flush=True)
