"""The trainer: the loop for a model, data and a policy."""

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
    """Trains ``model`` until its budget is spent: ``Trainer(...).run()``.

    Args:
        model: called with a batch's inputs, see `astkit.batch.call`.
        train: a data set, a `Loader`, or an ordinary DataLoader of batches of any structure.
        validation: the same, evaluated after each epoch; ``None`` for no validation.
        policy: chooses the rows to train on: a `Policy`, its name, or ``{"name": ..., argument:
            value}``; everything by default.
        epochs: iterations of the training data; short for ``budget=Budget(epochs=...)``.
        budget: what may be spent.
        batch_size: rows a batch; for data sets and a `Loader`.
        step: how a batch is trained on; by default as the policy needs.
        config: learning rate, precision and so on.
        criterion: ``(outputs, targets)`` to one loss a row; cross-entropy by default.
        metrics: of an evaluation, beside the loss: functions ``(outputs, targets) -> [rows]`` by
            name, or `Metric` objects. Integer labels bring accuracy by themselves.
        optimizer: built on ``model``'s parameters; AdamW from ``config`` by default.
        observers: receive a record after each batch, while no clock runs.
        replay: events of a run that was steered or switched, to make the same changes again.
        meter: measures the energy of training and evaluation; none by default.
        evaluator: makes the evaluator; by default one of the loss and ``metrics``.
        costs: makes the counter of a sample's FLOPs; by default it traces the model's operations.
        device: "auto" takes the accelerator that torch sees.
        checkpoints: where to save the run's state during training, or a folder for that.
        resume: continue from the newest checkpoint there, or begin if there is none.

    Raises:
        ValueError: for labels that the model has no output for, a criterion that averages, a model
            that returns a wrong shape; before any weight changes. For checkpoints that are there
            without ``resume``, are of a run with other settings, or are all damaged.
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
        self.feed = Feed(self.train, self.policy, self.device, self.config.seed)
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
        size = self.config.batch_size
        data = as_loader(train, self.device, size, seed=self.config.seed)
        if validation is None:
            return data, None
        held = size if is_dataset(validation) else None  # a loader has a size of its own
        return data, as_loader(validation, self.device, held, shuffle=False)

    def _step(self) -> Step:
        chooses = self.policy is not None and overrides(self.policy, "choose")
        return GatedStep(self.policy) if chooses and self.policy is not None else DenseStep()

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the policy before the next batch; from any thread.

        The change is recorded as an event of the run, which counts as steered from then on.
        Raises ``ValueError`` for a run without such settings.
        """
        if not hasattr(self.step, "steer"):
            raise ValueError(
                f"{type(self.step).__name__} has no setting {name!r} to steer: give the trainer a"
                " policy that chooses after scoring, such as a Gate"
            )
        self.steering.put(name, value)

    def evaluate(self, data: Any) -> dict[str, Any]:
        """Metrics of one pass of ``data``, such as the test split, on the evaluation clock.

        ``samples``, ``loss``, and the metrics by name; for integer labels ``accuracy`` in [0, 1]
        with its 95 % interval ``accuracy_interval``, else ``None``.
        """
        return self.evaluator.evaluate(as_loader(data, self.device, shuffle=False))


def _budget(budget: Budget | None, epochs: float | None) -> Budget:
    if budget is not None and epochs is not None:
        raise ValueError(f"epochs is {epochs}, but a budget is given too: leave one out")
    if budget is None and epochs is None:
        raise ValueError(
            "neither epochs nor budget is given, so training has no end: pass epochs=10, say"
        )
    return budget or Budget(epochs=epochs)
