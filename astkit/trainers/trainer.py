"""`Trainer`: trains a model until its budget is spent. The loop is `Trainer.steps`."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from astkit import distributed, rng, system
from astkit.checks import check_types
from astkit.datasets import BatchSource, Loader, as_loader
from astkit.datasets.batch import Batch
from astkit.datasets.facts import read_alike
from astkit.datasets.foreign import drawn_alike, is_dataset, opened
from astkit.gating.losses import Criterion, cross_entropy_rows, token_losses
from astkit.gating.policy import Policy, as_policy, overrides
from astkit.gating.selection import Scored, evaluating
from astkit.gating.targets import Targets
from astkit.profiling.energy import EnergyMeter
from astkit.profiling.flops import BatchFlops, FlopCache, RowFlops, count_flops, shape_of, stated
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.trainers.batches import Batches
from astkit.trainers.checkpoint import Checkpoints
from astkit.trainers.config import Budget, TrainConfig, choose_device
from astkit.trainers.evaluation import Evaluation, Measured, Metrics, as_metrics, check_undivided
from astkit.trainers.fingerprint import check_same, describe_run
from astkit.trainers.first_batch import (
    check_batch,
    features_of,
    initialise,
    sampled_rows,
)
from astkit.trainers.history import History, Observer, StepRecord
from astkit.trainers.limits import TIME_BUDGET, TimeIsUp, interrupt_held, time_is_up
from astkit.trainers.optimisation import Optimisation
from astkit.trainers.reports import Reports
from astkit.trainers.steering import Event, Steering
from astkit.trainers.step import StepResult

COUNTS = ("step", "progress", "done", "lengths")
STATEFUL = ("policy", "batches", "optimisation", "ledger", "reports", "steering")
"""Attributes of a trainer that a checkpoint saves: plain values, and parts with a state."""


class Trainer:
    """Trains ``model`` until the budget is spent: ``Trainer(...).run()``.

    With several processes (torchrun), each runs the same script, see docs/distributed.md. A
    subclass may override `forward`, `train_batch`, `train_rows`, `count_flops` and `evaluate`.

    Args:
        model: called with the inputs of a batch, see `batch.call`; with several processes a
            DistributedDataParallel. Lazy modules get their
            shapes from a first batch, and weights that depend on ``config.seed``.
        train: a data set, a `Loader`, or a torch DataLoader of batches of any structure.
        validation: likewise, evaluated after each epoch; ``None`` disables validation.
        policy: chooses the rows to train on: a `Policy`, its name, or ``{"name": ..., argument:
            value}``; by default all rows.
        epochs: iterations of the training data; shorthand for ``budget=Budget(epochs=...)``.
        batch_size: rows a batch, in all processes together; for data sets and a `Loader`.
        criterion: ``(outputs, targets)`` -> one loss per row; cross-entropy by default.
        metrics: additional validation metrics: a `Metric`, or several. Accuracy is computed for
            integer labels by default.
        optimizer, scheduler: see `Optimisation`.
        observers: receive records of batches and epochs; their time is not measured.
        replay: events of a steered run, which are applied again.
        meter: measures the energy of training and evaluation; none by default.
        flops: FLOPs of training on one row, forward and backward, 2 per multiply-add; a number, or
            a function of the inputs of a batch that returns it, called once per shape of a row. By
            default they are counted.
        checkpoints: a `Checkpoints` object or a folder for the state of the run.
        resume: continue from the newest checkpoint, or start if there is none.

    Attributes:
        ledger: cost of the run; ``history``: its records; ``step``: batches trained on.
        progress: fraction of the budget spent, in [0, 1]; ``done``: whether the run has ended.

    Raises:
        ValueError: before any weight changes, for labels out of range, a criterion that averages,
            or model outputs of the wrong shape. For existing checkpoints if ``resume`` is false,
            the run is another one, or all are damaged.
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
        config: TrainConfig | None = None,
        criterion: Criterion = cross_entropy_rows,
        metrics: Metrics = None,
        optimizer: Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        observers: Sequence[Observer] = (),
        replay: Iterable[Event | Mapping[str, Any]] = (),
        meter: EnergyMeter | None = None,
        flops: RowFlops | None = None,
        device: str | torch.device = "auto",
        checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> None:
        check_types(
            model=(model, nn.Module),
            optimizer=(optimizer, Optimizer | None),
            scheduler=(scheduler, LRScheduler | None),
            config=(config, TrainConfig | None),
            budget=(budget, Budget | None),
            checkpoints=(checkpoints, Checkpoints | str | os.PathLike | None),
        )
        self.device = choose_device(device)
        self._processes, self._process = distributed.world(), distributed.key()
        self.config = config or TrainConfig()
        if batch_size is not None:
            self.config = replace(self.config, batch_size=batch_size)
        if (budget is None) == (epochs is None):
            raise ValueError("epochs and budget: give one of them, such as epochs=10")
        self.budget = budget or Budget(epochs=epochs)
        size, seed = self.config.batch_size, self.config.seed
        self.train_data = as_loader(train, self.device, size, seed=seed)
        self.validation: BatchSource | None = None
        if validation is not None:
            size = size if is_dataset(validation) else None  # a loader has its own
            self.validation = as_loader(opened(validation), self.device, size, shuffle=False)
        self.validation_rows = sampled_rows(self.validation, self.config.validation_fraction)
        self.policy = as_policy(policy, seed) or Policy()
        features, limit = self._features, self.budget.flops
        self.batches = Batches(
            self.train_data, self.policy, self.validation, self.device, seed, features, limit
        )
        initialise(model, self.batches.peek, self.device, seed)
        self.ledger = Ledger(synchronize=synchronizer(self.device), meter=meter)
        self.optimisation = Optimisation(
            model, self.config, criterion, optimizer, scheduler, self.device, self.ledger
        )
        self.model = self.optimisation.model  # without DistributedDataParallel
        self.optimizer = self.optimisation.optimizer
        self.metrics = as_metrics(metrics)
        self.validates = True  # after each epoch
        self._chooses = overrides(self.policy, "choose")
        self._observes = overrides(self.policy, "observe")
        self.optimisation.watching = self._observes and self.policy.needs_outputs
        self.flops = flops
        if flops is not None and not callable(flops):
            stated(flops, None)  # refuses what is no number of FLOPs
        self.lengths: dict[Any, int] = {}  # see `FlopCache`
        self.targets = Targets()  # known since the first batch was checked
        self._forget_costs()
        self.step, self.progress = 0, 0.0
        self.done = False
        self.history = History()
        self.reports = Reports([self.history, *observers], self.config.report_every)
        self.steering = Steering(self.policy, replay)
        if isinstance(checkpoints, str | os.PathLike):
            checkpoints = Checkpoints(checkpoints)
        self.checkpoints = copy.copy(checkpoints)  # another trainer may be given the same ones
        self._described: dict[str, Any] = {}
        self._saved: object = None  # position of the latest checkpoint
        self._open(resume)

    @property
    def criterion(self) -> Criterion:
        """One loss per row."""
        return self.optimisation.criterion

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self.batches.epoch.number

    # --- the loop ---

    def run(self) -> History:
        """Train until the budget is spent; returns the history.

        An interrupt (Ctrl-C) takes effect after the current batch, when the state is saved if there
        are checkpoints. Raises `TimeIsUp` if the time budget of the process ends first.
        """
        with interrupt_held() as interrupted, closing(self.steps()) as steps:
            for _ in steps:
                if interrupted():
                    break
        if interrupted():
            raise KeyboardInterrupt
        return self.history

    def steps(self) -> Generator[StepRecord]:
        """Yield a record after every training batch and every epoch.

        All state is in attributes: iteration may stop at any record, and a new generator continues
        from there. Between records, autocast and eval mode are off and no clock runs. Raises
        `TimeIsUp` when the time budget of the process ends; the run is saved.
        """
        limited = TIME_BUDGET in os.environ
        time_is_up()  # raises for what is no number of hours
        with self._running():
            if self.batches.epoch.planner is not None and not self._costs:
                self.look()  # its plan may depend on it
            while not self.done:
                record = self._train_step() if self.progress < 1.0 else None
                if record is None:
                    record = self._end_epoch()
                kept = self.checkpoints
                if kept is not None and kept.due(self.step, record.phase == "epoch", self.done):
                    self._save()
                yield record
                if limited and not self.done and time_is_up():
                    raise TimeIsUp(self.step, self._save())

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Lock the checkpoints, set train mode and system settings; restore them at the end."""
        modes = [(module, module.training) for module in self.model.modules()]
        with ExitStack() as leaving:  # calls all, in reverse, even if one raises
            if self.checkpoints is not None:
                self.checkpoints.hold()
                leaving.callback(self.checkpoints.close)
            for observer in self.reports.observers:
                leaving.callback(observer.close)
            leaving.callback(self.ledger.settle)  # seconds may be read from here on
            leaving.callback(self._report)
            leaving.callback(self.batches.stop)
            leaving.callback(self.optimisation.release)
            leaving.enter_context(system.tuned(self.config.threads, self.config.keep_memory))
            if not self.model.training:
                self.model.train()
            try:
                yield
            except GeneratorExit:  # iteration was stopped between two batches
                if self._processes == 1:  # others may not have stopped here
                    self._save()
                raise
            finally:
                for module, training in modes:
                    module.training = training

    def _train_step(self) -> StepRecord | None:
        """Plan, load, choose, train, observe, book, report; ``None`` if the epoch is over."""
        with self.ledger.clock("training"):
            batch = self._next_batch()
            if batch is None:
                return None
            if self.steering.replay or self.steering.wanted:
                self._steer()
            self._check_index(batch)
            cost = self.cost(batch)
            if self.optimisation.undecided:
                self.optimisation.decide(cost.training(batch.rows))
            with rng.isolated(self.device, self.config.seed, "step", self.step, *self._process):
                self.optimisation.set_lr(self.progress)
                result = self.train_batch(batch, self.batches.weight(batch))
                if self.optimisation.watching:
                    result = result._replace(predictions=self.optimisation.take_predictions())
                with self.ledger.phase("log"):
                    if self._observes:
                        visits = result.visits(batch, self.optimisation.watching)
                        self.policy.report(*visits)
                        if self._chooses:  # the next batch may depend on it
                            self.policy.exchange()
                    metrics = self._book(batch, result, cost)
        for watch in self.reports.watchers:
            watch(batch, result)
        self.progress = self._spent()
        metrics = {"epoch": self.epoch, "progress": self.progress, **metrics}
        record = StepRecord(self.step, "train", metrics)
        if self.reports.keep(record):
            self._report()
        return record

    def _next_batch(self) -> Batch | None:
        """The next batch; opens rounds; ``None`` after an epoch."""
        while True:
            with self.ledger.phase("load"):
                batch = self.batches.next()
            if batch is not None:
                return batch
            if self.batches.epoch.complete:
                return None
            with self.ledger.phase("plan"):
                self.policy.exchange()
                if self._trained != [each.requires_grad for each in self.model.parameters()]:
                    self._forget_costs()
                unloaded = self.batches.plan(self.progress)
                self.ledger.counts.unloaded += unloaded if distributed.rank() == 0 else 0

    # --- a step: these may be overridden ---

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """Outputs of ``model``, in its current mode and the precision of the run.

        Used for scoring and evaluation, and for a second model that a score asks.
        """
        return self.optimisation.outputs(model, batch)

    def train_batch(self, batch: Batch, weight: Tensor | None) -> StepResult:
        """Choose rows of ``batch`` if the policy does, and train on them.

        ``weight [batch]``, from selection before loading, scales the losses in their mean over the
        rows; ``None`` means 1.
        """
        if not self._chooses:
            return StepResult(self.train_rows(batch, weight, self.batches.rows / self._processes))
        with self.ledger.phase("score"):
            seen = self.scored(batch)
            chosen = self.policy.choose_from(seen)
            if self._processes > 1 and not len(chosen):
                chosen = chosen.padded()
            part = batch.take(chosen.index)
            weights = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
        normaliser = chosen.total
        if self._processes > 1:
            normaliser = distributed.total(float(normaliser))[0] / self._processes
        if not len(chosen):
            self.optimisation.end_batch()
            return StepResult(torch.empty(0), chosen, seen)
        return StepResult(self.train_rows(part, weights, normaliser), chosen, seen)

    def train_rows(
        self, batch: Batch, weight: Tensor | None, normaliser: float | Tensor | None
    ) -> Tensor:
        """Train on all rows of ``batch``; returns their losses before the step.

        See `Optimisation.train` for the arguments.
        """
        return self.optimisation.train(batch, weight, normaliser)

    def scored(self, batch: Batch, outputs: Any = None) -> Scored:
        """``batch`` for policies: evaluated on first access, in the precision of the run."""
        return Scored(
            outputs,
            batch.y,
            batch.x,
            batch.index,
            self.model,
            criterion=self.criterion,
            forward=self.forward,
            count=self._count_pass,
        )

    def count_flops(self, model: nn.Module, batch: Batch) -> BatchFlops:
        """FLOPs of ``batch`` in ``model``; not called where ``flops`` says them."""
        full = torch.autocast(self.device.type, enabled=False)  # for the criterion, as in training
        criterion = full(partial(token_losses, self.criterion))
        with self.optimisation.autocast():
            return count_flops(model, batch.x, batch.y, criterion)

    def passes(self, rows: int) -> int:
        """Number of forward passes in which so many rows of a batch are computed."""
        return self.optimisation.passes(rows)

    # --- what a step found and cost ---

    def _book(self, batch: Batch, result: StepResult, cost: BatchFlops) -> dict[str, Any]:
        """Add a step to the ledger; returns its metrics, with values that may be on the device."""
        losses, chosen = result.losses, result.selection
        rows, trained = batch.rows, len(losses)
        padded = None
        if chosen is not None and (self._processes > 1 or isinstance(chosen.measured_rate, Tensor)):
            padded = chosen.padding
        share = self.batches.epoch.share or 1.0  # rows may be left of the round before
        self.ledger.note(
            cost,
            trained=trained,
            skipped=rows - trained,
            passes=self.passes(trained),
            overflowed=self.optimisation.take_lost(),
            padded=padded,
            dense=rows / share,
            dense_passes=self.passes(rows) / share,
        )
        self.ledger.flops.helper += self.policy.flops
        self.policy.flops = 0.0
        if self.step == 0 and distributed.rank() == 0:
            self.ledger.flops.helper += self.policy.cost or 0.0
        self.step += 1
        self.batches.trained()
        loss = losses.mean() if chosen is None else chosen.mean_loss(losses)
        metrics = {
            "loss": loss if trained else None,
            "trained": trained,
            "seen": rows,
            "lr": self.optimisation.lr,
            "flops": self.ledger.flops.total,
            "flops_dense": self.ledger.flops_dense,
            "of_epoch": self.batches.of_epoch,
        }
        if chosen is not None:
            names = ("measured_rate", "threshold", "rate")
            metrics |= {name: getattr(chosen, name) for name in names}
        return metrics

    def _count_pass(self, model: nn.Module, batch: Batch) -> None:
        """Count a scoring pass of the model, or of a second one."""
        if model is self.model:
            self.ledger.note(self.cost(batch), scored=batch.rows, passes=self.passes(batch.rows))
        else:
            self.ledger.note_helper(self.cost(batch, model), batch.rows)

    def cost(self, batch: Batch, model: nn.Module | None = None) -> BatchFlops:
        """FLOPs of ``batch``, counted once per shape of its rows.

        Before a shape is counted, two of its rows are checked. Raises ``ValueError`` for invalid
        data, before any weight changes.
        """
        if model is not None and model is not self.model:
            return self._flops.cost(model, batch)
        shape: object = batch.x.shape[1:] if isinstance(batch.x, Tensor) else shape_of(batch)
        if shape not in self._costs:
            self._check(batch)
            if self.flops is None:
                cost = self._flops.cost(self.model, batch)
            else:
                cost = stated(self.flops, batch.x)
            self._costs[shape] = cost
            self.ledger.uncounted.update(cost.uncounted)
            self.budget.spent(0.0, self.ledger)  # raises for FLOPs that cannot be counted
        return self._costs[shape]

    def _forget_costs(self) -> None:
        """Count anew: which parameters are trained decides about the cost of gradients."""
        self._trained = [each.requires_grad for each in self.model.parameters()]
        self._flops = FlopCache(self._count_outside, self.lengths)
        self._costs: dict[object, BatchFlops] = {}  # of the model, by shape of a row

    def _count_outside(self, model: nn.Module, batch: Batch) -> BatchFlops:
        """Count a batch while no clock runs."""
        with self.ledger.paused():
            return self.count_flops(model, batch)

    def look(self) -> None:
        """Check two rows, as training does, and find what the targets are."""
        self._check(self.batches.few(2))

    def check(self) -> None:
        """Raise ``ValueError`` if data or labels lack what the policy needs, which is used up."""
        batch, epoch = self.batches.peek(), self.batches.epoch
        self._check(batch)
        self._check_index(batch)
        if epoch.planner is not None:
            self.policy.check(epoch.run_info(self.batches.source.order(0), 0.0))
        if self._chooses:
            with rng.isolated(self.device, self.config.seed, "check"):
                self.policy.choose_from(self.scored(batch))

    def _check_index(self, batch: Batch) -> None:
        if batch.index is None and self.policy.needs_index:
            raise ValueError(
                f"{type(self.policy).__name__} keeps per-sample state, but the training data"
                " provide no indices: pass the data set itself with batch_size=..., or use a"
                " DataLoader of indexed(data)"
            )

    def _check(self, batch: Batch) -> None:
        """See `check_batch`; no clock runs."""
        forward, source = partial(self.forward, self.model), self.batches.source
        with self.ledger.paused(), evaluating(self.model, self.device):
            self.targets = check_batch(forward, self.criterion, batch, source)
        self.batches.epoch.classes = self.targets.classes
        self.optimisation.watching &= self.targets.predicted

    def _spent(self) -> float:
        """Fraction of the budget spent."""
        if self.budget.flops and self._processes > 1:
            self.ledger.pool()
        if self.budget.seconds:
            self.ledger.settle()
        epochs = self.batches.epoch.number + self.batches.of_epoch
        spent = self.budget.spent(epochs, self.ledger, self.step)
        if self.budget.seconds:  # each process has its own clock
            spent = distributed.total(spent)[0] / distributed.world()
        return spent

    # --- reports and steering ---

    def _report(self) -> None:
        """Send the records since the last report to the observers; waits for the device."""
        self.optimisation.check()  # raises if a loss or gradient was not finite
        if self.reports.waiting:
            self.ledger.settle()
            energy = self.ledger.energy()
            self.reports.send(joules=energy.joules, joules_reason=energy.reason)

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the policy before the next batch; thread-safe.

        The change is recorded as an event. Raises ``ValueError`` for a run without such settings,
        or in several processes.
        """
        self.steering.put(name, value)

    def _steer(self) -> None:
        """Make the changes that are due, and tell the observers."""
        for event in self.steering.applied(self.step):
            with self.ledger.paused():
                self._report()
                place = {"epoch": self.epoch, "progress": self.progress}
                changed = {"name": event.name, "value": event.value}
                self.reports.log(StepRecord(self.step, "event", {**place, **changed}))

    # --- the end of an epoch, and evaluation ---

    def _end_epoch(self) -> StepRecord:
        """End an epoch, complete or truncated by the budget: last step, validation, report."""
        with self.ledger.clock("training"), self.ledger.phase("optimizer"):
            self.optimisation.flush()
            self.policy.exchange()
        self.ledger.note(BatchFlops(), overflowed=self.optimisation.take_lost())
        self._report()
        number = self.epoch + 1  # counted from 1
        self.batches.end_epoch()
        self.progress = self._spent()
        validated = self.validate()
        self.ledger.pool()
        metrics = {
            "epoch": number,
            "progress": self.progress,
            "flops": self.ledger.flops.total,
            "seconds": self.ledger.seconds["training"],
            "trained": self.ledger.samples.trained,
        }
        record = StepRecord(self.step, "epoch", metrics | validated)
        self.reports.log(record)
        self.done = self.progress >= 1.0
        if self.done:
            self.steering.end(self.step)
        return record

    def validate(self) -> dict[str, Any]:
        """Metrics of the validation data, or a sample of them, prefixed with ``val_``."""
        if self.validation is None or not self.validates:
            return {}
        values = self.measure(self.validation, self.validation_rows).values()
        del values["samples"], values["accuracy_interval"]
        return {f"val_{name}": value for name, value in values.items() if value is not None}

    def evaluate(self, data: Any) -> dict[str, Any]:
        """Metrics of one pass over ``data``, such as the test split; not counted as training.

        ``samples``, ``loss``, and the metrics by name; for integer labels ``accuracy`` in [0, 1]
        with its 95 % interval ``accuracy_interval``, else ``None``.
        """
        return self.measure(as_loader(data, self.device, shuffle=False)).values()

    def measure(self, source: BatchSource, rows: Tensor | None = None, keep: int = 0) -> Measured:
        """Values of each row of ``source``, or of its ``rows`` (int64 ``[n]``), in one pass.

        ``keep``: bytes of outputs and targets to keep at most. Random numbers, and so the order of
        a loader that shuffles, are the same in every pass of any run. Raises ``ValueError`` if
        there is no batch, or another one in each process.
        """
        check_undivided(source)
        evaluation = Evaluation(self.criterion, self.metrics, keep=keep)
        random, alike = rng.restored(self.device, "evaluation"), drawn_alike(source)
        batch: Batch | None = None
        with self.ledger.clock("evaluation"), random, alike, evaluating(self.model, self.device):
            distributed.same_buffers(self.model)
            for batch in source.batches(0, rows):
                mine = evaluation.part(batch)
                if mine is None:
                    continue
                cost = self.cost(mine)
                self.ledger.note(cost, evaluated=mine.rows, passes=self.passes(mine.rows))
                evaluation.classes = self.targets.logits  # known since the first batch was checked
                evaluation.add(mine, self.forward(self.model, mine))
        if batch is None:
            raise ValueError(
                "the validation data gave no batch: lower batch_size or disable drop_last"
            )
        return evaluation.result()

    # --- saving ---

    def _save(self) -> Path | None:
        """Save the current state, unless it is saved already; returns the folder."""
        if self.checkpoints is None:
            return None
        if self._place() != self._saved:
            self.policy.exchange()
            self._report()
            self.ledger.pool()
            self.reports.sync()
            state = {
                "run": self._described,
                **self.optimisation.weights(),
                "trainer": self.state_dict(),
            }
            if distributed.rank() == 0:
                self.checkpoints.write(state, self.step)
            self._saved = self._place()
        return self.checkpoints.folder

    def _place(self) -> object:
        return self.step, self.epoch, self.done, self.steering.waiting()

    def _open(self, resume: bool) -> None:
        """Continue from the newest checkpoint if requested."""
        if self.checkpoints is None:
            if resume:
                raise ValueError("resume is True, but checkpoints is not set: pass the folder")
            return
        self._described = describe_run(self)
        path, state = self.checkpoints.open(resume) or (None, {})
        distributed.agree(str(path and path.name), str(self._described))
        if path is None:
            if resume:  # killed before its first checkpoint, possibly after its first metrics
                self.reports.start_again()
            return
        check_same(state["run"], self._described, path)
        try:
            self.optimisation.load_weights(state)
            self.load_state_dict(state["trainer"])
        except Exception as error:
            what = f"{type(error).__name__}: {error}".splitlines()[-1].strip()
            raise ValueError(
                f"{path} does not hold the state of this run ({what}): restore what has changed, or"
                " choose another folder"
            ) from error
        self._saved = self._place()

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
        self._forget_costs()
        for name in STATEFUL:
            getattr(self, name).load_state_dict(state[name])

    @cached_property
    def _data_alike(self) -> Any:
        """The training data as they are compared with the validation data."""
        source, target = self.train_data, self.validation
        assert isinstance(source, Loader)
        assert isinstance(target, Loader)
        return read_alike(source.data, target.data)

    def _features(self, rows: Tensor, of: str = "data") -> Tensor:
        """See `RunInfo.features`."""
        source, target = self.train_data if of == "data" else self.validation, self.validation
        assert source is not None
        if isinstance(source, Loader) and isinstance(target, Loader):
            source = source.plain()  # augmentation alone would look like a shift
            source.collate_fn = target.collate_fn
            if of == "data":
                source.data = self._data_alike

        def scored(batch: Batch) -> Scored:
            self.cost(batch)  # before the pass, whose hidden layer is looked at
            return self.scored(batch)

        eager = torch.compiler.set_stance("force_eager")  # compiled, it would ignore hooks
        with evaluating(self.model, self.device), eager:
            divided = len(rows) >= self._processes
            mine = rows[distributed.share(len(rows))] if divided else rows
            own = features_of(self.model, map(scored, source.batches(self.epoch, mine)))
        if not divided or self._processes == 1:
            return own
        return distributed.pooled(own.flatten()).view(len(rows), -1)
