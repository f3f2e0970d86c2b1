"""The one loop: train, validate, report. What it does with a batch is its step's business."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.datasets import Batch, BatchSource, as_loader
from astkit.gating import Criterion, Sampler, cross_entropy_rows, evaluating, row_losses
from astkit.gating.selection import Selection
from astkit.gating.significance import check_labels
from astkit.profiling.flops import FlopsPerSample, count_flops
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.trainers.budget import SCHEDULES, Budget
from astkit.trainers.config import TrainConfig
from astkit.trainers.history import History, Observer
from astkit.trainers.learner import Learner, choose_device
from astkit.trainers.position import Position, StepRecord
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
        observers: told after each batch what happened.
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
        self.ledger = Ledger(synchronize=synchronizer(self.device))
        self.position = Position()
        self.history = History()
        self.observers: list[Observer] = [self.history, *observers]
        self._batches: Iterator[Batch] | None = None
        self._selection: Selection | None = None
        self._costs: dict[tuple[int, ...], FlopsPerSample] = {}

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
        return _averages(total)

    def _train_batch(self) -> StepRecord | None:
        with self.ledger.clock("training"), self.ledger.phase("load"):
            batch = self._next_batch()
        if batch is None:
            self._end_pass(whole=True)
            return None
        cost = self._cost(batch)
        dropout = (self.device, self.config.seed, "step", self.position.step)
        with self.ledger.clock("training"), rng.isolated(*dropout):
            self.learner.set_lr(self.schedule(self.progress))
            result = self.step(self.learner, batch, self._weight(batch), self.ledger)
            with self.ledger.phase("log"):
                self._book(batch, result, cost)
                record = self._report("train", self._metrics(batch, result))
        if self.progress >= 1.0:
            self._end_pass(whole=self.position.batch >= self._pass_batches())
        return record

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
        """FLOPs a sample of this shape, counted once; refuses what cannot work beforehand."""
        shape = tuple(batch.x.shape[1:])
        if shape not in self._costs:
            with evaluating(self.model, self.device):
                outputs = self.model(batch.x[:2])
            plain = isinstance(outputs, Tensor) and outputs.ndim == 2
            if plain and not batch.y.is_floating_point():
                check_labels(batch.y, outputs.shape[1])
                self.train.check_labels(outputs.shape[1])
            row_losses(self.learner.criterion, outputs, batch.y[:2])
            self._costs[shape] = count_flops(self.model, batch.x, batch.y, self.learner.criterion)
        return self._costs[shape]

    def _weight(self, batch: Batch) -> Tensor | None:
        if self._selection is None:
            return None
        start = self.position.rows
        return self._selection.weight[start : start + len(batch.y)].to(batch.y.device)

    def _book(self, batch: Batch, result: StepResult, cost: FlopsPerSample) -> None:
        trained, position = len(result.rows), self.position
        self.ledger.note(
            cost, scored=result.scored, trained=trained, skipped=len(batch.y) - trained
        )
        if self.sampler is not None:
            self.sampler.observe(batch.index[result.rows.to(batch.index.device)], result.losses)
        position.step += 1
        position.batch += 1
        position.rows += len(batch.y)
        share = position.batch / self._pass_batches()
        position.spent = self.budget.spent(position.epoch + share, self.ledger)

    def _metrics(self, batch: Batch, result: StepResult) -> dict[str, Any]:
        chosen = result.selection
        metrics = {
            "loss": float(result.losses.mean()) if len(result.losses) else None,
            "trained": len(result.rows),
            "seen": len(batch.y),
            "lr": self.learner.optimizer.param_groups[0]["lr"],
            "flops": self.ledger.flops.total,
            "of_epoch": self.position.batch / self._pass_batches(),
        }
        if chosen is not None:
            metrics |= {"rate": chosen.rate, "threshold": chosen.threshold}
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
        metrics = {f"val_{name}": value for name, value in _averages(position).items()}
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
        with evaluating(self.model, self.device), self.learner.autocast():
            outputs = self.model(batch.x)
        losses = row_losses(self.learner.criterion, outputs, batch.y)
        total.loss_sum += float(losses.sum())
        total.evaluated += len(batch.y)
        if outputs.ndim == 2 and batch.y.ndim == 1:
            total.correct += float((outputs.argmax(1) == batch.y).sum())
        self.ledger.note(cost, evaluated=len(batch.y))

    def _pass_batches(self) -> float:
        """Batches in the present pass; infinity while a foreign loader cannot tell."""
        try:
            full = len(self.train)
        except TypeError:
            return math.inf
        if self._selection is None:
            return full
        chosen, size = len(self._selection), getattr(self.train, "batch_size", None)
        if size is None:
            return math.ceil(full * chosen / (self.train.num_samples or chosen))
        return chosen // size if getattr(self.train, "drop_last", False) else -(-chosen // size)

    def state_dict(self) -> dict[str, Any]:
        """All state of the loop beside weights and optimizer, as plain numbers."""
        return {
            "position": asdict(self.position),
            "ledger": self.ledger.state_dict(),
            "step": self.step.state_dict(),
            "sampler": None if self.sampler is None else self.sampler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, with the model and the optimizer restored by the caller."""
        self.position = Position(**state["position"])
        self.ledger.load_state_dict(state["ledger"])
        self.step.load_state_dict(state["step"])
        if self.sampler is not None:
            self.sampler.load_state_dict(state["sampler"])
        self._batches = self._selection = None


def _averages(total: Position) -> dict[str, float]:
    count = max(1, total.evaluated)
    return {"accuracy": total.correct / count, "loss": total.loss_sum / count}
