"""The forward pass, the backward pass, and the optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from astkit import distributed
from astkit.datasets.batch import Batch, call, join, tensors
from astkit.gating.losses import Criterion, labelled_losses
from astkit.gating.selection import Predictions, changes_inputs, predictions, unchanged
from astkit.profiling.flops import BatchFlops
from astkit.profiling.ledger import Ledger
from astkit.progress import warn
from astkit.trainers.config import Rates, TrainConfig
from astkit.trainers.graphs import LAUNCH_BOUND, StepGraphs
from astkit.trainers.refusals import (
    NOTHING,
    check_parameters,
    check_trainable,
    not_finite,
    out_of_memory,
)

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
FUSED = ("cpu", "cuda")  # devices whose fused AdamW skips a step on request
LONE_ROW = "more than 1 value per channel"
"""Words of torch's error if BatchNorm cannot normalise a single row."""


class FiniteCheck:
    """Refuses losses and gradients that are not finite, at once or, on a device, by a flag.

    Attributes:
        flagged: whether the optimizer skips a step where a flag on the device says so: fused
            kernels read it without synchronisation.
        broken: the flag; ``None`` before a number is looked at.
        unread: whether a number on the CPU is treated as one on a device.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        kinds = {parameter.device.type for parameter in model.parameters()}
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        self.flagged = bool(fused) and kinds <= {*FUSED}  # MPS's did not
        self.broken: Tensor | None = None
        self.unread = False

    def check(self, value: Tensor, what: str) -> float:
        """Refuse a ``value`` that is not finite; returns it, or infinity if it stays unread."""
        if self.flagged and (value.device.type != "cpu" or self.unread):
            broken = ~torch.isfinite(value)
            if self.broken is None:
                self.broken = broken
            else:
                self.broken.logical_or_(broken)  # in place, since graphs write to it
            return math.inf
        number = value.item()
        if not math.isfinite(number):  # faster than torch.isfinite
            raise not_finite(what, str(number))
        return number

    def read(self) -> None:
        """Raise ``FloatingPointError`` if a number was not finite; synchronises."""
        if self.broken is not None and bool(self.broken):
            raise not_finite("training loss or the gradient", "not finite")


class Accumulated:
    """Gradients that were accumulated and wait for a step.

    Attributes:
        rows, pending: rows and batches since the latest step.
        total: sum of their normalisers; ``summed``: whether gradients are still to be divided.
        missing: those of the rows that have no label, by their share of the weights;
            ``unlabelled``: whether any row so far had none.
        parameters: those of the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.rows = self.pending = 0
        self.total: float | Tensor = 0.0
        self.missing: float | Tensor = 0.0
        self.unlabelled: bool | Tensor = False
        self.summed = False

    def clear(self) -> None:
        """Count none."""
        self.total, self.missing, self.rows, self.pending = 0.0, 0.0, 0, 0

    def labelled(self, unread: bool) -> float | Tensor:
        """The share of these rows, in all processes, that have a label; every one must call it.

        ``unread``: whether one process leaves it on the device.
        """
        if unread and distributed.world() == 1:
            return 1 - self.missing / max(1, self.rows)
        rows, missing = distributed.total(self.rows, float(self.missing))
        return 1 - missing / max(1.0, rows)

    @property
    def weighted(self) -> bool:
        """Whether there are rows with a weight, or this is on a device, which is not waited for."""
        away = isinstance(self.total, Tensor) and self.total.device.type != "cpu"
        return bool(self.rows) and (away or float(self.total) != 0.0)


