"""The parts of a training run and how far it is: what a checkpoint saves and restores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from astkit.datasets import BatchSource
from astkit.gating.losses import Criterion
from astkit.gating.policy import Policy
from astkit.profiling.flops import Costs
from astkit.profiling.ledger import Ledger
from astkit.trainers.batches import Batches
from astkit.trainers.config import Budget, TrainConfig
from astkit.trainers.evaluation import Metric
from astkit.trainers.history import History
from astkit.trainers.optimisation import Optimisation
from astkit.trainers.reports import Reports
from astkit.trainers.run_checkpoints import RunCheckpoints
from astkit.trainers.steering import Steering
from astkit.trainers.validation import Validator

COUNTS = ("step", "progress", "done")
STATEFUL = (
    "policy",
    "batches",
    "optimisation",
    "ledger",
    "reports",
    "steering",
    "validator",
)
"""Attributes of a run that a checkpoint saves: plain values, and parts with a state."""


@dataclass(eq=False, repr=False)
class RunState:
    """A run: its settings, its parts, and how far it is. `Trainer` builds it and trains.

    Attributes:
        batches: the training data, and the place in them.
        validator: the validation data, and early stopping by them.
        optimisation: model, criterion and optimizer; ``model``: without DistributedDataParallel.
        ledger: what was spent; ``costs``: FLOPs of a row.
        reports: history and observers; ``steering``: changes of the policy's settings.
        saves: checkpoints; ``None`` without.
        step: batches trained on.
        progress: fraction of the budget spent, in [0, 1]; ``done``: whether the run has ended.
    """

    config: TrainConfig
    budget: Budget
    policy: Policy
    batches: Batches
    validator: Validator
    optimisation: Optimisation
    ledger: Ledger
    costs: Costs
    reports: Reports
    steering: Steering
    saves: RunCheckpoints | None
    step: int = 0
    progress: float = 0.0
    done: bool = False

    def __post_init__(self) -> None:
        self.model = self.optimisation.model  # without DistributedDataParallel

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"Trainer({type(self.model).__name__} with {size:,} parameters on {self.device},"
            f" {type(self.policy).__name__}, step {self.step}, {self.progress:.0%} of the budget)"
        )

    @property
    def criterion(self) -> Criterion:
        """One loss per row."""
        return self.optimisation.criterion

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return self.optimisation.optimizer

    @property
    def device(self) -> torch.device:
        """The device of the model and the batches."""
        return self.batches.device

    @property
    def history(self) -> History:
        """The records of the run."""
        return self.reports.history

    @property
    def train_data(self) -> BatchSource:
        """The training data as batches."""
        return self.batches.undivided

    @property
    def validation(self) -> BatchSource | None:
        """The validation data as batches."""
        return self.validator.source

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The further metrics."""
        return self.validator.metrics

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self.batches.epoch.number

    def report(self) -> None:
        """Send the records since the last report to the observers; waits for the device."""
        self.optimisation.check()  # raises if a loss or gradient was not finite
        if self.reports.unseen:
            self.ledger.settle()
            energy = self.ledger.energy()
            shown = {}
            if self.policy.chooses:
                shown["origin_units"] = self.ledger.origin_energy_units
                shown["origin_units_dense"] = self.ledger.origin_energy_units_dense
            self.reports.send(shown, joules=energy.joules, joules_reason=energy.reason)

    def _save(self) -> Path | None:
        """Save the current state, unless it is saved already; returns the folder."""
        if self.saves is None:
            return None
        place = self._place()
        if place != self.saves.place:
            self.policy.exchange()
            self.report()
            self.ledger.pool()
            self.reports.sync()
            state = {**self.optimisation.weights(), "trainer": self.state_dict()}
            self.saves.write(state, place)
        return self.saves.folder

    def _place(self) -> tuple[object, ...]:
        return self.step, self.epoch, self.done, dict(self.steering.requested)

    def _open(self, saves: RunCheckpoints, description: Mapping[str, Any], resume: bool) -> None:
        """Continue from the newest checkpoint if requested."""
        found = saves.open(description, resume)
        if found is None:
            return
        path, state = found
        try:
            self.optimisation.load_weights(state)
            self.load_state_dict(state["trainer"])
        except Exception as error:
            what = f"{type(error).__name__}: {error}".splitlines()[-1].strip()
            raise ValueError(
                f"{path} does not hold the state of this run ({what}): restore what has changed, or"
                " choose another folder"
            ) from error
        saves.place = self._place()

    def state_dict(self) -> dict[str, Any]:
        """State of the run without weights and optimizer.

        No RNG state is needed: random numbers depend on seed, step and purpose only.
        """
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {name: getattr(self, name).state_dict() for name in STATEFUL}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state``; the caller restores model and optimizer."""
        for name in COUNTS:
            setattr(self, name, state[name])
        for name in STATEFUL:
            getattr(self, name).load_state_dict(state[name])
