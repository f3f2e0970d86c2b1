"""Trainer: builds the training loop from model, data and policy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from astkit import logs
from astkit.datasets import BatchSource, as_loader
from astkit.datasets.foreign import is_dataset
from astkit.gating import Criterion, Policy, as_policy, cross_entropy_rows
from astkit.gating.policy import overrides
from astkit.profiling import EnergyMeter
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.profiling.throughput import Throughput
from astkit.trainers.autotune import SettingsInUse
from astkit.trainers.batch_order import Feed
from astkit.trainers.checkpoint import Checkpoints
from astkit.trainers.config import TrainConfig
from astkit.trainers.costs import Costs, CostsMaker
from astkit.trainers.evaluator import Evaluator, EvaluatorMaker, Metrics, sampled_rows
from astkit.trainers.learner import Learner, choose_device
from astkit.trainers.policy_feedback import Visits
from astkit.trainers.resume import Resumable
from astkit.trainers.state import (
    SCHEDULES,
    Budget,
    Event,
    History,
    Observer,
    Position,
    Steering,
)
from astkit.trainers.steps import DenseStep, GatedStep, Step
from astkit.trainers.switching import Switch


class Trainer(Resumable):
    """Trains ``model`` until the budget is spent: ``Trainer(...).run()``.

    Args:
        model: called with the inputs of a batch, see `astkit.batch.call`.
        train: a data set, a `Loader`, or a torch DataLoader of batches of any structure.
        validation: likewise, evaluated after each epoch; ``None`` disables validation.
        policy: chooses the rows to train on: a `Policy`, its name, or ``{"name": ..., argument:
            value}``; by default all rows.
        epochs: iterations of the training data; shorthand for ``budget=Budget(epochs=...)``.
        budget: training budget.
        batch_size: rows a batch; for data sets and a `Loader`.
        step: training step; by default chosen to fit the policy.
        config: learning rate, precision and so on.
        criterion: ``(outputs, targets)`` -> one loss per row; cross-entropy by default.
        metrics: additional validation metrics: functions ``(outputs, targets) -> [rows]`` by name,
            or `Metric` objects. Accuracy is computed for integer labels by default.
        optimizer: built on ``model``'s parameters; AdamW from ``config`` by default.
        observers: receive a record after each batch; their time is not measured.
        replay: events of a steered or switched run whose changes are applied again.
        meter: measures the energy of training and evaluation; none by default.
        evaluator: factory of the evaluator; by default of loss and ``metrics``.
        costs: factory of the FLOPs counter; by default it traces the model's operations.
        device: "auto" uses the available accelerator.
        checkpoints: a `Checkpoints` object or a folder for the state of the run.
        resume: continue from the newest checkpoint, or start if there is none.

    Raises:
        ValueError: before any weight changes, for labels out of range, a criterion that averages,
            or model outputs of the wrong shape. For existing checkpoints if ``resume`` is false,
            the settings differ, or all are damaged.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Any,
        validation: Any = None,
        *,
        policy: Policy | str | Mapping[str, Any] | None = None,
        epochs: float | None = None,
        budget: Budget | None = None,
        batch_size: int | None = None,
        step: Step | None = None,
        config: TrainConfig | None = None,
        criterion: Criterion = cross_entropy_rows,
        metrics: Metrics = None,
        optimizer: torch.optim.Optimizer | None = None,
        observers: Sequence[Observer] = (),
        replay: Iterable[Event | Mapping[str, Any]] = (),
        meter: EnergyMeter | None = None,
        evaluator: EvaluatorMaker | None = None,
        costs: CostsMaker = Costs,
        device: str | torch.device = "auto",
        checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> None:
        self.device = choose_device(device)
        self.config = config or TrainConfig()
        if batch_size is not None:
            self.config = replace(self.config, batch_size=batch_size)
        self.budget = _budget(budget, epochs)
        self.train, self.validation = self._sources(train, validation)
        self.learner = Learner(
            model, self.config, criterion=criterion, optimizer=optimizer, device=self.device
        )
        self.policy = as_policy(policy, self.config.seed)
        self.step = step or self._step()
        self.feed = Feed(self.train, self.policy, self.device, self.config.seed, self.validation)
        self.setting_up = SettingsInUse(self.config, self.learner, self.feed)
        self.schedule = SCHEDULES[self.config.schedule]
        self.ledger = Ledger(synchronize=synchronizer(self.device), meter=meter)
        self.position = Position()
        self.steering = Steering(replay)
        self.history = History(self.config.metrics_every)
        rate = Throughput(self.ledger, self.device, level=logs.PERFORMANCE)
        self.observers: list[Observer] = [self.history, rate, *observers]
        self.costs = costs(self.learner)
        self.learner.book = self._book_helper
        self.visits = Visits([self.policy, getattr(self.step, "gate", None)], self.learner)
        self.switch = None
        switched = self.steering.take_switching()
        if self.visits.policies and (self.config.switch_off or switched):
            name = type(self.visits.policies[0]).__name__
            self.switch = Switch(name, {event.step: event for event in switched})
        self.prepared = False
        make = evaluator or partial(Evaluator, metrics=metrics)
        self.evaluator = make(self.learner, self.ledger, self._cost)
        if self.validation is not None:
            fraction = self.config.validation_fraction
            self.evaluator.rows = sampled_rows(self.validation, fraction)
        self._open(checkpoints, resume)

    def _sources(self, train: Any, validation: Any) -> tuple[BatchSource, BatchSource | None]:
        wanted = self.config.batch_size
        size = None if wanted == "auto" else wanted
        data = as_loader(train, self.device, size, seed=self.config.seed)
        if validation is None:
            return data, None
        held = size if is_dataset(validation) else None  # a loader has its own batch size
        return data, as_loader(validation, self.device, held, shuffle=False)

    def _step(self) -> Step:
        chooses = self.policy is not None and overrides(self.policy, "choose")
        return GatedStep(self.policy) if chooses and self.policy is not None else DenseStep()

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the policy before the next batch; thread-safe.

        The change is recorded as an event, and the run is marked as steered.
        Raises ``ValueError`` for a run without such settings.
        """
        if not hasattr(self.step, "steer"):
            raise ValueError(
                f"{type(self.step).__name__} has no setting {name!r} to steer: give the trainer a"
                " policy that chooses after scoring, such as a Gate"
            )
        self.steering.put(name, value)

    def evaluate(self, data: Any) -> dict[str, Any]:
        """Metrics of one pass over ``data``, such as the test split; not counted as training.

        ``samples``, ``loss``, and the metrics by name; for integer labels ``accuracy`` in [0, 1]
        with its 95 % interval ``accuracy_interval``, else ``None``.
        """
        return self.evaluator.evaluate(as_loader(data, self.device, shuffle=False))


def _budget(budget: Budget | None, epochs: float | None) -> Budget:
    if budget is not None and epochs is not None:
        raise ValueError(f"epochs is {epochs}, but a budget is given too: pass only one")
    if budget is None and epochs is None:
        raise ValueError("neither epochs nor budget is given: pass one, such as epochs=10")
    return budget or Budget(epochs=epochs)
