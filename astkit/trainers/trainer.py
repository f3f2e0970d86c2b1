"""The one loop: train, validate, report. What it does with a batch is its step's business."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from astkit import logs, rng
from astkit.batch import Batch
from astkit.datasets import BatchSource, as_loader
from astkit.gating import Criterion, Policy, as_policy, cross_entropy_rows
from astkit.gating.policy import overrides
from astkit.profiling.energy import EnergyMeter
from astkit.profiling.flops import FlopsPerSample
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.profiling.throughput import Throughput
from astkit.trainers.checkpoint import Checkpoints, begun
from astkit.trainers.config import TrainConfig
from astkit.trainers.costs import Costs, CostsMaker
from astkit.trainers.evaluator import Evaluator, EvaluatorMaker
from astkit.trainers.feed import Feed
from astkit.trainers.learner import Learner, choose_device
from astkit.trainers.metrics import Metric, as_metrics
from astkit.trainers.resume import Resumable
from astkit.trainers.setting_up import SettingUp
from astkit.trainers.state import (
    SCHEDULES,
    Budget,
    Event,
    History,
    Observer,
    Position,
    Steering,
    StepRecord,
    TimeIsUp,
    time_is_up,
)
from astkit.trainers.steps import DenseStep, GatedStep, Step, StepResult
from astkit.trainers.validation import Way
from astkit.trainers.validation_sample import subsample
from astkit.trainers.visits import TrainingData, Visits

NOTHING = FlopsPerSample(0.0, 0.0)


class Trainer(Resumable):
    """Trains ``model`` until its budget is spent.

    All state lives here, none in the generator that ``steps`` returns: leave it anywhere, and a new
    one continues from there.

    Args:
        model: called with a batch's inputs, see `astkit.batch.call`.
        train: a data set, a `Loader`, or an ordinary DataLoader of batches of any structure.
        validation: the same, evaluated after each epoch; ``None`` for no validation.
        policy: chooses what is trained on: a `Policy`, its name, or ``{"name": ..., argument:
            value}``; everything by default.
        epochs: iterations of the training data; short for ``budget=Budget(epochs=...)``.
        budget: what may be spent.
        batch_size: rows a batch; for data sets and a `Loader`.
        step: what is done with a batch; by default what the policy asks for.
        config: learning rate, precision and so on.
        criterion: ``(outputs, targets)`` to one loss a row; cross-entropy by default.
        metrics: of an evaluation, beside the loss: functions ``(outputs, targets) -> [rows]`` by
            name, or `Metric` objects. Integer labels bring accuracy by themselves.
        optimizer: built on ``model``'s parameters; AdamW from ``config`` by default.
        observers: told after each batch what happened, while no clock runs.
        replay: events of a steered run, to be steered the same way again.
        meter: measures the energy of training and evaluation; none by default.
        evaluator: makes what finds the metrics of an epoch; by default from loss and ``metrics``.
        costs: makes what counts a sample's FLOPs; by default it traces the model's operations.
        device: "auto" takes the accelerator that torch sees.
        checkpoints: where to save the run's state while it goes on, or a folder for that.
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
        metrics: Mapping[str, Callable[[Any, Any], Tensor]] | Sequence[Metric] | None = None,
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
        self.setting_up = SettingUp(self.config, self.learner, self.feed)
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
        self.prepared = False
        found = as_metrics(metrics)
        make = evaluator or partial(Evaluator, metrics=found)
        self.evaluator = make(self.learner, self.ledger, self._cost)
        self.checkpoints = begun(checkpoints, self, resume)

    def _sources(self, train: Any, validation: Any) -> tuple[BatchSource, BatchSource | None]:
        config = self.config
        size = config.batch_size if isinstance(config.batch_size, int) else None
        data = as_loader(train, self.device, size, seed=config.seed)
        if validation is None:
            return data, None
        held = as_loader(validation, self.device, shuffle=False)
        return data, subsample(held, config.validation_fraction)

    def _step(self) -> Step:
        chooses = self.policy is not None and overrides(self.policy, "choose")
        return GatedStep(self.policy) if chooses and self.policy is not None else DenseStep()

    @property
    def done(self) -> bool:
        """Whether the budget is spent and the last validation over."""
        return self.position.phase == "done"

    @property
    def progress(self) -> float:
        """Share of the budget that is spent, in [0, 1]."""
        return self.position.spent

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the policy before the next batch; from any thread.

        What was changed, and when, is an event of the run: the run is a steered one from then on.
        Raises ``ValueError`` for a run that has nothing to steer.
        """
        if not hasattr(self.step, "steer"):
            raise ValueError(
                f"{type(self.step).__name__} has no setting {name!r} to steer: give the trainer a"
                " policy that chooses after scoring, such as a Gate"
            )
        self.steering.put(name, value)

    def run(self) -> History:
        """Train to the end of the budget and return what happened.

        Raises `TimeIsUp` when the process's time budget is over first; the run is saved then.
        """
        for _ in self.steps():
            pass
        return self.history

    def steps(self) -> Generator[StepRecord]:
        """Yield a record after every batch, of training and of validation alike.

        Between two records nothing is open: no autocast, no eval mode, no running clock; only what
        is set in the system (threads, allocator) lasts from the first record to the last. Raises
        `TimeIsUp` when the process's time budget is over; the run is saved then.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        if not self.model.training:
            self.model.train()
        try:
            with self.setting_up.tuned(isinstance(self.step, DenseStep)):
                self._prepare()
                yield from self._all_batches()
        except GeneratorExit:  # left between two batches
            if self.checkpoints is not None:
                self.checkpoints.save(self)
            raise
        finally:
            for module, training in modes:
                module.training = training
            self.feed.stop()
            self.evaluator.stop()
            with ExitStack() as closing:  # each is closed, whatever another one raises
                for observer in reversed(self.observers):
                    closing.callback(observer.close)
                if self.checkpoints is not None:
                    closing.callback(self.checkpoints.close)

    def _all_batches(self) -> Iterator[StepRecord]:
        while not self.done:
            phase = self.position.phase
            record = self._train_batch() if phase == "train" else self._validate()
            if self.checkpoints is not None:
                epoch_ended = phase == "validate" and self.position.phase != "validate"
                self.checkpoints.after_batch(self, epoch_ended)
            if record is not None:
                yield record
            if time_is_up() and not self.done:
                saved = None if self.checkpoints is None else self.checkpoints.folder
                if self.checkpoints is not None:
                    self.checkpoints.save(self)
                raise TimeIsUp(self.position.step, saved)

    def evaluate(self, data: Any, way: Way | Literal["auto"] = "in_turn") -> dict[str, Any]:
        """What was found on ``data``, on the evaluation clock; for the test split.

        ``accuracy`` in [0, 1] and ``loss``, and whatever else `ValidationMetrics` holds. ``way``
        is one of `validate`; "auto" takes the fastest of them that finds the same, which is tried
        out on the first batches: worth it for data that are evaluated more than once.
        """
        return self.evaluator.evaluate(as_loader(data, self.device, shuffle=False), way)

    def _prepare(self) -> None:
        """Let the policy train its helper models, once, from the model as it begins."""
        policies = [] if self.prepared else self.visits.overriding("prepare")
        for policy in policies:
            begin = copy.deepcopy(self.model)
            with self.ledger.clock("training"), self.ledger.phase("prepare"):
                policy.prepare(
                    partial(copy.deepcopy, begin), TrainingData(self.train, self.learner)
                )
        self.prepared = True

    def _train_batch(self) -> StepRecord | None:
        every = self.config.metrics_every
        due = self.position.step % every == 0 or logs.enabled(logs.TRAINING)
        self.ledger.waiting = every == 1
        batch = self._next_batch()
        if batch is None:
            self._end_epoch(whole=True)
            return None
        self._steer()
        cost = self._cost(batch)
        dropout = (self.device, self.config.seed, "step", self.position.step)
        with self.ledger.clock("training"), rng.isolated(*dropout):
            self.learner.set_lr(self.schedule(self.progress) * self.feed.lr_factor)
            weight = self.feed.weight(self.position, batch)
            result = self.step(self.learner, batch, weight, self.ledger)
            with self.ledger.phase("log"):
                self._book(batch, result, cost)
                metrics = self._metrics(batch, result, due)
            self.ledger.waiting = due  # the clock stops after all work that was queued until now
        self.position.spent = self._spent()
        self._report_shrinking()
        energy = self.ledger.energy()
        record = self._report(
            "train", {**metrics, "joules": energy.joules, "joules_reason": energy.reason}
        )
        if self.progress >= 1.0:
            self._end_epoch(whole=self.feed.finished(self.position))
        return record

    def _next_batch(self) -> Batch | None:
        """The next batch of the epoch; opens its rounds, and scores what a plan left to score."""
        while True:
            with self.ledger.clock("training"), self.ledger.phase("load"):
                batch = self.feed.next(self.position)
            if batch is not None:
                self.visits.check(batch)
                return self.learner.prepare(batch)
            self._score_only()
            if self.feed.over(self.position):
                return None
            with self.ledger.clock("training"), self.ledger.phase("plan"):
                self.ledger.counts.unloaded += self.feed.plan(self.position)

    def _score_only(self) -> None:
        """Score the rows that the round's plan named for that; the policy observes them."""
        rows, self.feed.score_only = self.feed.score_only, self.feed.score_only[:0]
        if not len(rows):
            return
        for batch in self.train.batches(self.position.epoch, rows):
            cost = self._cost(batch)
            with self.ledger.clock("training"), self.ledger.phase("score"):
                self.visits.scored(self.learner.scored(self.learner.prepare(batch)))
                self.ledger.note(cost, scored=batch.rows)

    def _report_shrinking(self) -> None:
        while self.learner.shrunk:
            self._report("event", {"name": "micro_batch", "value": self.learner.shrunk.pop(0)})

    def _steer(self) -> None:
        for name, value in self.steering.due(self.position.step):
            try:
                self.step.steer(name, value)  # type: ignore[attr-defined]
            except ValueError as error:  # a slip of the hand must not end the run
                warnings.warn(f"not steered: {error}", stacklevel=2)
                continue
            self.steering.note(self.position.step, name, value)
            self._report("event", {"name": name, "value": value})

    def _spent(self) -> float:
        position = self.position
        epochs = position.epoch + self.feed.of_epoch(position)
        return self.budget.spent(epochs, self.ledger, position.step)

    def _cost(self, batch: Batch) -> FlopsPerSample:
        return self.costs.of(batch, self.train.check_labels)

    def _book_helper(self, model: nn.Module, batch: Batch, trained: bool) -> None:
        self.ledger.note_helper(self.costs.of_helper(model, batch), batch.rows, trained)

    def _book(self, batch: Batch, result: StepResult, cost: FlopsPerSample) -> None:
        computed, position = len(result.rows), self.position
        self.ledger.note(
            cost,
            scored=result.scored,
            trained=computed,
            skipped=batch.rows - computed,
            overflowed=self.learner.updates.take_lost(),
            passes=result.passes,
            padded=result.padded,
        )
        of_dense = batch.rows / self.feed.share
        self.ledger.flops_dense += of_dense * (cost.forward + cost.backward)
        self.visits.trained(batch, result)
        position.step += 1
        position.batch += 1
        position.taken += 1

    def _metrics(self, batch: Batch, result: StepResult, due: bool) -> dict[str, Any]:
        if due:
            self.learner.updates.check()
        return {
            **result.metrics(due),
            "seen": batch.rows,
            "lr": self.learner.optimizer.param_groups[0]["lr"],
            "flops": self.ledger.flops.total,
            "flops_dense": self.ledger.flops_dense,
            "of_epoch": self.feed.of_epoch(self.position),
        }

    def _report(self, phase: str, metrics: dict[str, Any]) -> StepRecord:
        position = self.position
        metrics = {"epoch": position.epoch, "progress": position.spent, **metrics}
        for observer in self.observers:
            observer.log(position.step, phase=phase, **metrics)
        logs.record(logs.TRAINING, phase, lambda: {"step": position.step, **metrics})
        return StepRecord(position.step, phase, metrics)

    def _end_epoch(self, whole: bool) -> None:
        """Close an epoch, whole or cut short by the budget."""
        position, self.ledger.waiting = self.position, True
        with self.ledger.clock("training"), self.ledger.phase("optimizer"):
            self.learner.updates.flush()
            self.learner.updates.check()
        self.ledger.note(NOTHING, overflowed=self.learner.updates.take_lost())
        if whole:
            position.end_epoch()
        self.feed.end_epoch()
        if whole:
            position.spent = self._spent()
        position.phase = "validate"

    def _validate(self) -> StepRecord | None:
        if self.validation is not None and self.evaluator.step(self.validation, self.position):
            return self._report("validate", {})
        self._close_epoch()
        return None

    def _close_epoch(self) -> None:
        position, ledger = self.position, self.ledger
        self._report(
            "epoch",
            {
                "flops": ledger.flops.total,
                "seconds": ledger.seconds["training"],
                "trained": ledger.samples.trained,
                **self.evaluator.found(),
            },
        )
        self.evaluator.end_pass(position)
        position.phase = "done" if position.spent >= 1.0 else "train"


def _budget(budget: Budget | None, epochs: float | None) -> Budget:
    if budget is not None and epochs is not None:
        raise ValueError(f"epochs is {epochs}, but a budget is given too: leave one out")
    if budget is None and epochs is None:
        raise ValueError("neither epochs nor budget says when training ends: pass epochs=10, say")
    return budget or Budget(epochs=epochs)
