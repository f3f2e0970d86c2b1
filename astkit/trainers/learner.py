"""The learner: a model with what it takes to change its weights."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from astkit.gating import Criterion, Gate, cross_entropy_rows, row_losses
from astkit.trainers.config import TrainConfig


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """The accelerator that torch sees (CUDA, MPS, XPU), else the CPU; or the device asked for."""
    if str(device) != "auto":
        return torch.device(device)
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return torch.device("cpu")


class Learner:
    """Model, criterion, optimizer and precision: what every kind of step trains.

    Args:
        model: outputs ``[batch, ...]`` for inputs ``[batch, ...]``; moved to ``device``.
        config: learning rate, clipping, precision, memory format.
        criterion: ``(outputs, targets) -> [batch]``, one loss a row.
        optimizer: built on ``model``'s parameters; AdamW from ``config`` by default.
        device: where the model lives.
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
        self.config = config
        self.criterion = criterion
        self.model = model.to(self.device)
        if config.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.optimizer = optimizer or torch.optim.AdamW(
            self.model.parameters(),
            lr=config.lr,
            weight_decay=config.weight_decay,
            fused=self.device.type in ("cpu", "cuda", "mps"),
        )
        self._base_lr = [group["lr"] for group in self.optimizer.param_groups]

    def set_lr(self, factor: float) -> None:
        """Scale each parameter group's own learning rate by ``factor``."""
        for group, base in zip(self.optimizer.param_groups, self._base_lr, strict=True):
            group["lr"] = base * factor

    def prepare(self, x: Any) -> Any:
        """Inputs in the memory format that the model wants."""
        if self.config.channels_last and isinstance(x, Tensor) and x.ndim == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of the configuration, for the length of a block."""
        enabled = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def losses(self, x: Any, y: Tensor) -> Tensor:
        """One loss a row ``[batch]``, with gradients, in the model's present mode."""
        with self.autocast():
            outputs = self.model(x)
        return row_losses(self.criterion, outputs, y)

    def scores(self, gate: Gate, x: Any, y: Tensor, index: Tensor | None = None) -> Tensor:
        """The gate's scores ``[batch]``, computed in the training precision."""
        with self.autocast():
            return gate.score(self.model, x, y, index)

    def update(self, loss: Tensor) -> None:
        """One optimizer step on a 0-dim ``loss``."""
        self.clear()
        self.backward(loss)
        self.apply()

    def clear(self) -> None:
        """Forget all gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of ``loss``; refuses one that is not finite before weights change.

        Raises ``FloatingPointError``.
        """
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"the training loss became {loss.item()}: the weights are as they were before this"
                " step; lower lr, or set clip_norm, and look at the batch's inputs for NaN"
            )
        loss.backward()

    def apply(self, divide_by: float = 1.0) -> None:
        """Divide the summed gradients, clip them, and step."""
        if divide_by != 1.0:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            torch._foreach_div_(gradients, divide_by)
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