class ForwardPasses:
    """How a model is run: on its device, in a precision, in micro-batches.

    Attributes:
        model: the model without DistributedDataParallel; ``wrapped``: with it.
        training_pass: what is called in training, the model or its compiled form.
        micro_batch: rows per forward pass; ``None`` for the whole batch.
        graphs: `StepGraphs`, or ``None`` where kernels are launched one by one.
        fresh: whether no batch to train on is used again, so that the model may change it.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.model = distributed.unwrapped(model)
        # nothing is wrapped here, since bucket sizes and unused parameters are the user's
        if distributed.world() > 1 and self.model is model:
            raise ValueError(
                f"{distributed.world()} processes train a {type(model).__name__}, but nothing"
                " averages its gradients: pass DistributedDataParallel(model), or train in a loop"
                " of your own"
            )
        self.wrapped: Any = model.to(device)
        if config.channels_last:
            self.model.to(memory_format=torch.channels_last)
        self.training_pass: Callable[..., Any] = self.wrapped
        if config.compile:  # not the gate: selecting rows breaks the graph
            self.training_pass = torch.compile(self.wrapped)
        self._half = HALF.get(config.precision)
        self.micro_batch = config.micro_batch
        self.graphs: StepGraphs | None = None
        self.fresh = True

    def autocast(self) -> AbstractContextManager[Any]:
        """Context with the precision of the configuration."""
        return nullcontext() if self._half is None else torch.autocast(self.device.type, self._half)

    def call(self, model: Callable[..., Any], batch: Batch) -> Any:
        """Outputs of ``model``, for inputs in its memory format."""
        x = batch.x
        if self.config.channels_last and isinstance(x, Tensor) and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        if self.config.compile and batch.rows > 1:
            for tensor in tensors(x):  # one graph for all numbers of rows; dynamic=True marks more
                if tensor.ndim:
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return call(model, x, batch.y)

    def train(self, batch: Batch) -> tuple[Any, Any]:
        """Outputs of the training pass, and the targets for the criterion."""
        if self.fresh and isinstance(batch.x, Tensor):
            return self.call(self.training_pass, batch), batch.y
        return unchanged(
            lambda _, given: self.call(self.training_pass, given), self.model, batch, self.fresh
        )

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """Outputs of ``model`` in its current mode, computed in micro-batches."""
        if self.graphs is not None and model is self.model and not torch.is_grad_enabled():
            outputs = self.graphs.outputs(self._whole_pass, batch)
            if outputs is not None:
                return outputs
        alone = model is self.model is self.wrapped  # DistributedDataParallel exchanges buffers
        with self.autocast():
            return self.retry_smaller(self._outputs, self.training_pass if alone else model, batch)

    def _outputs(self, model: Callable[..., Any], batch: Batch) -> Any:
        if self.micro_batch is None:
            return self.call(model, batch)
        return join([self.call(model, part) for _, part in self.parts(batch)])

    def parts(self, batch: Batch) -> Iterator[tuple[slice, Batch]]:
        """Micro-batches of nearly equal size, so that BatchNorm is left no single row."""
        rows, count = batch.rows, self.count(batch.rows)
        for number in range(count):
            part = slice(rows * number // count, rows * (number + 1) // count)
            yield part, batch if count == 1 else batch.take(part)

    def count(self, rows: int) -> int:
        """Number of micro-batches of a batch of so many rows."""
        return max(1, -(-rows // (self.micro_batch or rows or 1)))

    def retry_smaller(
        self, attempt: Callable[..., Any], first: Any, batch: Batch, *rest: Any
    ) -> Any:
        """``attempt(first, batch, *rest)``, again with half the micro-batch if memory runs out."""
        while True:
            try:
                return attempt(first, batch, *rest)
            except (RuntimeError, MemoryError) as error:
                size = min(self.micro_batch or batch.rows, batch.rows)
                hopeless = size < 2 or distributed.world() > 1
                if not out_of_memory(error) or hopeless or changes_inputs(self.model):
                    raise  # also where the rows may be changed already
            # outside the handler: the traceback references tensors that must be freed
            self.micro_batch = -(-size // 2)
            if self.graphs is not None:
                self.graphs.end("a batch is divided, since memory ran out")
            if self.device.type != "cpu":
                torch.accelerator.empty_cache()

    def _whole_pass(self, batch: Batch) -> Any:
        with self.autocast():
            return self.call(self.training_pass, batch)


class Optimisation:
    """Model, criterion and optimizer of a run, and how a batch is trained on.

    A batch gives the gradient of ``sum(weight * loss) / normaliser``. Accumulated over several
    batches it is that of all their rows together: sums of losses, divided by the sum of the
    normalisers before the step. With several processes, whose gradients are averaged, a normaliser
    is the mean over the processes. The gradient is clipped to ``config.clip_norm``. If the fp16
    loss scaler finds an overflow, the weights do not change.

    Args:
        model, criterion: see `Trainer`.
        optimizer: built on ``model``'s parameters; AdamW from ``config`` by default.
        scheduler: a torch scheduler of ``optimizer``, stepped after each optimizer step, in place
            of ``config.schedule``.
        ledger: measures the time of forward, backward and optimizer separately, and counts the
            rows whose gradients are discarded by a skipped step.
        watching: whether to keep what the model predicts for the rows, see `take_predictions`.
        schedule_steps, lr_scale: steps that the scheduler takes in the whole run, and a factor on
            all learning rates, see `Rates`.

    Attributes:
        passes: how the model is run; ``model``: without DistributedDataParallel.
        rates: learning rates; ``finite``: the check of losses and gradients; ``accumulated``:
            gradients that wait for a step.
        steps: optimizer steps that changed weights; ``skipped``: those skipped by the scaler.
        ignores: whether rows may have no label: they have no part in the mean, and the loss NaN.
        undecided: whether `decide` is still to be called; ``replayed``: steps that were replayed.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        criterion: Criterion,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        device: torch.device | str = "cpu",
        ledger: Ledger | None = None,
        *,
        watching: bool = False,
        schedule_steps: int | None = None,
        lr_scale: float = 1.0,
    ) -> None:
        self.passes = ForwardPasses(model, config, torch.device(device))
        self.model = self.passes.model  # without DistributedDataParallel
        self.criterion, self.ledger = criterion, ledger or Ledger()
        check_trainable(self.model, optimizer)
        real = all(parameter.is_floating_point() for parameter in self.model.parameters())
        self.optimizer = optimizer or torch.optim.AdamW(
            self.model.parameters(),
            lr=config.peak_lr,
            weight_decay=config.weight_decay,
            fused=self.passes.device.type in FUSED and real,
        )
        check_parameters(self.model, self.optimizer, criterion)
        self.rates = Rates(self.optimizer, config, scheduler, schedule_steps, lr_scale)
        self.finite = FiniteCheck(self.model, self.optimizer)
        self.accumulated = Accumulated(self.model)
        self.scaler: GradScaler | None = None
        if config.precision == "fp16":
            if not real:
                raise ValueError(
                    "precision is 'fp16', whose loss scale torch cannot take off gradients of"
                    " complex parameters: give 'bf16' or 'fp32'"
                )
            # losses of accumulated batches are summed, not averaged
            first = 2.0**9 if config.accumulation_steps > 1 else 2.0**16
            self.scaler = GradScaler(self.passes.device.type, init_scale=first)
        self.watching, self.ignores = watching, False
        self.steps = self.skipped = self.replayed = 0
        self.undecided = bool(config.graphs)
        self._predictions: list[Predictions] = []

    # --- training ---

    def train(
        self,
        batch: Batch,
        weight: Tensor | None = None,
        normaliser: float | Tensor | None = None,
    ) -> Tensor:
        """Train on one batch; the optimizer steps if due. Returns the losses ``[batch]`` before.

        Args:
            batch: the rows to train on.
            weight: float ``[batch]``; 1 by default.
            normaliser: divisor of the weighted sum; by default the sum of the weights.

        A batch of one row that BatchNorm refuses is skipped with a warning, and no loss is
        returned. Raises ``FloatingPointError`` for a loss or gradient that is not finite: on the
        CPU before any weight changes; on an accelerator when ``finite`` is read next, and no step
        is taken until then.
        """
        self._predictions = []
        if normaliser is None:
            normaliser = float(batch.rows) if weight is None else weight.sum()
        if self.passes.graphs is not None:
            recorded = self._graph_step(batch, weight, normaliser)
            if recorded is not None:
                return recorded
        try:
            losses = self.accumulate(batch, weight, normaliser)
        except ValueError as error:
            if distributed.world() > 1 or batch.rows > 1 or LONE_ROW not in str(error):
                raise
            warn(
                "a batch of one row is skipped, since BatchNorm cannot normalise one value per"
                " channel: choose another batch_size or rate, drop_last=True, or min_active=2 of a"
                " Gate"
            )
            losses = torch.empty(0)
        self.end_batch()
        return losses

    def accumulate(
        self,
        batch: Batch,
        weight: Tensor | None,
        normaliser: float | Tensor,
        summed: bool = False,
    ) -> Tensor:
        """Add the gradient of a batch to those that wait; returns its losses ``[batch]``.

        After an out-of-memory error the micro-batch is halved and the batch is retried, unless
        there are several processes. ``summed``: several calls make up one step, so that their
        gradients are divided before it.
        """
        accumulated = self.accumulated
        if not accumulated.rows:  # gradients of other code
            for parameter in accumulated.parameters:
                parameter.grad = None
        # sums are divided before the step; otherwise earlier and at no cost
        accumulated.summed = summed or self.ignores or self.passes.config.accumulation_steps > 1
        divisor = 1.0 if accumulated.summed else _above_0(normaliser)
        losses: Tensor = self.passes.retry_smaller(self._gradient, weight, batch, divisor)
        accumulated.total = accumulated.total + normaliser
        accumulated.rows += len(losses)
        if self.ignores:
            accumulated.missing = accumulated.missing + _unlabelled(losses, weight)
            accumulated.unlabelled = losses.isnan().any() | accumulated.unlabelled
        return losses

    def _gradient(self, weight: Tensor | None, batch: Batch, divisor: float | Tensor) -> Tensor:
        """Add the gradient of a batch; if it fails, those that waited are left as they were."""
        waiting, known = [], len(self._predictions)
        if self.accumulated.rows:
            waiting = [(p, p.grad.clone()) for p in self.model.parameters() if p.grad is not None]
        try:
            if self.passes.micro_batch is None:
                return self._backward(batch, weight, divisor)
            losses, wrapped = [], self.passes.wrapped
            for part, few in self.passes.parts(batch):
                own = None if weight is None else weight[part]
                last = part.stop == batch.rows  # after it the processes average their gradients
                with nullcontext() if last or wrapped is self.model else wrapped.no_sync():
                    losses.append(self._backward(few, own, divisor))
            return torch.cat(losses)
        except BaseException:
            del self._predictions[known:]
            self.model.zero_grad(set_to_none=True)
            for parameter, gradient in waiting:
                parameter.grad = gradient
            raise

    def _backward(self, batch: Batch, weight: Tensor | None, divisor: float | Tensor) -> Tensor:
        with self.ledger.phase("forward"):
            with self.passes.autocast():
                outputs, targets = self.passes.train(batch)
            losses, labelled = labelled_losses(self.criterion, outputs, targets, self.ignores)
            if self.watching:
                self._predictions.append(predictions(outputs, targets))
        with self.ledger.phase("backward"):
            values = losses.detach()
            self.finite.check(values.sum(), "training loss")
            # of sum(weight * loss) / divisor, whose own graph would take longer
            if weight is None:
                gradient = torch.full_like(values, 1.0 / float(divisor))
            else:
                gradient = weight.to(values.dtype) / divisor
            if self.scaler is not None:
                gradient = self.scaler.scale(gradient)
            if not losses.requires_grad:
                raise ValueError(NOTHING.format("the loss depends on no parameter that is trained"))
            losses.backward(gradient)
        if labelled is None:
            return values
        return values.masked_fill(
            ~labelled if weight is None else ~labelled & (weight > 0), math.nan
        )

    # --- steps that are recorded ---

    def decide(self, flops: float) -> None:
        """Record the steps from here on, if ``config.graphs`` says so for one of ``flops``."""
        self.undecided = False
        automatic, reason = self.passes.config.graphs == "auto", unsupported(self)
        if reason is not None and not automatic:
            warn(f"graphs is True, but {reason}: no step is recorded")
        if reason is None and not (automatic and flops > LAUNCH_BOUND):
            device = self.passes.device
            self.passes.graphs = StepGraphs(self.model, self.optimizer, device, self.ledger)
            if automatic:
                self.passes.training_pass = self.passes.wrapped  # compiling is for long steps

    def _graph_step(
        self, batch: Batch, weight: Tensor | None, normaliser: float | Tensor
    ) -> Tensor | None:
        """As `train`, by a graph; ``None`` if the batch is not for one."""
        assert self.passes.graphs is not None
        empty = not isinstance(normaliser, Tensor) and not normaliser
        if batch.rows < 2 or empty or self.accumulated.rows or self.accumulated.pending:
            return None
        taken, replayed = self.steps, self.passes.graphs.replayed
        done = self.passes.graphs.step(self._whole_step, batch, weight, normaliser)
        if done is None:
            return None
        losses, stepped = done
        self.replayed += self.passes.graphs.replayed - replayed
        self.steps = taken + stepped
        if stepped:
            self.rates.after_step()
        return losses

    def _whole_step(
        self, batch: Batch, weight: Tensor | None, normaliser: float | Tensor
    ) -> tuple[Tensor, bool]:
        """A step in which the host decides nothing; its losses, and whether weights changed."""
        for parameter in self.accumulated.parameters:  # so that backward writes gradients, not adds
            parameter.grad = None
        self.accumulated.summed, self.finite.unread = self.ignores, True
        try:
            losses = self._backward(batch, weight, 1.0 if self.ignores else _above_0(normaliser))
            if self.ignores:
                share = 1 - _unlabelled(losses, weight) / len(losses)
                self.accumulated.total = normaliser * share
            with self.ledger.phase("optimizer"):
                return losses, self._step()
        finally:
            self.finite.unread = False
            self.accumulated.clear()

    def take_predictions(self) -> Predictions:
        """What the model predicted for the rows of the latest training batch."""
        parts, self._predictions = self._predictions, []
        if not parts or parts[0].correct is None:
            return Predictions()
        return Predictions(*map(torch.cat, zip(*parts, strict=True)))

    # --- the optimizer step ---

    def end_batch(self) -> None:
        """Count a batch; step after every ``accumulation_steps`` batches."""
        self.accumulated.pending += 1
        if self.accumulated.pending >= self.passes.config.accumulation_steps:
            with self.ledger.phase("optimizer"):
                self.flush()

    def flush(self) -> None:
        """Step with the accumulated gradients; does nothing without rows or weight."""
        try:
            if self.ignores:
                away = self.passes.device.type != "cpu"
                self.accumulated.total = self.accumulated.total * self.accumulated.labelled(away)
            if self.accumulated.weighted and self._step():
                self.rates.after_step()
        finally:  # a rejected gradient must not be accumulated further
            self.accumulated.clear()

    def _step(self) -> bool:
        """Divide, check and clip the gradients, and step; false if no weight changes."""
        groups = self.optimizer.param_groups
        trained = [p for group in groups for p in group["params"] if p.grad is not None]
        if not trained:  # the batch used none of the optimizer's parameters
            return False
        if isinstance(self.optimizer, torch.optim.Adam | torch.optim.AdamW):
            for parameter in trained:  # of a sparse embedding, which these refuse
                if parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in trained]
        if self.accumulated.summed:
            torch._foreach_div_(gradients, _above_0(self.accumulated.total))
        # torch 2.9 has no norm of sparse ones
        values = [each.coalesce().values() if each.is_sparse else each for each in gradients]
        norm, known = nn.utils.get_total_norm(values), math.inf
        if self.scaler is None:  # which checks for overflow itself
            known = self.finite.check(norm, "gradient's norm")
        clip_norm = self.passes.config.clip_norm
        if clip_norm is not None and known + 1e-6 > clip_norm:  # else torch would multiply by 1
            nn.utils.clip_grads_with_norm_(trained, clip_norm, norm)
        if self.scaler is not None:
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            overflow = self.scaler.get_scale() < before
            self.skipped += overflow
            self.steps += not overflow
            if overflow:  # the last batch is counted as trained on after this
                self.ledger.note(BatchFlops(), overflowed=self.accumulated.rows)
            return not overflow
        if self.finite.broken is not None:
            self.optimizer.found_inf = self.finite.broken.float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.steps += 1
        return True

    def release(self) -> None:
        """Leave the optimizer and the gradients as they were before the run; free the graphs."""
        if self.passes.graphs is not None:
            self.passes.graphs.drop()
        self.passes.graphs = None
        self.undecided = bool(self.passes.config.graphs)
        self.rates.multiply(1.0)
        if hasattr(self.optimizer, "found_inf"):  # else it would never step again
            del self.optimizer.found_inf
        if not self.accumulated.rows:
            self.model.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, Any]:
        """States of ``model`` and ``optimizer``."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Restore what `weights` returned; raises ``ValueError`` for another optimizer."""
        if self.passes.graphs is not None:
            self.passes.graphs.drop()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for parameter, entry in self.optimizer.state.items():
            for name, value in entry.items():  # fused optimizers pair values by their place
                if isinstance(value, Tensor) and value.ndim and value.shape == parameter.shape:
                    entry[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """Counts, and the state of scaler, scheduler and accumulated gradients."""
        state: dict[str, Any] = {
            "steps": self.steps,
            "skipped": self.skipped,
            "micro_batch": self.passes.micro_batch,
        }
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        state |= self.rates.state_dict()
        if self.accumulated.rows or self.accumulated.pending:  # a batch without rows counts
            named = self.model.named_parameters()
            gradients = {n: p.grad.to_dense() for n, p in named if p.grad is not None}
            state["accumulated"] = {
                "total": float(self.accumulated.total),
                "missing": float(self.accumulated.missing),
                "rows": self.accumulated.rows,
                "pending": self.accumulated.pending,
                "gradients": gradients if self.accumulated.rows else {},
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state``."""
        if self.passes.graphs is not None:
            self.passes.graphs.drop()
        self.model.zero_grad(set_to_none=True)
        self.finite.broken = None
        self.accumulated.clear()
        self.steps, self.skipped = state["steps"], state["skipped"]
        self.passes.micro_batch = state["micro_batch"]  # that was found to fit
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])
        self.rates.load_state_dict(state)
        if accumulated := state.get("accumulated"):
            self.accumulated.rows = accumulated["rows"]
            self.accumulated.total = accumulated["total"]
            self.accumulated.missing = accumulated.get("missing", 0.0)
            self.accumulated.summed = True
            self.accumulated.pending = accumulated["pending"]
            if self.scaler is not None:  # its scale is there from the first use on
                self.scaler.scale(torch.zeros((), device=next(self.model.parameters()).device))
            for name, parameter in self.model.named_parameters():
                if name in accumulated["gradients"]:
                    gradient = accumulated["gradients"][name]
                    parameter.grad = torch.empty_like(parameter).copy_(gradient)  # likewise


def _unlabelled(losses: Tensor, weight: Tensor | None) -> Tensor:
    """How many rows have no label, each counting for its ``weight``, whose mean is 1 then."""
    gone = losses.isnan()
    if weight is None:
        return gone.sum()
    return len(losses) * (weight * gone).sum() / torch.where(weight.sum() > 0, weight.sum(), 1.0)


def _above_0(total: float | Tensor) -> float | Tensor:
    """``total``, or 1 in place of 0: nothing is trained on then."""
    return torch.where(total == 0, 1.0, total) if isinstance(total, Tensor) else total or 1.0


def unsupported(work: Optimisation) -> str | None:
    """Why steps cannot be recorded; ``None`` if they may be."""
    model, optimizer = work.model, work.optimizer
    kind = type(optimizer).__name__
    if work.passes.device.type != "cuda" or any(not each.is_cuda for each in model.parameters()):
        return "the model is not on a CUDA device"
    if distributed.world() > 1 or work.passes.wrapped is not model:
        return "gradients are exchanged between processes"
    if work.scaler is not None:
        return "the loss scale of fp16 is read on the host: use bf16"
    if work.passes.micro_batch is not None or work.passes.config.accumulation_steps > 1:
        return (
            "gradients are accumulated: leave micro_batch and accumulation_steps at their defaults"
        )
    if work.watching:
        return "the policy reads what the model predicts for each row"
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        return f"{kind} is not Adam, AdamW or SGD of torch"
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return f"{kind} is not fused, so it cannot skip a step on the device: pass fused=True"
    return None
