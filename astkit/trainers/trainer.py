"""`Trainer` trains a model until its budget is spent: `run`, `steps`, `_step`, `train_batch`."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from astkit import distributed, rng, system
from astkit.aim.model_features import ModelFeatures
from astkit.checks import check_types
from astkit.datasets import BatchSource, as_loader
from astkit.datasets.batch import Batch
from astkit.datasets.foreign import check_unshuffled
from astkit.datasets.joined import joined
from astkit.gating.losses import (
    Criterion,
    cross_entropy_rows,
    ignored_label,
    row_losses,
    token_losses,
)
from astkit.gating.policy import Policy, as_policy
from astkit.gating.selection import Scored, compare_again, evaluating, unchanged
from astkit.gating.targets import Targets
from astkit.interrupts import deferred_interrupt
from astkit.profiling.energy import EnergyMeter
from astkit.profiling.flops import BatchFlops, Costs, RowFlops, count_flops, shape_of
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.progress import warn
from astkit.trainers.batches import Batches, gives_new_tensors
from astkit.trainers.checkpoint import Checkpoints, of_a_run
from astkit.trainers.config import (
    TIME_BUDGET,
    Budget,
    TimeIsUp,
    TrainConfig,
    choose_config,
    choose_device,
    time_is_up,
)
from astkit.trainers.evaluation import (
    Evaluation,
    Measured,
    Metrics,
    Validator,
    check_undivided,
)
from astkit.trainers.fingerprint import describe_run, plain
from astkit.trainers.first_batch import check_batch, check_rows_known, initialise
from astkit.trainers.history import History, Observer, Reports, StepRecord
from astkit.trainers.optimisation import Optimisation
from astkit.trainers.predictions import predict
from astkit.trainers.progress import TrainingBar, follow
from astkit.trainers.steering import Event, Steering
from astkit.trainers.step import StepResult

COUNTS = ("step", "progress", "done")
STATEFUL = ("policy", "batches", "optimisation", "ledger", "reports", "steering", "validator")
"""What a checkpoint saves of a run: plain values, and parts with a state."""


class Trainer:
    """Trains ``model`` until the budget is spent: ``Trainer(...).run()``.

    Example::

        trainer = Trainer(model, train, validation, policy="infobatch", epochs=3)
        history = trainer.run()
        print(history.epochs[-1]["val_accuracy"], trainer.ledger.flops.total)

    Under torchrun each process runs the same script, see docs/distributed.md. A subclass may
    override `forward`, `train_batch`, `train_rows`, `count_flops`, `passes` and `validate`.

    Args:
        model: called with the inputs of a batch, see `batch.call`; with several processes a
            DistributedDataParallel. Lazy modules get their shapes from a first batch, and weights
            that depend on ``config.seed``.
        train: a data set, a `Loader`, or a torch DataLoader of batches of any structure.
        validation: likewise, evaluated after each epoch; ``None`` disables validation.
        target: rows like those that count, which policies that ask for them may train on, see
            `astkit.joined`; at ``validation`` they may only look.
        policy: chooses the rows to train on: a `Policy`, its name, or ``{"name": ..., argument:
            value}``; by default all rows.
        epochs, lr: iterations of the training data, and the peak learning rate; shorthands for
            ``budget=Budget(epochs=...)`` and ``config=TrainConfig(lr=...)``.
        batch_size: rows a batch, in all processes together; for data sets and a `Loader`.
        criterion: ``(outputs, targets)`` -> one loss per row; cross-entropy by default.
        metrics: additional validation metrics: a `Metric`, or several. Accuracy is computed for
            integer labels by default.
        optimizer, scheduler, schedule_steps, lr_scale: see `Optimisation`.
        validates: whether the validation data are evaluated after each epoch.
        stop_after: early stopping: the run ends after so many epochs in a row whose validation is
            not better, by the first of ``metrics``, or the loss without any. At the end of a run,
            stopped or not, the model has the weights of its best epoch. The schedule of learning
            rates still counts to the whole budget, so that a stopped run has not seen its end.
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
        targets: what the targets are to the criterion; ``None`` before the first batch.
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
        target: Any = None,
        policy: Policy | str | Mapping[str, Any] | None = None,
        epochs: float | None = None,
        budget: Budget | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        config: TrainConfig | None = None,
        criterion: Criterion = cross_entropy_rows,
        metrics: Metrics = None,
        optimizer: Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        schedule_steps: int | None = None,
        lr_scale: float = 1.0,
        validates: bool = True,
        stop_after: int | None = None,
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
        if (budget is None) == (epochs is None):
            raise ValueError("epochs and budget: give one of them, such as epochs=10")
        if resume and checkpoints is None:
            raise ValueError("resume is True, but checkpoints is not set: pass the folder")
        self.config = config = choose_config(config, lr, batch_size, optimizer)
        self.budget = budget or Budget(epochs=epochs)
        device, seed = choose_device(device), config.seed
        train = train if target is None else joined(train, target)
        source = as_loader(train, device, config.batch_size, seed=seed)
        self.validator = Validator(validation, metrics, device, config, validates, stop_after)
        self.policy = policy = as_policy(policy, seed) or Policy()
        self.batches = Batches(source, policy, self.validation, device, seed)
        initialise(model, self.batches.peek, device, seed)
        self.ledger = Ledger(synchronize=synchronizer(device), meter=meter)
        self.reports = Reports(History(), observers, config.report_every)
        self.optimisation = Optimisation(
            model,
            config,
            criterion,
            optimizer,
            scheduler,
            device,
            self.ledger,
            watching=(policy.observes and policy.needs_outputs) or self.reports.need_outputs,
            schedule_steps=schedule_steps,
            lr_scale=lr_scale,
        )
        self.optimisation.passes.fresh = gives_new_tensors(source)
        self.model = self.optimisation.model  # without DistributedDataParallel
        self.costs = Costs(self.model, flops)
        self.steering = Steering(policy, replay)
        features, held = None, self.validation
        if held is not None and hasattr(held, "order"):
            features = ModelFeatures(self.model, source, held, device, self.scorable)
        self.batches.epoch.inform(features, self.may_spend())
        self.targets: Targets | None = None
        self.step, self.progress, self.done = 0, 0.0, False
        self.saves = None if checkpoints is None else of_a_run(checkpoints)
        if self.saves is not None:
            self._open(self.saves, resume)

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
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self.batches.epoch.number

    # --- the loop ---

    def run(self, progress: bool | None = None) -> History:
        """Train until the budget is spent; returns the history.

        ``progress``: whether to show a bar; ``None``: in terminals and notebooks. An interrupt
        (Ctrl-C) takes effect after the current batch, when the state is saved if there are
        checkpoints. Raises `TimeIsUp` if the time budget of the process ends first.
        """
        check_types(progress=(progress, bool | None))
        bar = TrainingBar(self, progress)
        with deferred_interrupt() as interrupted, bar, closing(follow(self, bar.show)) as steps:
            for _ in steps:
                if interrupted():
                    break
            else:
                bar.finish(len(self.history.epochs), "epoch")
        if interrupted():
            raise KeyboardInterrupt
        return self.history

    def fit(self, *args: Any, **options: Any) -> NoReturn:
        """Raises ``TypeError``: a trainer is trained by `run`."""
        raise TypeError("fit: a Trainer is given data and budget when it is built: call run()")

    def steps(self) -> Generator[StepRecord]:
        """Yield a record after every training batch and every epoch.

        All state is in attributes: iteration may stop at any record, and a new generator continues
        from there. Between records, autocast and eval mode are off and no clock runs. Raises
        `TimeIsUp` when the time budget of the process ends; the run is saved.
        """
        limited = TIME_BUDGET in os.environ
        time_is_up()  # raises for what is no number of hours
        with self._running():
            while not self.done:
                record = self._step() if self.progress < 1.0 else None
                if record is None:
                    record = self._end_epoch()
                if self.saves is not None and self.saves.due(record, self.done):
                    self._save()
                yield record
                if limited and not self.done and time_is_up():
                    raise TimeIsUp(self.step, self._save())

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Lock the checkpoints, set train mode and system settings; restore them at the end."""
        modes = [(module, module.training) for module in self.model.modules()]
        with ExitStack() as leaving:  # calls all, in reverse, even if one raises
            if self.saves is not None:
                leaving.enter_context(self.saves.locked())
            for observer in self.reports.observers:
                leaving.callback(observer.close)
            leaving.callback(self.ledger.settle)  # seconds may be read from here on
            leaving.callback(self.report)
            leaving.callback(self.batches.stop)
            leaving.callback(self.optimisation.release)
            leaving.enter_context(system.tuned(self.config.threads, self.config.keep_memory))
            if not self.model.training:
                self.model.train()
            try:
                if self.targets is None and self.policy.plans:
                    self.find_targets()  # the first plan may depend on it
                yield
            except GeneratorExit:  # iteration was stopped between two batches
                if self.batches.processes == 1:  # others may not have stopped here
                    self._save()
                raise
            finally:
                for module, training in modes:
                    module.training = training

    def _step(self) -> StepRecord | None:
        """Train on the next batch; ``None`` if the epoch is over."""
        with self.ledger.clock("training"):
            batch = self._next_batch()
            if batch is None:
                return None
            cost = self._prepare(batch)
            device, process = self.batches.device, self.batches.process
            with rng.isolated(device, self.config.seed, "step", self.step, *process):
                self.optimisation.rates.set(self.progress)
                result = self.train_batch(batch, self.batches.weight())
                if self.optimisation.watching:
                    result = result._replace(predictions=self.optimisation.take_predictions())
                with self.ledger.phase("log"):
                    if self.policy.observes:
                        self.policy.report(
                            *result.visits(
                                batch, self.optimisation.watching, self.optimisation.ignores
                            )
                        )
                        if self.policy.chooses:  # the next batch may depend on it
                            self.policy.exchange()
                    self._book(batch, result, cost)
        for watch in self.reports.watchers:
            watch(batch, result)
        self.step += 1
        self.batches.count_trained()
        self.progress = self._spent()
        record = self._record(batch, result)
        if self.reports.keep(record, result.selection):
            self.report()
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
                self.costs.note_trained()
                unloaded = self.batches.plan(self.progress)
                self.ledger.counts.unloaded += unloaded if distributed.rank() == 0 else 0

    def _prepare(self, batch: Batch) -> BatchFlops:
        """Make what is due before a step; returns the cost of its rows."""
        if self.steering.replay or self.steering.requested:
            for event in self.steering.apply_due(self.step):
                with self.ledger.paused():
                    self.report()
                    place = {"epoch": self.epoch, "progress": self.progress}
                    changed = {"name": event.name, "value": event.value}
                    self.reports.log(StepRecord(self.step, "event", {**place, **changed}))
        if batch.index is None:
            check_rows_known(self.policy)
        if self.targets is None:
            self.find_targets(batch)
        cost = self.cost(batch)
        if self.optimisation.undecided:
            self.optimisation.decide(cost.training(batch.rows))
        return cost

    # --- a step: these may be overridden ---

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """Outputs of ``model``, in its current mode and the precision of the run.

        Used for scoring and evaluation, and for a second model that a score asks.
        """
        return self.optimisation.passes.outputs(model, batch)

    def train_batch(self, batch: Batch, weight: Tensor | None) -> StepResult:
        """Choose rows of ``batch`` if the policy does, and train on them.

        ``weight [batch]``, from selection before loading, scales the losses in their mean over the
        rows; ``None`` means 1.
        """
        processes = self.batches.processes
        if not self.policy.chooses:
            return StepResult(self.train_rows(batch, weight, self.batches.rows / processes))
        with self.ledger.phase("score"):
            seen = self.scored(batch)
            chosen = self.policy.choose_from(seen)
            if seen.evaluated and self.targets and not self.targets.logits:  # labels may be NaN
                self.optimisation.finite.check(seen.measured[0].sum(), "loss of a row to score")
            if processes > 1 and not len(chosen):
                chosen = chosen.padded()
            part = batch.take(chosen.index)
            weights = chosen.weight if weight is None else chosen.weight * chosen.take(weight)
        normaliser = chosen.total
        if processes > 1:
            normaliser = distributed.total(float(normaliser))[0] / processes
        if not len(chosen):
            self.optimisation.end_batch()
            return StepResult(torch.empty(0), chosen, seen)
        return StepResult(self.train_rows(part, weights, normaliser), chosen, seen)

    def train_rows(self, batch: Batch, weight: Tensor | None, normaliser: float | Tensor) -> Tensor:
        """Train on all rows of ``batch``; returns their losses before the step.

        See `Optimisation.train` for the arguments.
        """
        return self.optimisation.train(batch, weight, normaliser)

    def scored(self, batch: Batch, outputs: Any = None) -> Scored:
        """``batch`` for policies, which score it in the precision of the run."""
        seen = Scored(
            outputs,
            batch.y,
            batch.x,
            batch.index,
            self.model,
            criterion=self.policy.criterion or self.optimisation.criterion,
            forward=self.forward,
            count=self._count_pass,
        )
        seen.ignores = self.optimisation.ignores
        seen.masked = self.targets is not None and self.targets.masked
        return seen

    def count_flops(self, model: nn.Module, batch: Batch) -> BatchFlops:
        """FLOPs of ``batch`` in ``model``; not called where ``flops`` says them."""
        full = torch.autocast(self.device.type, enabled=False)  # for the criterion, as in training
        criterion = full(partial(token_losses, self.criterion))
        with self.optimisation.passes.autocast():
            return count_flops(model, batch.x, batch.y, criterion)

    def passes(self, rows: int) -> int:
        """Number of forward passes in which so many rows of a batch are computed."""
        return self.optimisation.passes.count(rows)

    # --- what a step cost and found ---

    def find_targets(self, batch: Batch | None = None) -> Targets:
        """What the targets are, by two rows, see `check_batch`; no clock runs."""
        forward, source = partial(unchanged, self.forward, self.model), self.batches.source
        batch = self.batches.few(2) if batch is None else batch
        with self.ledger.paused(), evaluating(self.model, self.device):
            metrics = () if self.validation is None else self.validator.metrics
            self.targets = check_batch(forward, self.criterion, batch, source, metrics)
        ignored = None if self.targets.masked else ignored_label(self.criterion)
        self.batches.epoch.read_labels(self.targets.classes, ignored)
        self.optimisation.ignores = self.targets.ignored
        if not self.targets.predicted:
            self.optimisation.watching = False  # outputs tell no class
        return self.targets

    def check(self) -> None:
        """Raise ``ValueError`` if data or labels lack what the policy needs, which is used up."""
        batch = self.batches.peek()
        self.find_targets(batch)
        if batch.index is None:
            check_rows_known(self.policy)
        if self.policy.plans:
            self.policy.check(self.batches.epoch.run_info(self.batches.source.order(0), 0.0))
        if self.policy.chooses:
            with rng.isolated(self.device, self.config.seed, "check"):
                self.policy.choose_from(self.scored(batch))

    def first_losses(self) -> list[float]:
        """Losses of the first two training rows in eval mode, at the weights as they are."""
        self.find_targets()  # refuses what does not fit
        batch = self.batches.few(2).take(slice(0, 2)).to(self.device)
        with evaluating(self.model, self.device):
            outputs, targets = unchanged(self.forward, self.model, batch)
            return row_losses(self.criterion, outputs, targets).tolist()

    def cost(self, batch: Batch, model: nn.Module | None = None) -> BatchFlops:
        """FLOPs of ``batch``, counted once per shape of its rows.

        Raises ``ValueError`` for a budget of FLOPs that cannot be counted.
        """
        model = self.model if model is None else model
        x = batch.x
        shape = (x.shape[1:],) if isinstance(x, Tensor) else shape_of(batch)
        cost = self.costs.known.get((model, self.costs.trained, shape))
        if cost is None:
            with self.ledger.paused():
                cost = self.costs.add(model, batch, self.count_flops)
        if cost.uncounted:
            self.ledger.uncounted.update(cost.uncounted)
            self.budget.check(self.ledger)
        return cost

    def may_spend(self) -> float | None:
        """FLOPs of the run, if these or rows through the model are its budget."""
        if self.budget.rows is None:
            return self.budget.flops
        batch = self.batches.peek()
        return self.budget.rows * self.cost(batch).training(batch.rows) / batch.rows

    def _book(self, batch: Batch, result: StepResult, cost: BatchFlops) -> None:
        """Add what a step cost to the ledger."""
        rows, trained, chosen = batch.rows, len(result.losses), result.selection
        share = self.batches.epoch.share or 1.0  # rows may be left of the round before
        passes = self.passes(trained)
        self.ledger.note(
            cost,
            trained=trained,
            skipped=rows - trained,
            passes=passes,
            padded=None if chosen is None else chosen.padding,
            dense=rows / share,
            dense_passes=(passes if rows == trained else self.passes(rows)) / share,
        )
        if self.step == 0 and distributed.rank() == 0:  # what its numbers took outside
            self.policy.flops += self.policy.cost or 0.0
        self.ledger.flops.helper += self.policy.flops
        self.policy.flops = 0.0

    def _record(self, batch: Batch, result: StepResult) -> StepRecord:
        """Metrics of a step, with values that may be on the device."""
        losses, chosen = result.losses, result.selection
        if chosen is None:
            loss = losses.nanmean() if self.optimisation.ignores else losses.mean()
        elif self.optimisation.ignores:  # chosen without scores, rows may have no label
            share = (chosen.weight * ~losses.isnan()).sum() / chosen.weight.sum()
            loss = (losses.nan_to_num() * chosen.weight).sum() / (chosen.total * share)
        else:
            loss = (losses * chosen.weight).sum() / chosen.total
        metrics = {
            "epoch": self.batches.epoch.number,
            "progress": self.progress,
            "loss": loss if len(losses) else None,
            "trained": len(losses),
            "seen": batch.rows,
            "lr": self.optimisation.rates.lr,
            "flops": self.ledger.flops.total,
            "flops_dense": self.ledger.flops_dense,
            "of_epoch": self.batches.of_epoch,
        }
        if chosen is not None:
            names = ("measured_rate", "threshold", "rate")
            metrics |= {name: getattr(chosen, name) for name in names}
        return StepRecord(self.step, "train", metrics)

    def _count_pass(self, model: nn.Module, batch: Batch) -> None:
        """Count a scoring pass of the model, or of a second one."""
        rows = batch.rows
        if model is self.model:
            self.ledger.note(self.cost(batch), scored=rows, passes=self.passes(rows))
        else:
            self.ledger.flops.helper += self.cost(batch, model).scoring(rows)

    def scorable(self, batch: Batch) -> Scored:
        """``batch``, not scored yet, with its cost known: counting it would call hooks."""
        self.cost(batch)
        return self.scored(batch)

    def _spent(self) -> float:
        """Fraction of the budget spent."""
        if (self.budget.flops or self.budget.rows) and self.batches.processes > 1:
            self.ledger.pool()
        if self.budget.seconds:
            self.ledger.settle()
        epochs = self.batches.epoch.number + self.batches.of_epoch
        spent = self.budget.spent(epochs, self.ledger, self.step)
        if self.budget.seconds:  # each process has its own clock
            spent = distributed.total(spent)[0] / distributed.world()
        return spent

    # --- reports and steering ---

    def report(self) -> None:
        """Send the records since the last report to the observers; waits for the device."""
        self.optimisation.finite.read()  # raises if a loss or gradient was not finite
        if self.reports.unseen:
            self.ledger.settle()
            energy = self.ledger.energy()
            shown = {}
            if self.policy.chooses:
                shown["origin_units"] = self.ledger.origin_energy_units
                shown["origin_units_dense"] = self.ledger.origin_energy_units_dense
            self.reports.send(shown, joules=energy.joules, joules_reason=energy.reason)

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the policy before the next batch; thread-safe.

        The change is recorded as an event. Raises ``ValueError`` for a run without such settings,
        or in several processes.
        """
        self.steering.put(name, value)

    # --- the end of an epoch, and evaluation ---

    def _end_epoch(self) -> StepRecord:
        """End an epoch, complete or truncated by the budget: last step, validation, report."""
        with self.ledger.clock("training"), self.ledger.phase("optimizer"):
            self.optimisation.flush()
            self.policy.exchange()
        self.report()
        if self.policy.plans and bool(self.optimisation.accumulated.unlabelled):
            warn(
                f"{type(self.policy).__name__} plans rows without a label too, since labels cannot"
                " be read ahead: give the data set an attribute labels, or leave such rows out with"
                " Subset(data, rows)"
            )
        compare_again(self.model)
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
        self.done = self.validator.should_stop(validated, self.model) or self.progress >= 1.0
        if self.done:
            self.validator.best.restore(self.model)
            self.steering.end(self.step)
        return record

    def validate(self) -> dict[str, Any]:
        """Metrics of the validation data, or a sample of them, prefixed with ``val_``."""
        if self.validation is None or not self.validator.each_epoch:
            return {}
        values = self.measure_validation().values()
        del values["samples"], values["accuracy_interval"]
        return {f"val_{name}": value for name, value in values.items() if value is not None}

    def measure_validation(self) -> Measured:
        """Values of the validation rows, or the sample of them that is evaluated."""
        assert self.validation is not None
        return self.measure(self.validation, self.validator.rows)

    def evaluate(self, data: Any) -> dict[str, Any]:
        """Metrics of one pass over ``data``, such as the test split; not counted as training.

        ``samples``, ``loss``, and the metrics by name; for integer labels ``accuracy`` in [0, 1]
        with its 95 % interval ``accuracy_interval``, else ``None``. Raises ``ValueError`` for a
        loader that shuffles.
        """
        check_unshuffled(data)
        return self.measure(as_loader(data, self.device, shuffle=False)).values()

    def predict(self, data: Any, *, probabilities: bool = False) -> Any:
        """What the model says of every row of ``data``, in order, in one pass in evaluation mode.

        Where the training data are a `Table`: numbers in the label's unit, float32 ``[rows]``, or a
        list of names of classes. Else the outputs on the CPU: tensors joined by rows, tuples part
        by part, the ``logits`` of an object; where lengths differ, lists with an entry a row. Each
        of several processes returns all rows. ::

            predicted = trainer.predict("later.csv")

        Args:
            data: a data set or a loader, labelled or not; or, where the training data are a
                `Table`, a file or DataFrame, which is read as that.
            probabilities: of the classes of a `Table`, float32 ``[rows, classes]``.

        Raises ``ValueError`` for a loader that shuffles or leaves rows out, for a stream without a
        length, and for data without rows.
        """
        return predict(self, data, probabilities)

    def measure(self, source: BatchSource, rows: Tensor | None = None, keep: int = 0) -> Measured:
        """Values of each row of ``source``, or of its ``rows`` (int64 ``[n]``), in one pass.

        ``keep``: bytes of outputs and targets to keep at most. Random numbers are the same in every
        pass of any run. Raises ``ValueError`` if there is no batch, or another one in each process.
        """
        check_undivided(source)
        random = rng.restored(self.device, "evaluation")
        with self.ledger.clock("evaluation"), random, evaluating(self.model, self.device):
            distributed.same_buffers(self.model)
            batches = source.batches(0, rows)
            first = next(batches, None)
            if first is None:
                raise ValueError(
                    "the validation data gave no batch: lower batch_size or disable drop_last"
                )
            targets = self.targets or self.find_targets(first)
            evaluation = Evaluation(self.criterion, self.validator.metrics, targets.logits, keep)
            for batch in chain([first], batches):
                mine = evaluation.part(batch)
                if mine is not None:
                    cost = self.cost(mine)
                    self.ledger.note(cost, evaluated=mine.rows, passes=self.passes(mine.rows))
                    outputs, y = unchanged(self.forward, self.model, mine)
                    evaluation.add(mine._replace(y=y), outputs)
        return evaluation.result()

    # --- what is saved ---

    def describe(self) -> dict[str, Any]:
        """What identifies the run, as plain values; another one is not resumed."""
        return {
            "trainer": type(self).__name__,
            "update": getattr(self, "update", None),
            "budget": asdict(self.budget),
            "flops": plain(self.costs.flops),
            "replay": plain(self.steering.replay),
            **describe_run(self.optimisation, self.policy, self.batches, self.validator),
        }

    def _save(self) -> Path | None:
        """Save the current state, unless it is saved already; returns the folder."""
        if self.saves is None:
            return None
        place = self._place()
        if place != self.saves.place:
            self.policy.exchange()
            self.report()
            self.ledger.pool()
            self.saves.write({**self.optimisation.weights(), "trainer": self.state_dict()}, place)
        return self.saves.folder

    def _place(self) -> tuple[object, ...]:
        return self.step, self.epoch, self.done, dict(self.steering.requested)

    def _open(self, saves: Checkpoints, resume: bool) -> None:
        """Continue from the newest checkpoint if requested."""
        found = saves.open(self.describe(), resume)
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
