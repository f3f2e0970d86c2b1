"""The one loop: train, validate, report. What it does with a batch is its step's business."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import nn

from astkit import logs, rng
from astkit.datasets import Batch, BatchSource, as_loader
from astkit.gating import Criterion, Sampler, cross_entropy_rows
from astkit.profiling.energy import EnergyMeter
from astkit.profiling.flops import FlopsPerSample
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.profiling.throughput import Throughput
from astkit.trainers import loop_state
from astkit.trainers.budget import SCHEDULES, Budget
from astkit.trainers.checkpoint import Checkpoints, begun
from astkit.trainers.config import TrainConfig
from astkit.trainers.costs import Costs, CostsMaker
from astkit.trainers.deadline import TimeIsUp, time_is_up
from astkit.trainers.evaluator import Evaluator, EvaluatorMaker
from astkit.trainers.feed import Feed
from astkit.trainers.history import History, Observer
from astkit.trainers.learner import Learner, choose_device
from astkit.trainers.position import Position, StepRecord
from astkit.trainers.setting_up import SettingUp
from astkit.trainers.steering import Event, Steering
from astkit.trainers.steps import DenseStep, Step, StepResult
from astkit.trainers.validation import Way
from astkit.trainers.validation_sample import subsample

NOTHING = FlopsPerSample(0.0, 0.0)


class Trainer:
    """Trains ``model`` until its budget is spent.

    All state lives here, none in the generator that ``steps`` returns: leave it anywhere, and a new
    one goes on from there.

    Args:
        model: outputs ``[batch, classes]`` for inputs ``[batch, ...]``.
        train: a `Loader`, or an ordinary DataLoader of ``(x, y)`` pairs.
        validation: the same, evaluated after each pass; ``None`` for no validation.
        budget: what may be spent.
        step: what is done with a batch; dense by default.
        sampler: selection before loading; every row in the loader's order by default.
        config: learning rate, precision and so on.
        criterion: one loss a row.
        optimizer: built on ``model``'s parameters; AdamW from ``config`` by default.
        observers: told after each batch what happened, while no clock runs.
        replay: events of a steered run, to be steered the same way again.
        meter: measures the energy of training and evaluation; none by default.
        evaluator: makes what finds the metrics of a pass; by default those of a classifier.
        costs: makes what counts a sample's FLOPs; by default it traces the model's operations.
        device: "auto" takes the accelerator that torch sees.
        checkpoints: where to save the run's state while it goes on, or a folder for that.
        resume: go on from the newest checkpoint there, or begin if there is none.

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
        budget: Budget,
        step: Step | None = None,
        sampler: Sampler | None = None,
        config: TrainConfig | None = None,
        criterion: Criterion = cross_entropy_rows,
        optimizer: torch.optim.Optimizer | None = None,
        observers: Sequence[Observer] = (),
        replay: Iterable[Event | Mapping[str, Any]] = (),
        meter: EnergyMeter | None = None,
        evaluator: EvaluatorMaker = Evaluator,
        costs: CostsMaker = Costs,
        device: str | torch.device = "auto",
        checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> None:
        self.device = choose_device(device)
        self.config = config or TrainConfig()
        self.train: BatchSource = as_loader(train, self.device)
        self.validation = None if validation is None else as_loader(validation, self.device)
        if self.validation is not None and self.config.validation_fraction < 1:
            self.validation = subsample(self.validation, self.config.validation_fraction)
        self.learner = Learner(
            model, self.config, criterion=criterion, optimizer=optimizer, device=self.device
        )
        self.budget, self.step, self.sampler = budget, step or DenseStep(), sampler
        self.feed = Feed(self.train, sampler, self.device, self.config.seed)
        self.setting_up = SettingUp(self.config, self.learner, self.feed)
        self.schedule = SCHEDULES[self.config.schedule]
        self.ledger = Ledger(synchronize=synchronizer(self.device), meter=meter)
        self.position = Position()
        self.steering = Steering(replay)
        self.history = History()
        rate = Throughput(self.ledger, self.device, level=logs.PERFORMANCE)
        self.observers: list[Observer] = [self.history, rate, *observers]
        self.costs = costs(self.learner)
        self.evaluator = evaluator(self.learner, self.ledger, self._cost)
        self.checkpoints = begun(checkpoints, self, resume)

    @property
    def model(self) -> nn.Module:
        """The model in training."""
        return self.learner.model

    @property
    def done(self) -> bool:
        """Whether the budget is spent and the last validation over."""
        return self.position.phase == "done"

    @property
    def progress(self) -> float:
        """Share of the budget that is spent, in [0, 1]."""
        return self.position.spent

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the step (of the gate, say) before the next batch; from any thread.

        What was changed, and when, is an event of the run: the run is a steered one from then on.
        Raises ``ValueError`` for a step that has nothing to steer.
        """
        if not hasattr(self.step, "steer"):
            raise ValueError(
                f"{type(self.step).__name__} has no setting {name!r} to steer: give the trainer a"
                " gated step"
            )
        self.steering.put(name, value)

    def run(self) -> History:
        """Train to the end of the budget and return what happened.

        Raises `TimeIsUp` when the process's time budget is over first; the run is saved then.
        """
        steps = self.steps()
        for _ in steps:
            if time_is_up() and not self.done:
                steps.close()
                saved = None if self.checkpoints is None else self.checkpoints.folder
                raise TimeIsUp(self.position.step, saved)
        return self.history

    def steps(self) -> Generator[StepRecord]:
        """Yield a record after every batch, of training and of validation alike.

        Between two records nothing is open: no autocast, no eval mode, no running clock; only what
        is set in the system (threads, allocator) lasts from the first record to the last.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        if not self.model.training:
            self.model.train()
        try:
            with self.setting_up.tuned(isinstance(self.step, DenseStep)):
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
                pass_ended = phase == "validate" and self.position.phase != "validate"
                self.checkpoints.after_batch(self, pass_ended)
            if record is not None:
                yield record

    def evaluate(self, data: Any, way: Way | Literal["auto"] = "in_turn") -> dict[str, Any]:
        """What was found on ``data``, on the evaluation clock; for the test split.

        ``accuracy`` in [0, 1] and ``loss``, and whatever else `ValidationMetrics` holds. ``way``
        is one of `validate`; "auto" takes the fastest of them that finds the same, which is tried
        out on the first batches: worth it for data that are evaluated more than once.
        """
        return self.evaluator.evaluate(as_loader(data, self.device), way)

    def _train_batch(self) -> StepRecord | None:
        every = self.config.metrics_every
        due = self.position.step % every == 0 or logs.enabled(logs.TRAINING)
        self.ledger.waiting = every == 1
        with self.ledger.clock("training"), self.ledger.phase("load"):
            batch = self._next_batch()
        if batch is None:
            self._end_pass(whole=True)
            return None
        self._steer()
        cost = self._cost(batch)
        dropout = (self.device, self.config.seed, "step", self.position.step)
        with self.ledger.clock("training"), rng.isolated(*dropout):
            self.learner.set_lr(self.schedule(self.progress))
            weight = self.feed.weight(self.position, batch)
            result = self.step(self.learner, batch, weight, self.ledger)
            with self.ledger.phase("log"):
                self._book(batch, result, cost)
                metrics = self._metrics(batch, result, due)
            self.ledger.waiting = due  # the clock stops after all work that was queued until now
        self.position.spent = self.budget.spent(self._passes(), self.ledger)
        self._report_shrinking()
        energy = self.ledger.energy()
        record = self._report(
            "train", {**metrics, "joules": energy.joules, "joules_reason": energy.reason}
        )
        if self.progress >= 1.0:
            self._end_pass(whole=self.position.batch >= self.feed.batches_in_pass())
        return record

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

    def _passes(self) -> float:
        return self.position.epoch + self.position.batch / self.feed.batches_in_pass()

    def _next_batch(self) -> Batch | None:
        batch = self.feed.next(self.position)
        return None if batch is None else batch._replace(x=self.learner.prepare(batch.x))

    def _cost(self, batch: Batch) -> FlopsPerSample:
        return self.costs.of(batch, self.train.check_labels)

    def _book(self, batch: Batch, result: StepResult, cost: FlopsPerSample) -> None:
        trained, position = len(result.rows), self.position
        skipped, passes = len(batch.y) - trained, result.passes
        self.ledger.note(
            cost,
            scored=result.scored,
            trained=trained,
            skipped=skipped,
            overflowed=self.learner.updates.take_lost(),
            passes=passes,
        )
        of_dense = len(batch.y) / self.feed.share
        self.ledger.flops_dense += of_dense * (cost.forward + cost.backward)
        self.feed.observe(batch, result.rows, result.losses)
        position.step += 1
        position.batch += 1
        position.rows += len(batch.y)

    def _metrics(self, batch: Batch, result: StepResult, due: bool) -> dict[str, Any]:
        if due:
            self.learner.updates.check()
        return {
            **result.metrics(due),
            "seen": len(batch.y),
            "lr": self.learner.optimizer.param_groups[0]["lr"],
            "flops": self.ledger.flops.total,
            "flops_dense": self.ledger.flops_dense,
            "of_epoch": self.position.batch / self.feed.batches_in_pass(),
        }

    def _report(self, phase: str, metrics: dict[str, Any]) -> StepRecord:
        position = self.position
        metrics = {"epoch": position.epoch, "progress": position.spent, **metrics}
        for observer in self.observers:
            observer.log(position.step, phase=phase, **metrics)
        logs.record(logs.TRAINING, phase, lambda: {"step": position.step, **metrics})
        return StepRecord(position.step, phase, metrics)

    def _end_pass(self, whole: bool) -> None:
        """Close a pass over the training data, whole or cut short by the budget."""
        position, self.ledger.waiting = self.position, True
        with self.ledger.clock("training"), self.ledger.phase("optimizer"):
            self.learner.updates.flush()
            self.learner.updates.check()
        self.ledger.note(NOTHING, overflowed=self.learner.updates.take_lost())
        self.ledger.samples.unloaded += self.feed.unloaded
        if whole:
            position.epoch, position.batch, position.rows = position.epoch + 1, 0, 0
            position.spent = self.budget.spent(position.epoch, self.ledger)
        self.feed.end_pass()
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

    def state_dict(self) -> dict[str, Any]:
        """All state of the loop beside weights and optimizer; see `astkit.trainers.loop_state`."""
        return loop_state.state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, with the model and the optimizer restored by the caller."""
        loop_state.restore(self, state)
