"""Training loop: train, validate, report. The step defines how a batch is trained on."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from astkit import distributed, logs, rng
from astkit.batch import Batch
from astkit.profiling.flops import FlopsPerSample
from astkit.trainers.policy_feedback import TrainingData
from astkit.trainers.resume import Resumable
from astkit.trainers.state import Event, History, StepRecord, TimeIsUp, interrupt_held, time_is_up
from astkit.trainers.steps import DenseStep, StepResult


class Loop(Resumable):
    """Training loop; ends when the budget is spent.

    All state is stored in attributes, none in the generator returned by ``steps``: iteration may
    stop at any record, and a new generator continues from there.
    """

    def run(self) -> History:
        """Train until the budget is spent; returns the history.

        Raises `TimeIsUp` if the time budget of the process ends first; the run is saved.
        """
        for _ in self.steps():
            pass
        return self.history

    def steps(self) -> Generator[StepRecord]:
        """Yield a record after every training and validation batch.

        Between records, autocast and eval mode are off and no clock runs; only system settings
        (threads, allocator) remain active throughout. Raises `TimeIsUp` when the time budget of
        the process ends; the run is saved.
        """
        with distributed.explained():
            yield from self._steps()

    def _steps(self) -> Generator[StepRecord]:
        if self.checkpoints is not None:
            self.checkpoints.hold()
        modes = [(module, module.training) for module in self.model.modules()]
        if not self.model.training:
            self.model.train()
        inner = getattr(self.step, "step", self.step)  # of a wrapper that records
        try:
            with self.setting_up.tuned(isinstance(inner, DenseStep)):
                self._prepare()
                yield from self._all_batches()
        except GeneratorExit:  # iteration was stopped between two batches
            self._save_alone()
            raise
        finally:
            for module, training in modes:
                module.training = training
            self.learner.set_lr(1.0)  # an optimizer that is used again starts with its own
            self.feed.stop()
            self.evaluator.stop()
            with ExitStack() as closing:  # close all, even if one raises
                closing.callback(self.ledger.settle)  # seconds may be read from here on
                for observer in reversed(self.observers):
                    closing.callback(observer.close)
                if self.checkpoints is not None:
                    closing.callback(self.checkpoints.close)

    def _all_batches(self) -> Iterator[StepRecord]:
        while not self.done:
            phase = self.position.phase
            with interrupt_held(self._save_alone):
                record = self._train_batch() if phase == "train" else self._validate()
                self._batch_ended(phase == "validate" and self.position.phase != "validate")
            if record is not None:
                yield record
            if time_is_up() and not self.done:
                raise TimeIsUp(self.position.step, self._save())

    def _prepare(self) -> None:
        """Call ``Policy.prepare`` once, with copies of the initial model."""
        policies = [] if self.prepared else self.visits.overriding("prepare")
        for policy in policies:
            begin = copy.deepcopy(self.model)
            drawn = rng.isolated(self.device, self.config.seed, "prepare")
            with self.ledger.clock("training"), self.ledger.phase("prepare"), drawn:
                policy.prepare(
                    partial(copy.deepcopy, begin), TrainingData(self.train, self.learner)
                )
        self.prepared = True

    def _train_batch(self) -> StepRecord | None:
        every = self.config.metrics_every
        due = self.position.step % every == 0 or logs.enabled(logs.TRAINING)
        timed = every == 1 or self.switch is not None or self.budget.seconds is not None
        self.ledger.waiting = timed
        batch = self._next_batch()
        if batch is None:
            self._end_epoch(whole=True)
            return None
        self._steer()
        cost = self._cost(batch)
        self.ledger.uncounted.update(cost.uncounted)
        self._spent()  # raises for a FLOPs budget with uncounted operations before weights change
        key: tuple[int | str, ...] = ("step", self.position.step, *distributed.key())
        dropout = rng.isolated(self.device, self.config.seed, *key)
        with self.ledger.clock("training"), dropout:
            self.learner.set_lr(self.schedule(self.progress) * self.feed.round.lr_factor)
            weight = self.feed.weight(self.position, batch)
            self.learner.watching = self.visits.watching and self.selecting
            self.learner.batch_rows = self.feed.rows
            result = self.current_step(self.learner, batch, weight, self.ledger)
            with self.ledger.phase("log"):
                self._book(batch, result, cost)
                metrics = self._metrics(batch, result, due)
            self.ledger.waiting = timed or due  # synchronise before the clock stops
        self.position.spent = self._spent()
        self._report_shrinking()
        energy = self.ledger.energy()
        record = self._report(
            "train", {**metrics, "joules": energy.joules, "joules_reason": energy.reason}
        )
        if self.progress >= 1.0:
            self._end_epoch(whole=self.feed.finished(self.position))
        else:
            self._switch(batch)
        return record

    def _next_batch(self) -> Batch | None:
        """The next batch of the epoch; opens rounds and scores ``score_only`` rows."""
        while True:
            with self.ledger.clock("training"), self.ledger.phase("load"):
                batch = self.feed.next(self.position)
                batch = None if batch is None else self.learner.prepare(batch)
            if batch is not None:
                self.visits.check(batch)
                return batch
            self._score_only()
            if self.feed.over(self.position):
                return None
            if self.feed.policy is None:
                self.feed.plan(self.position)
                continue
            with self.ledger.clock("training"), self.ledger.phase("plan"):
                self.visits.exchange()
                unloaded = self.feed.plan(self.position, not self.selecting)
                self.ledger.counts.unloaded += unloaded if distributed.rank() == 0 else 0
            self._round_cost("plan")

    def _score_only(self) -> None:
        """Score the ``score_only`` rows of the round; the results go to ``Policy.observe``."""
        planned = self.feed.round
        rows, planned.score_only = planned.score_only, planned.score_only[:0]
        if not len(rows):
            return
        batches = self.feed.source.batches(self.position.epoch, rows)
        scored = getattr(self.step, "scored", type(self.learner).scored)  # a step has its own
        for number in itertools.count():
            key = ("score_only", self.position.epoch, self.position.round, number)
            drawn = rng.isolated(self.device, self.config.seed, *key, *distributed.key())
            with self.ledger.clock("training"), self.ledger.phase("load"), drawn:
                batch = next(batches, None)
            if batch is None:
                break
            cost = self._cost(batch)
            with self.ledger.clock("training"), self.ledger.phase("score"):
                self.visits.scored(scored(self.learner, self.learner.prepare(batch)))
                self.ledger.note(cost, scored=batch.rows, skipped=batch.rows)
        self._round_cost("score")

    def _round_cost(self, part: str) -> None:
        if self.switch is not None and self.feed.policy is not None:
            seconds = self.ledger.seconds["training"]
            self.switch.round_cost(part, seconds, self.feed.round.candidates)

    def _switch(self, batch: Batch) -> None:
        """Book the step in the switch, and apply its decision about the next one."""
        if self.switch is None:
            return
        position, seconds = self.position, self.ledger.seconds["training"]
        may_probe = self.feed.policy is None or self.feed.round_over(position)
        offered = batch.rows / self.feed.round.share
        before = self.selecting
        event = self.switch.step_ended(position.step, seconds, offered, may_probe)
        if event is None:
            return
        self.steering.events.append(event)
        self._report("event", {"name": event.name, "value": event.value})
        if self.selecting != before:
            with self.ledger.clock("training"), self.ledger.phase("plan"):
                more = self.feed.replan(position, dense=not self.selecting)
                self.ledger.counts.unloaded += more
            self._round_cost("plan")

    def _report_shrinking(self) -> None:
        while self.learner.shrunk:
            self._report("event", {"name": "micro_batch", "value": self.learner.shrunk.pop(0)})

    def _steer(self) -> None:
        for name, value in self.steering.due(self.position.step):
            try:
                self.step.steer(name, value)  # type: ignore[attr-defined]
            except (TypeError, ValueError) as error:  # an invalid value must not stop the run
                warnings.warn(f"the setting was not changed: {error}", stacklevel=2)
                continue
            self.steering.events.append(Event(self.position.step, name, value))
            self._report("event", {"name": name, "value": value})

    def _spent(self) -> float:
        position = self.position
        epochs = position.epoch + self.feed.of_epoch(position)
        if self.budget.flops:
            self.ledger.pool()
        spent = self.budget.spent(epochs, self.ledger, position.step)
        if self.budget.seconds:  # each process has its own clock
            spent = distributed.total(spent)[0] / distributed.world()
        return spent

    def _book(self, batch: Batch, result: StepResult, cost: FlopsPerSample) -> None:
        computed, position = len(result.rows), self.position
        self.ledger.note(
            cost,
            scored=result.scored,
            trained=computed,
            skipped=batch.rows - computed,
            overflowed=self.learner.updates.take_lost(),
            padded=torch.tensor(computed) if self.feed.repeating else result.padded,
        )
        of_dense = 0 if self.feed.repeating else batch.rows / self.feed.round.share
        self.ledger.flops_dense += of_dense * (cost.forward + cost.backward)
        if self.selecting:
            self.visits.trained(batch, result, self.feed.repeating)
        self.ledger.flops.helper += sum(each.take_flops() for each in self.visits.policies)
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
        """End an epoch, complete or truncated by the budget."""
        position, self.ledger.waiting = self.position, True
        with self.ledger.clock("training"), self.ledger.phase("optimizer"):
            self.learner.updates.flush()
            self.learner.updates.check()
            self.visits.exchange()
        self.ledger.note(FlopsPerSample(0.0, 0.0), overflowed=self.learner.updates.take_lost())
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
        ledger.pool()
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
