"""Weight updates: accumulate, unscale, divide, clip and step, in this order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from astkit import distributed
from astkit.gating import Criterion

FIRST_SCALE = 2.0**9
"""Initial fp16 loss scale; torch uses 2**16 for means, but here losses are summed."""


class Updates:
    """Accumulates gradients of sums over rows; divides by the total weight before each step.

    Accumulation over batches of different sizes is equivalent to one large batch: the optimizer
    receives the gradient of the weighted mean over all accumulated rows. With several processes,
    gradients and total are means over the processes, and so is their ratio.

    The mean gradient is clipped to ``clip_norm``; the optimizer steps every ``every`` batches. If
    the fp16 ``scaler`` skips a step after an overflow, the weights do not change. ``views``:
    whether gradients are views of memory that the next backward pass overwrites.

    Attributes:
        steps: number of steps that changed weights.
        skipped: number of steps skipped by the scaler.
        pending: number of batches accumulated since the latest step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        clip_norm: float | None = None,
        every: int = 1,
        scaler: GradScaler | None = None,
        views: bool = False,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.clip_norm, self.every, self.scaler = clip_norm, every, scaler
        self.views = views
        self.steps = self.skipped = self.pending = 0
        self._total: float | Tensor = 0.0
        self._rows = self._lost = 0
        self._broken: Tensor | None = None
        # fused kernels read a flag on the device, without synchronisation; MPS's did not
        kinds = {parameter.device.type for parameter in model.parameters()}
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        self._flagged = bool(fused) and kinds <= {"cpu", "cuda"}

    def backward(self, total_loss: Tensor, total: float | Tensor, rows: int) -> None:
        """Accumulate gradients of ``total_loss``, a sum over ``rows`` rows of weight ``total``.

        Raises ``FloatingPointError`` for a non-finite loss before any weight changes: immediately
        on the CPU; on an accelerator at the next `check`, and steps until then are skipped.
        """
        self._guard(total_loss.detach(), "training loss")
        (total_loss if self.scaler is None else self.scaler.scale(total_loss)).backward()
        self._total = self._total + total
        self._rows += rows

    def end_batch(self) -> None:
        """Finish a batch; step after every ``every`` batches."""
        self.pending += 1
        if self.pending >= self.every:
            self.flush()

    def flush(self) -> None:
        """Step with the accumulated gradients; does nothing without rows or weight."""
        try:
            if self._rows and self._weigh():
                self._step()
        finally:  # a rejected gradient must not be accumulated further
            self.clear()

    def clear(self) -> None:
        """Discard the accumulated gradients."""
        self.model.zero_grad(set_to_none=True)  # the optimizer may hold only some parameters
        self._total, self._rows, self.pending = 0.0, 0, 0

    def take_lost(self) -> int:
        """Rows whose gradients were discarded by skipped steps since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Context: gradients of the block are accumulated, or discarded if it raises."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        total, rows = self._total, self._rows
        before = [p.grad if rows else None for p in parameters]  # else: stale, from other code
        if self.views:
            before = [None if gradient is None else gradient.clone() for gradient in before]
        for parameter in parameters:
            parameter.grad = None
        try:
            yield
        except BaseException:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
            self._total, self._rows = total, rows
            raise
        for parameter, gradient in zip(parameters, before, strict=True):
            if gradient is not None:
                new = parameter.grad
                parameter.grad = gradient if new is None else new.add_(gradient)

    def check(self) -> None:
        """Raise ``FloatingPointError`` if a loss or gradient was non-finite; synchronises."""
        if self._broken is not None and bool(self._broken):
            raise _not_finite("training loss or the gradient", "not finite")

    def _guard(self, value: Tensor, what: str) -> None:
        if value.device.type == "cpu" or not self._flagged:
            if not torch.isfinite(value):
                raise _not_finite(what, str(value.item()))
            return
        broken = ~torch.isfinite(value)
        self._broken = broken if self._broken is None else self._broken | broken

    def _weigh(self) -> bool:
        away = isinstance(self._total, Tensor) and self._total.device.type != "cpu"
        # with a flag, a step without weight is skipped on the device; others synchronise anyway
        deferred = away and self._flagged and self.scaler is None
        return deferred or float(self._total) != 0.0

    def _step(self) -> None:
        groups = self.optimizer.param_groups
        trained = [p for group in groups for p in group["params"] if p.grad is not None]
        if not trained:  # the batch used none of the optimizer's parameters
            return
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in trained]
        empty = self._total == 0
        if isinstance(self._total, Tensor) or self._total != 1.0:
            torch._foreach_div_(gradients, self._total + empty)
        norm = nn.utils.get_total_norm(gradients)
        if self.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(trained, self.clip_norm, norm)
        if self.scaler is not None:  # the scaler checks for overflow itself
            self._scaled_step(self.scaler)
            return
        self._guard(distributed.whole(norm), "gradient's norm")
        if self._broken is not None:
            found_inf = (self._broken | empty).float()
            self.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        self.optimizer.step()
        self.steps += 1

    def _scaled_step(self, scaler: GradScaler) -> None:
        before = scaler.get_scale()
        scaler.step(self.optimizer)
        scaler.update()
        if scaler.get_scale() < before:
            self.skipped += 1
            self._lost += self._rows
        else:
            self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Counts, the scaler's state, and accumulated gradients by parameter name."""
        state: dict[str, Any] = {"steps": self.steps, "skipped": self.skipped}
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if self._rows or self.pending:  # a batch without rows counts as well
            named = self.model.named_parameters()
            scale = distributed.world()  # from means to sums over the processes
            gradients = {n: p.grad.detach() * scale for n, p in named if p.grad is not None}
            state["waiting"] = {
                "total": float(self._total) * scale,
                "rows": self._rows,
                "pending": self.pending,
                "gradients": gradients,
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state``."""
        self.clear()
        self._broken = None
        self.steps, self.skipped = state["steps"], state["skipped"]
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])
        if waiting := state.get("waiting"):
            scale = distributed.world()
            self._total, self._rows = waiting["total"] / scale, waiting["rows"]
            self.pending = waiting["pending"]
            if self.scaler is not None:  # its scale is there from the first use on
                self.scaler.scale(torch.zeros((), device=next(self.model.parameters()).device))
            for name, parameter in self.model.named_parameters():
                if name in waiting["gradients"]:
                    gradient = waiting["gradients"][name].to(parameter.device, parameter.dtype)
                    parameter.grad = distributed.sharded_like(gradient, parameter) / scale


def check_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer, criterion: Criterion
) -> None:
    """Raise ``ValueError`` for parameters outside ``model``, which `Updates` would never clear."""
    own = set(model.parameters())
    inner = criterion.parameters() if isinstance(criterion, nn.Module) else ()
    if any(each.requires_grad and each not in own for each in inner):
        raise ValueError(
            f"the criterion {type(criterion).__name__} has trainable parameters that are not the"
            " model's: make it a part of the model, such as with model.loss = criterion, before the"
            " optimizer is built, or freeze it with criterion.requires_grad_(False)"
        )
    held = [each for group in optimizer.param_groups for each in group["params"]]
    if strange := sum(each not in own for each in held):
        raise ValueError(
            f"{strange} of the optimizer's {len(held)} parameters are not the model's: build it"
            " from model.parameters(), after fully_shard and other changes of the model"
        )


def move_state(optimizer: torch.optim.Optimizer) -> None:
    """Move the state of ``optimizer`` to its parameters, which may have moved since it was made."""
    kernels = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and (value.ndim or kernels):  # else counts stay on the CPU
                state[name] = value.to(parameter.device)


def _not_finite(what: str, value: str) -> FloatingPointError:
    return FloatingPointError(
        f"the {what} became {value}: the weights were not changed in this step; lower lr, or"
        " set clip_norm, and check the batch's inputs for NaN"
    )
