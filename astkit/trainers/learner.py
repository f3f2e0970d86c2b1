"""The learner: a model with what it takes to change its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from astkit.gating import Criterion, Gate, cross_entropy_rows, row_losses
from astkit.profiling.ledger import Ledger
from astkit.trainers.compiling import compiled
from astkit.trainers.config import TrainConfig
from astkit.trainers.memory_saving import attention, checkpointed
from astkit.trainers.updates import FIRST_SCALE, Updates

T = TypeVar("T")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FUSED = ("cpu", "cuda", "mps")  # devices that torch has a fused AdamW for


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """The accelerator that torch sees (CUDA, MPS, XPU), else the CPU; or the device asked for."""
    if str(device) != "auto":
        return torch.device(device)
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return torch.device("cpu")


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that a device, or this machine, has no memory left for a tensor."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and ("out of memory" in text or "can't allocate memory" in text)
    )


class Learner:
    """Model, criterion, optimizer and precision: what every kind of step trains.

    Args:
        model: outputs ``[batch, ...]`` for inputs ``[batch, ...]``; moved to ``device``.
        config: learning rate, clipping, precision and so on, nothing of it "auto" but ``fused``.
        criterion: ``(outputs, targets) -> [batch]``, one loss a row.
        optimizer: built on ``model``'s parameters; AdamW from ``config`` by default.
        device: where the model lives.

    Attributes:
        forward: what is called in the model's place: the model itself, or a compiled one.
        micro_batch: rows that are in the model at a time; ``None`` for all.
        shrunk: numbers that ``micro_batch`` was lowered to when memory ran out, not yet reported.
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
        self.model = model.to(self.device)
        fused = config.fused if config.fused != "auto" else self.device.type in _FUSED
        self.optimizer = optimizer or torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=fused
        )
        self._base_lr = [group["lr"] for group in self.optimizer.param_groups]
        self.shrunk: list[int] = []
        self.adopt(config)

    def adopt(self, config: TrainConfig) -> None:
        """Take over precision, memory format, clipping and sizes of ``config``, before training."""
        self.config = config
        if config.channels_last is True:
            self.model.to(memory_format=torch.channels_last)
        # one object for the run, or a compiled model would be compiled anew at every step
        self.saving: AbstractContextManager[Any] = (
            checkpointed(self.model) if config.activation_checkpointing else nullcontext()
        )
        compiling = config.compile is True
        self.forward: Callable[[Any], Any] = (
            compiled(self.model, self.device) if compiling else self.model
        )
        self.micro_batch = config.micro_batch
        scaler = None
        if config.precision == "fp16":
            scaler = GradScaler(self.device.type, init_scale=FIRST_SCALE)
        self.updates = Updates(
            self.model, self.optimizer, config.clip_norm, config.accumulation_steps, scaler
        )

    def set_lr(self, factor: float) -> None:
        """Scale each parameter group's own learning rate by ``factor``."""
        for group, base in zip(self.optimizer.param_groups, self._base_lr, strict=True):
            group["lr"] = base * factor

    def prepare(self, x: Any) -> Any:
        """Inputs in the memory format that the model wants."""
        if self.config.channels_last is True and isinstance(x, Tensor) and x.ndim == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Precision and attention kernel of the configuration, for the length of a block."""
        half = HALF.get(self.config.precision)
        dtype = half or torch.float32
        with (
            attention(self.config.attention, self.device, dtype),
            torch.autocast(self.device.type, half, enabled=half is not None),
        ):
            yield

    def outputs(self, x: Any) -> Any:
        """The model's outputs, one micro-batch after the other, in its present mode."""
        with self.autocast():
            return self._fitting(lambda: self._in_parts(x), len(x))

    def losses(self, x: Any, y: Tensor) -> Tensor:
        """One loss a row ``[batch]``, with gradients, in the model's present mode."""
        with self.saving, self.autocast():
            outputs = self.forward(x)
        return row_losses(self.criterion, outputs, y)

    def scores(self, gate: Gate, x: Any, y: Tensor, index: Tensor | None = None) -> Tensor:
        """The gate's scores ``[batch]``, computed in the training precision."""
        with self.autocast():
            return gate.score(self.model, x, y, index, forward=self.outputs)

    def train(
        self, x: Any, y: Tensor, weight: Tensor | None = None, ledger: Ledger | None = None
    ) -> Tensor:
        """Train on one batch: its gradients, and the optimizer's step when it is due.

        Args:
            x, y: the rows, ``[batch, ...]`` each.
            weight: float ``[batch]``: what each row counts for; 1 by default.
            ledger: keeps the time of forward, backward and optimizer apart.

        Returns the losses ``[batch]`` before the step.
        """
        ledger = ledger or Ledger()
        losses = self.gradients(x, y, weight, ledger)
        self.end_batch(ledger)
        return losses

    def gradients(
        self, x: Any, y: Tensor, weight: Tensor | None = None, ledger: Ledger | None = None
    ) -> Tensor:
        """Add the gradients of ``sum(weight * loss)``; returns the losses ``[batch]``.

        Where memory runs out, the micro-batch is halved and the rows are tried again. Raises
        ``FloatingPointError`` for a loss that is not finite.
        """
        ledger = ledger or Ledger()

        def attempt() -> Tensor:
            with self.updates.attempt():
                size = self.micro_batch or len(y)
                parts = [
                    self._part(x, y, weight, slice(first, first + size), ledger)
                    for first in range(0, len(y), size)
                ]
            return torch.cat(parts) if len(parts) != 1 else parts[0]

        return self._fitting(attempt, len(y))

    def end_batch(self, ledger: Ledger) -> None:
        """A batch's gradients are complete: step if its turn has come."""
        with ledger.phase("optimizer"):
            self.updates.end_batch()

    def _part(
        self, x: Any, y: Tensor, weight: Tensor | None, rows: slice, ledger: Ledger
    ) -> Tensor:
        count = None if weight is None else weight[rows]
        with ledger.phase("forward"):
            losses = self.losses(x[rows], y[rows])
        with ledger.phase("backward"):
            summed = losses.sum() if count is None else (losses * count).sum()
            total = float(len(losses)) if count is None else count.sum()
            self.updates.backward(summed, total, len(losses))
        return losses.detach()

    def _in_parts(self, x: Any) -> Any:
        if self.micro_batch is None or len(x) <= self.micro_batch:
            return self.forward(x)
        return torch.cat([self.forward(part) for part in x.split(self.micro_batch)])

    def _fitting(self, attempt: Callable[[], T], rows: int) -> T:
        """What ``attempt`` returns, with the micro-batch halved as often as memory runs out."""
        while True:
            try:
                return attempt()
            except (RuntimeError, MemoryError) as error:
                size = min(self.micro_batch or rows, rows)
                if not out_of_memory(error) or size < 2:
                    raise
            # after the handler, because the error's frames hold the tensors that have to go
            self.micro_batch = -(-size // 2)
            self.shrunk.append(self.micro_batch)
            if self.device.type != "cpu":
                torch.accelerator.empty_cache()
