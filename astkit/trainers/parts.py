"""Parts of a run: built from model, data and policy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from astkit import distributed, logs
from astkit.batch import Batch
from astkit.datasets import BatchSource, as_loader
from astkit.datasets.foreign import is_dataset
from astkit.gating import Criterion, Policy, as_policy, cross_entropy_rows
from astkit.gating.policy import overrides
from astkit.profiling import EnergyMeter
from astkit.profiling.flops import FlopsPerSample
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.profiling.throughput import Throughput
from astkit.trainers.autotune import SettingsInUse, open_choices
from astkit.trainers.batch_order import Feed
from astkit.trainers.checkpoint import Checkpoints
from astkit.trainers.config import TrainConfig, check_kinds
from astkit.trainers.costs import Costs, CostsMaker
from astkit.trainers.evaluator import Evaluator, EvaluatorMaker, Metrics, sampled_rows
from astkit.trainers.learner import Learner, choose_device
from astkit.trainers.policy_feedback import Visits
from astkit.trainers.sample_by_sample import SampleStep
from astkit.trainers.state import SCHEDULES, Budget, Event, History, Observer, Position, Steering
from astkit.trainers.steps import DenseStep, GatedStep, Step
from astkit.trainers.switching import Switch
from astkit.trainers.updates import check_parameters


class Parts:
    """The parts of a run and its state; see `Trainer` for the arguments."""

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
        check_kinds(
            {
                "model": model,
                "epochs": epochs,
                "budget": budget,
                "step": step,
                "config": config,
                "criterion": criterion,
                "optimizer": optimizer,
                "observers": observers,
            }
        )
        self.device = choose_device(device)
        self.config = config or TrainConfig()
        if batch_size is not None:
            self.config = replace(self.config, batch_size=batch_size)
        self.budget = _budget(budget, epochs)
        self.train, self.validation = self._sources(train, validation)
        self.learner = Learner(
            model, self.config, criterion=criterion, optimizer=optimizer, device=self.device
        )
        check_parameters(self.model, self.optimizer, criterion)
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
        self.costs.settle = self.ledger.settle
        self.learner.book = self._book_helper
        self.visits = Visits([self.policy, getattr(self.step, "gate", None)], self.learner)
        if self.visits.watching and isinstance(self.step, SampleStep):
            raise ValueError(
                "the policy needs the correctness of the rows of a batch, but SampleStep trains on"
                " single rows: use a GatedStep, or another policy"
            )
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
        if isinstance(checkpoints, str | os.PathLike):
            checkpoints = Checkpoints(checkpoints)
        self.checkpoints = checkpoints
        if distributed.world() > 1:
            self._check_processes()
        self._open(resume)

    def _open(self, resume: bool) -> None:
        """Continue from the newest checkpoint if requested; see `Resumable`."""

    def _check_processes(self) -> None:
        """Raise ``ValueError`` for what each process would decide on its own, or cannot do."""
        timed = {"precision", "channels_last"} & set(open_choices(self.config))
        for found, what, remedy in (
            (timed, f'{" and ".join(sorted(timed))} "auto"', "give a value"),
            (self.switch is not None, "switch_off", "leave it out"),
            (isinstance(self.step, SampleStep), "SampleStep", "use a GatedStep"),
        ):
            if found:
                raise ValueError(
                    f"{what} cannot be used in {distributed.world()} processes, which would do"
                    f" different steps: {remedy}"
                )
        for policy in self.visits.policies if distributed.is_sharded(self.model) else ():
            helped = policy.cost.helpers and getattr(policy, "proxy", None) is None
            if helped or overrides(policy, "prepare"):
                raise ValueError(
                    f"{type(policy).__name__} copies the model, which fully_shard prevents: use"
                    " DistributedDataParallel, or another policy"
                )

    @property
    def model(self) -> nn.Module:
        """The model in training."""
        return self.learner.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the model in training."""
        return self.learner.optimizer

    @property
    def selecting(self) -> bool:
        """Whether the policy selects the rows of the next batch."""
        return self.switch is None or self.switch.selecting

    @property
    def current_step(self) -> Step:
        """The step; while selection is switched off, without the selection by its ``gate``."""
        dense: Step = getattr(self.step, "dense", DenseStep())
        return self.step if self.selecting or getattr(self.step, "gate", None) is None else dense

    @property
    def done(self) -> bool:
        """Whether the budget is spent and the last validation is complete."""
        return self.position.phase == "done"

    @property
    def progress(self) -> float:
        """Fraction of the budget spent, in [0, 1]."""
        return self.position.spent

    def _sources(self, train: Any, validation: Any) -> tuple[BatchSource, BatchSource | None]:
        size = self.config.batch_size
        data = as_loader(train, self.device, size, seed=self.config.seed)
        if validation is None:
            return data, None
        held = size if is_dataset(validation) else None  # a loader has its own batch size
        return data, as_loader(validation, self.device, held, shuffle=False)

    def _step(self) -> Step:
        if self.policy is not None and overrides(self.policy, "choose"):
            return GatedStep(self.policy)
        return DenseStep()

    def _cost(self, batch: Batch) -> FlopsPerSample:
        return self.costs.of(batch, self.feed.source.check_labels)

    def _book_helper(self, model: nn.Module, batch: Batch, trained: bool) -> None:
        self.ledger.note_helper(self.costs.of_helper(model, batch), batch.rows, trained)


def _budget(budget: Budget | None, epochs: float | None) -> Budget:
    if budget is not None and epochs is not None:
        raise ValueError(f"epochs is {epochs}, but a budget is given too: pass only one")
    if budget is None and epochs is None:
        raise ValueError("neither epochs nor budget is given: pass one, such as epochs=10")
    return budget or Budget(epochs=epochs)
