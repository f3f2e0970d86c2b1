"""The one loop: train, validate, report. What it does with a batch is its step's business."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.datasets import Batch, BatchSource, as_loader
from astkit.gating import Criterion, Sampler, cross_entropy_rows
from astkit.gating.selection import Selection
from astkit.profiling.energy.meter import EnergyMeter
from astkit.profiling.flops import FlopsPerSample
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.trainers.budget import SCHEDULES, Budget
from astkit.trainers.config import TrainConfig
from astkit.trainers.evaluation import Costs, add_batch, averages
from astkit.trainers.history import History, Observer
from astkit.trainers.learner import Learner, choose_device
from astkit.trainers.position import Position, StepRecord, batches_in_pass
from astkit.trainers.steering import Event, Steering
from astkit.trainers.steps import DenseStep, Step, StepResult


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
        device: "auto" takes the accelerator that torch sees.

    Raises:
        ValueError: for labels that the model has no output for, a criterion that averages, a model
            that returns a wrong shape; before any weight changes.
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
        device: str | torch.device = "auto",
    ) -> None:
        self.device = choose_device(device)
        self.config = config or TrainConfig()
        self.train: BatchSource = as_loader(train, self.device)
        self.validation = None if validation is None else as_loader(validation, self.device)
        self.learner = Learner(
            model, self.config, criterion=criterion, optimizer=optimizer, device=self.device
        )
        self.budget, self.step, self.sampler = budget, step or DenseStep(), sampler
        self.schedule = SCHEDULES[self.config.schedule]
        self.ledger = Ledger(synchronize=synchronizer(self.device), meter=meter)
        self.position = Position()
        self.steering = Steering(replay)
        self.history = History()
        self.observers: list[Observer] = [self.history, *observers]
        self._batches: Iterator[Batch] | None = None
        self._selection: Selection | None = None
        self._costs = Costs(self.learner)

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
        """Train to the end of the budget and return what happened."""
        for _ in self.steps():
            pass
        return self.history

    def steps(self) -> Iterator[StepRecord]:
        """Yield a record after every batch, of training and of validation alike.

        Between two records nothing is open: no autocast, no eval mode, no running clock.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        if not self.model.training:
            self.model.train()
        try:
            while not self.done:
                advance = self._train_batch if self.position.phase == "train" else self._validate
                record = advance()
                if record is not None:
                    yield record
        finally:
            for module, training in modes:
                module.training = training
            self._batches = None
            for observer in self.observers:
                observer.close()

    def evaluate(self, data: Any) -> dict[str, float]:
        """Accuracy and mean loss over ``data``, on the evaluation clock. For the test split."""
        total = Position()
        with self.ledger.clock("evaluation"), self._evaluation_rng():
            for batch in as_loader(data, self.device).batches(0):
                self._evaluate_batch(batch, total)
        return averages(total)

    def _train_batch(self) -> StepRecord | None:
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
            result = self.step(self.learner, batch, self._weight(batch), self.ledger)
            with self.ledger.phase("log"):
                self._book(batch, result, cost)
                metrics = self._metrics(batch, result)
        self.position.spent = self.budget.spent(self._passes(), self.ledger)
        energy = self.ledger.energy()
        record = self._report(
            "train", {**metrics, "joules": energy.joules, "joules_reason": energy.reason}
        )
        if self.progress >= 1.0:
            self._end_pass(whole=self.position.batch >= self._pass_batches())
        return record

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
        return self.position.epoch + self.position.batch / self._pass_batches()

    def _next_batch(self) -> Batch | None:
        # a loader that draws from the default RNG draws its order at the first batch that it gives,
        # so that one is keyed to the pass: taken up in the middle, a pass has the same order
        epoch, number = self.position.epoch, 0 if self._batches is None else self.position.batch
        with rng.isolated(self.device, self.config.seed, "load", epoch, number):
            if self._batches is None:
                self._batches = self.train.batches(epoch, self._order(), self.position.batch)
            batch = next(self._batches, None)
        if batch is not None:
            return batch._replace(x=self.learner.prepare(batch.x))
        if self.position.batch == 0:
            raise ValueError(
                f"the training data gave no batch in pass {epoch}: lower batch_size or leave"
                " drop_last out, and let the sampler select at least one row"
            )
        return None

    def _order(self) -> Tensor | None:
        """The rows of the present pass, selected once a pass; ``None`` for the loader's own."""
        if self.sampler is None:
            return None
        if self._selection is None:
            rows = self.train.num_samples
            if rows is None:
                raise ValueError(
                    "a sampler chooses rows before loading, but the training data cannot tell"
                    " how many rows there are: give the trainer an astkit Loader"
                )
            self._selection = self.sampler.select(self.position.epoch, rows)
        return self._selection.index

    def _cost(self, batch: Batch) -> FlopsPerSample:
        return self._costs.of(batch, self.train.check_labels)

    def _weight(self, batch: Batch) -> Tensor | None:
        if self._selection is None:
            return None
        start = self.position.rows
        return self._selection.weight[start : start + len(batch.y)].to(batch.y.device)

    def _book(self, batch: Batch, result: StepResult, cost: FlopsPerSample) -> None:
        trained, position = len(result.rows), self.position
        skipped, passes = len(batch.y) - trained, result.passes
        self.ledger.note(
            cost, scored=result.scored, trained=trained, skipped=skipped, passes=passes
        )
        selected = self._selection
        share = 1.0 if selected is None else len(selected) / selected.candidates
        self.ledger.flops_dense += len(batch.y) / share * (cost.forward + cost.backward)
        if self.sampler is not None:
            self.sampler.observe(batch.index[result.rows.to(batch.index.device)], result.losses)
        position.step += 1
        position.batch += 1
        position.rows += len(batch.y)

    def _metrics(self, batch: Batch, result: StepResult) -> dict[str, Any]:
        chosen = result.selection
        metrics = {
            "loss": float(result.losses.mean()) if len(result.losses) else None,
            "trained": len(result.rows),
            "seen": len(batch.y),
            "lr": self.learner.optimizer.param_groups[0]["lr"],
            "flops": self.ledger.flops.total,
            "flops_dense": self.ledger.flops_dense,
            "of_epoch": self.position.batch / self._pass_batches(),
        }
        if chosen is not None:
            metrics |= {"rate": chosen.rate, "threshold": chosen.threshold}
            metrics["target_rate"] = chosen.target_rate
        return metrics

    def _report(self, phase: str, metrics: dict[str, Any]) -> StepRecord:
        position = self.position
        metrics = {"epoch": position.epoch, "progress": position.spent, **metrics}
        for observer in self.observers:
            observer.log(position.step, phase=phase, **metrics)
        return StepRecord(position.step, phase, metrics)

    def _end_pass(self, whole: bool) -> None:
        """Close a pass over the training data, whole or cut short by the budget."""
        position = self.position
        if self._selection is not None:
            self.ledger.samples.unloaded += self._selection.candidates - len(self._selection)
        if whole:
            position.epoch, position.batch, position.rows = position.epoch + 1, 0, 0
            position.spent = self.budget.spent(position.epoch, self.ledger)
        self._batches = self._selection = None
        position.phase = "validate"

    def _validate(self) -> StepRecord | None:
        batch = None
        if self.validation is not None:
            with self.ledger.clock("evaluation"), self._evaluation_rng():
                if self._batches is None:
                    self._batches = self.validation.batches(0, None, self.position.validated)
                batch = next(self._batches, None)
                if batch is not None:
                    self._evaluate_batch(batch, self.position)
                    self.position.validated += 1
        if batch is None:
            self._close_epoch()
            return None
        return self._report("validate", {})

    def _evaluation_rng(self) -> AbstractContextManager[None]:
        """Loaders that draw from the default RNG draw the same in every evaluation."""
        return rng.isolated(self.device, self.config.seed, "evaluation")

    def _close_epoch(self) -> None:
        position, ledger = self.position, self.ledger
        metrics = {f"val_{name}": value for name, value in averages(position).items()}
        self._report(
            "epoch",
            {
                "flops": ledger.flops.total,
                "seconds": ledger.seconds["training"],
                "trained": ledger.samples.trained,
                **(metrics if self.validation is not None else {}),
            },
        )
        self._batches = None
        position.correct, position.loss_sum, position.evaluated, position.validated = 0.0, 0.0, 0, 0
        position.phase = "done" if position.spent >= 1.0 else "train"

    def _evaluate_batch(self, batch: Batch, total: Position) -> None:
        batch = batch._replace(x=self.learner.prepare(batch.x))
        cost = self._cost(batch)
        add_batch(total, self.learner, batch)
        self.ledger.note(cost, evaluated=len(batch.y))

    def _pass_batches(self) -> float:
        return batches_in_pass(self.train, self._selection)

    def state_dict(self) -> dict[str, Any]:
        """All state of the loop beside weights and optimizer, as plain numbers."""
        return {
            "events": [asdict(event) for event in self.steering.events],
            "position": asdict(self.position),
            "ledger": self.ledger.state_dict(),
            "step": self.step.state_dict(),
            "sampler": None if self.sampler is None else self.sampler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, with the model and the optimizer restored by the caller."""
        self.position = Position(**state["position"])
        self.steering.events = [Event(**event) for event in state.get("events", [])]
        self.ledger.load_state_dict(state["ledger"])
        self.step.load_state_dict(state["step"])
        if self.sampler is not None:
            self.sampler.load_state_dict(state["sampler"])
        self._batches = self._selection = None
