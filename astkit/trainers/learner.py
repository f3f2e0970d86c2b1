"""Learner: model, criterion, optimizer and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from astkit import distributed
from astkit.batch import Batch, call, count_rows, join, take_rows
from astkit.gating import Criterion, Scored, cross_entropy_rows, row_losses, token_losses
from astkit.gating.losses import reduced
from astkit.gating.scored import correctness
from astkit.profiling.ledger import Ledger
from astkit.trainers.compiling import Compiled
from astkit.trainers.config import TrainConfig
from astkit.trainers.memory_saving import Checkpointed, attention
from astkit.trainers.updates import FIRST_SCALE, Updates, move_state

T = TypeVar("T")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FUSED = ("cpu", "cuda")  # devices whose fused AdamW skips a step on request


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """The given device; for "auto" the available accelerator (CUDA, MPS, XPU), else the CPU.

    Raises ``ValueError`` for the name of no device.
    """
    if str(device) != "auto":
        try:
            return torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device is {device!r}: pass auto, cpu, cuda or mps") from error
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` is an out-of-memory error of a device or of the host."""
    sentences = ("out of memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        sentence in str(error) for sentence in sentences
    )


class Learner:
    """Model, criterion, optimizer and precision, shared by all steps.

    Args:
        model: called with a batch's inputs as `astkit.batch.call` does; moved to ``device``. With
            several processes: a DistributedDataParallel, or a model with ``fully_shard`` applied.
        config: learning rate, clipping, precision and so on; no "auto" values except ``fused``.
        criterion: ``(outputs, targets) -> [batch]``, one loss per row; see `Criterion`.
        optimizer: built on ``model``'s parameters; AdamW from ``config`` by default.
        device: device of the model.

    Attributes:
        model: the model in training, without DistributedDataParallel.
        forward: the training pass: the model as given, or compiled.
        batch_rows: rows of the current batch in all processes; ``None`` for those of the batch.
        micro_batch: rows per forward pass; ``None`` for the whole batch.
        classifying: whether the criterion takes integer targets as classes; see `Costs`.
        watching: whether to record correctness and confidence of the rows, for `take_watched`.
        base_lr: initial learning rate of each parameter group.
        book: called as ``book(model, batch, trained)`` for every pass of a helper model.
        shrunk: values of ``micro_batch`` after out-of-memory errors that are not yet reported.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        criterion: Criterion = cross_entropy_rows,
        optimizer: torch.optim.Optimizer | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.criterion = criterion
        distributed.check_model(model)
        self._given = model.to(self.device)
        self.model = distributed.unwrapped(self._given)
        self.batch_rows: int | None = None
        fused = config.fused if config.fused != "auto" else self.device.type in _FUSED
        self.optimizer = optimizer or torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=fused
        )
        move_state(self.optimizer)
        self.base_lr = [group["lr"] for group in self.optimizer.param_groups]
        self.shrunk: list[int] = []
        self.classifying, self.watching = True, False
        self.book: Callable[[nn.Module, Batch, bool], None] | None = None
        self._watched: list[tuple[Tensor | None, Tensor | None]] = []
        self.adopt(config)

    def adopt(self, config: TrainConfig) -> None:
        """Apply precision, memory format, clipping and sizes of ``config``, before training."""
        self.config = config
        if config.channels_last is True:
            self.model.to(memory_format=torch.channels_last)
        # created once: a new object per step would trigger recompilation
        self.saving: AbstractContextManager[Any] = (
            Checkpointed(self.model, config.attention)
            if config.activation_checkpointing
            else nullcontext()
        )
        self.forward = Compiled(self._given) if config.compile is True else self._given
        # a pass without gradients does not need the wrapper, which exchanges buffers
        self._scoring = self.forward if self._given is self.model else self.model
        if config.micro_batch and distributed.world() > 1 and distributed.is_sharded(self.model):
            raise ValueError(
                f"micro_batch is {config.micro_batch}, but a model with fully_shard needs equally"
                " many passes in every process: leave it None, or use DistributedDataParallel"
            )
        self.micro_batch = config.micro_batch
        scaler = None
        if config.precision == "fp16":
            scaler = GradScaler(self.device.type, init_scale=FIRST_SCALE)
        views = getattr(self._given, "gradient_as_bucket_view", False)  # of DDP
        self.updates = Updates(
            self.model, self.optimizer, config.clip_norm, config.accumulation_steps, scaler, views
        )

    def set_lr(self, factor: float) -> None:
        """Set the learning rate of each parameter group to ``factor`` times its initial value."""
        for group, base in zip(self.optimizer.param_groups, self.base_lr, strict=True):
            group["lr"] = base * factor

    def prepare(self, batch: Batch) -> Batch:
        """``batch`` with its inputs in the memory format of the model."""
        x = batch.x
        if self.config.channels_last is not True or getattr(x, "ndim", 0) != 4:
            return batch
        ordered = x.contiguous(memory_format=torch.channels_last)
        return batch._replace(x=ordered, y=ordered if batch.y is x else batch.y)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Context with the precision and attention kernel of the configuration."""
        half = HALF.get(self.config.precision)
        with (
            attention(self.config.attention),
            torch.autocast(self.device.type, half, enabled=half is not None),
        ):
            yield

    def outputs(self, x: Any, y: Any = None) -> Any:
        """Model outputs, computed in micro-batches, in the current training or eval mode."""
        with self.autocast():
            return self._fitting(lambda: self._in_parts(x, y), count_rows(x))

    def scored(self, batch: Batch) -> Scored:
        """``batch`` as a `Scored`: evaluated on first access, in the training precision."""
        return Scored(
            None,
            batch.y,
            batch.x,
            batch.index,
            self.model,
            criterion=self.criterion,
            run=self._score,
            book=self.book,
        )

    def train(
        self,
        x: Any,
        y: Any,
        weight: Tensor | None = None,
        ledger: Ledger | None = None,
        normaliser: float | Tensor | None = None,
    ) -> Tensor:
        """Train on one batch: computes gradients and steps the optimizer if due.

        Args:
            x, y: inputs and targets; the same object for a batch passed as a single object.
            weight: float ``[batch]``: loss weight per row; 1 by default. ``[batch, tokens]`` for
                weights per token.
            ledger: measures the time of forward, backward and optimizer separately.
            normaliser: divisor of the weighted sum of losses; by default the sum of the weights.
                With several processes, whose gradients are averaged, its mean over them.

        Returns the losses ``[batch]`` before the step.
        """
        ledger = ledger or Ledger()
        losses = self.gradients(x, y, weight, ledger, normaliser)
        self.end_batch(ledger)
        return losses

    def gradients(
        self,
        x: Any,
        y: Any,
        weight: Tensor | None = None,
        ledger: Ledger | None = None,
        normaliser: float | Tensor | None = None,
    ) -> Tensor:
        """Accumulate the gradients of ``sum(weight * loss)``; returns the losses ``[batch]``.

        After an out-of-memory error, the micro-batch is halved and the batch is retried, unless
        there are several processes. Raises ``FloatingPointError`` for a non-finite loss.
        """
        ledger, rows = ledger or Ledger(), count_rows(y)
        if normaliser is None:
            normaliser = float(rows) if weight is None else weight.sum()

        def attempt() -> Tensor:
            self._watched = []
            with self.updates.attempt():
                size = self.micro_batch or rows
                parts = []
                for first in range(0, rows, size):
                    part = slice(first, min(first + size, rows))
                    total = 0.0 if first else normaliser  # added once, to avoid rounding
                    count = None if weight is None else weight[part]
                    with self._averaging(last=part.stop == rows):
                        parts.append(self._part(*_rows(x, y, part, rows), count, total, ledger))
            return torch.cat(parts) if len(parts) != 1 else parts[0]

        return self._fitting(attempt, rows)

    def take_watched(self) -> tuple[Tensor | None, Tensor | None]:
        """Correctness and largest probability of the rows of the latest training batch."""
        watched, self._watched = self._watched, []
        if not watched or watched[0][0] is None:
            return None, None
        right, confidence = zip(*watched, strict=True)
        return torch.cat(right), torch.cat(confidence)

    def end_batch(self, ledger: Ledger) -> None:
        """Finish a batch; step the optimizer if due."""
        with ledger.phase("optimizer"):
            self.updates.end_batch()

    def _averaging(self, last: bool) -> AbstractContextManager[Any]:
        """Average the gradients of the processes once per batch, after its ``last`` part."""
        return nullcontext() if last or self._given is self.model else self._given.no_sync()  # type: ignore[operator]

    def _part(
        self, x: Any, y: Any, weight: Tensor | None, total: float | Tensor, ledger: Ledger
    ) -> Tensor:
        with ledger.phase("forward"):
            with self.saving, self.autocast():
                outputs = call(self.forward, x, y)
            if weight is not None and weight.ndim > 1:
                tokens, mask = token_losses(self.criterion, outputs, y)
                losses = reduced(tokens, mask)
                weighted = tokens if mask is None else torch.where(mask, tokens, 0.0)
            else:
                weighted = losses = row_losses(self.criterion, outputs, y)
            if self.watching:
                known = correctness(outputs, y) if self.classifying else (None, None)
                self._watched.append(known)
        with ledger.phase("backward"):
            summed = weighted.sum() if weight is None else (weighted * weight).sum()
            self.updates.backward(summed, total, len(losses))
        return losses.detach()

    def _score(self, model: nn.Module, batch: Batch) -> Any:
        if model is self.model:
            return self.outputs(batch.x, batch.y)
        with self.autocast():
            return call(model, batch.x, batch.y)

    def _in_parts(self, x: Any, y: Any) -> Any:
        rows = count_rows(x)
        if self.micro_batch is None or rows <= self.micro_batch:
            return call(self._scoring, x, y)
        firsts = range(0, rows, self.micro_batch)
        parts = (_rows(x, y, slice(first, first + self.micro_batch), rows) for first in firsts)
        return join([call(self._scoring, *part) for part in parts])

    def _fitting(self, attempt: Callable[[], T], rows: int) -> T:
        """Call ``attempt``; halve the micro-batch and retry after out-of-memory errors."""
        while True:
            try:
                return attempt()
            except (RuntimeError, MemoryError) as error:
                size = min(self.micro_batch or rows, rows)
                if not out_of_memory(error) or size < 2 or distributed.world() > 1:
                    raise
            # outside the handler: the traceback references tensors that must be freed
            self.micro_batch = -(-size // 2)
            self.shrunk.append(self.micro_batch)
            if self.device.type != "cpu":
                torch.accelerator.empty_cache()


def _rows(x: Any, y: Any, part: slice, rows: int) -> tuple[Any, Any]:
    """A slice of a batch; a batch passed as a single object remains one object."""
    if part.start == 0 and part.stop >= rows:
        return x, y
    inputs = take_rows(x, part, rows)
    return inputs, inputs if y is x else take_rows(y, part, rows)
