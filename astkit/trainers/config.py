"""Settings of a training run: learning rates, precision, budget, and the rules of a fast run."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from astkit import distributed
from astkit.checks import (
    ABOVE_0,
    FROM_0,
    RATE,
    SHARE,
    Limit,
    check_count,
    check_number,
    check_settings,
)
from astkit.profiling.ledger import Ledger
from astkit.stamp import stamp

TIME_BUDGET = "ASTKIT_TIME_BUDGET_H"
_BEGUN = time.monotonic()

Schedule = Callable[[float], float]
"""``progress`` in [0, 1] -> factor on the peak learning rate."""


def cosine(progress: float) -> float:
    """Half a cosine from 1 to 0. Source: Loshchilov and Hutter, "SGDR", ICLR 2017."""
    return 0.5 * (1 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Schedule] = {"cosine": cosine, "constant": lambda progress: 1.0}


class Rule(NamedTuple):
    """A setting of `TrainConfig.fast` and the reason for it."""

    name: str
    value: Any
    reason: str


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run; names are the same in code, notebooks and commands.

    Example::

        config = TrainConfig(lr=0.01, schedule="constant", precision="bf16")
        Trainer(model, train, epochs=1, config=config).run()

    Attributes:
        lr: peak learning rate of AdamW; ``None`` is 1e-3, in place of which `astkit.compare`
            chooses one.
        weight_decay: AdamW's decoupled weight decay.
        clip_norm: maximum norm of the gradient; ``None`` disables clipping.
        schedule: learning rate over the budget, as a factor on ``lr``: "cosine", "constant", or a
            function of the fraction of the budget spent, from [0, 1].
        warmup: fraction of the budget in which that factor is also multiplied by a ramp from 0 to
            1, in [0, 1).
        precision: "fp32"; "bf16" or "fp16" for autocast with float32 weights (fp16 with a loss
            scale, for accelerators without bf16).
        channels_last: use NHWC memory format for images and convolutions.
        compile: use torch.compile for the training pass.
        graphs: record steps of each shape as a CUDA graph and replay them; "auto" where a step is
            so short that launching its kernels takes longer than they do, in place of ``compile``.
            See docs/training.md.
        batch_size: rows per batch; ``None`` keeps the loader's.
        micro_batch: rows per forward pass; ``None`` for the whole batch. Halved after an
            out-of-memory error; without BatchNorm the gradients do not change.
        accumulation_steps: number of batches whose gradients are accumulated per optimizer step.
        threads: CPU threads of torch, at most the CPUs available to the process; ``None`` keeps
            torch's number.
        keep_memory: let glibc keep the memory of freed tensors (Linux); see `astkit.system`.
        validation_fraction: fraction of the validation rows evaluated after each epoch, in (0, 1].
        report_every: batches between two reports to the observers. Until then the values of a batch
            stay on the device, so that nothing waits for it.
        seed: random seed of dropout; data order, augmentation and gate have their own.

    Raises ``ValueError`` for a value out of range.
    """

    lr: float | None = None
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    schedule: str | Schedule = "cosine"
    warmup: float = 0.0
    precision: str = "fp32"
    channels_last: bool = False
    compile: bool = False
    graphs: bool | str = False
    batch_size: int | None = None
    micro_batch: int | None = None
    accumulation_steps: int = 1
    threads: int | None = None
    keep_memory: bool = False
    validation_fraction: float = 1.0
    report_every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, _LIMITS, _OPTIONAL)
        if callable(self.schedule):
            factors = [self.schedule(progress) for progress in (0.0, 0.5, 1.0)]
            if not all(0 <= _factor(each) < math.inf for each in factors):
                raise ValueError(f"schedule gives {factors} at 0, 0.5 and 1: return 0 or more")
        elif not isinstance(self.schedule, str) or self.schedule not in SCHEDULES:
            raise ValueError(
                f"schedule is {self.schedule!r}: give cosine, constant, or a function of the"
                " progress in [0, 1]"
            )

    @property
    def peak_lr(self) -> float:
        """The peak learning rate."""
        return 1e-3 if self.lr is None else self.lr

    def lr_factor(self, progress: float) -> float:
        """Factor on the peak learning rate after a fraction ``progress`` of the budget."""
        schedule = self.schedule if callable(self.schedule) else SCHEDULES[self.schedule]
        ramp = 1.0 if progress >= self.warmup else progress / self.warmup
        return ramp * float(schedule(progress))

    @classmethod
    def fast(cls, *, device: str | torch.device = "auto", **settings: Any) -> TrainConfig:
        """The settings of `fast_rules` for ``device``, updated by ``settings``."""
        return cls(**{**{rule.name: rule.value for rule in fast_rules(device)}, **settings})

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values; a function is named."""
        settings = asdict(self)
        if callable(self.schedule):
            settings["schedule"] = getattr(self.schedule, "__name__", type(self.schedule).__name__)
        return settings


def fast_rules(device: str | torch.device = "auto") -> list[Rule]:
    """What makes training fast on ``device`` and changes results by rounding at most.

    The settings of `Loader` for workers, pinned memory and prefetching have their own rules, see
    `astkit.datasets.loader`.
    """
    kind = choose_device(device).type
    if kind == "cuda":
        half = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        half = kind == "cpu" and bool(stamp()["bf16_native"])
    why = "has" if half else "has no"
    kept = kind == "cpu" and sys.platform == "linux"
    return [
        Rule("precision", "bf16" if half else "fp32", f"{kind} {why} bf16 instructions"),
        Rule("channels_last", True, "convolutions are faster in this order of memory"),
        Rule("graphs", kind == "cuda", "a recorded step is launched at once, and needs CUDA"),
        Rule("compile", False, "graphs are faster on a GPU; on a CPU it takes too long"),
        Rule("keep_memory", kept, "glibc would return and zero freed memory at every step"),
    ]


class Rates:
    """The learning rates of an optimizer over a run.

    Attributes:
        lr: rate of the current batch, of the first parameter group.
        base: rates of the optimizer; ``scale``: factor on all of them.
        steps: steps that the scheduler takes in the whole run, in proportion to the budget spent;
            ``None``: one after each optimizer step. ``taken``: those so far.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        scheduler: LRScheduler | None,
        steps: int | None,
        scale: float,
    ) -> None:
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ValueError(
                "scheduler is a ReduceLROnPlateau, which needs a metric at each step: pass another"
                " one, or set config=TrainConfig(schedule=...)"
            )
        self.optimizer, self.config, self.scheduler = optimizer, config, scheduler
        self.steps, self.scale = steps, scale
        self.base = [group["lr"] for group in optimizer.param_groups]
        self.lr = self.base[0]
        self.taken = 0

    def set(self, progress: float) -> None:
        """Set the learning rates for a fraction ``progress`` of the budget."""
        factor = self.scale
        if self.scheduler is None:
            factor *= self.config.lr_factor(progress)
        elif self.steps is not None:
            self._schedule(int(progress * self.steps + 1e-6))
        self.multiply(factor)
        self.lr = self.optimizer.param_groups[0]["lr"]

    def after_step(self) -> None:
        """Let a scheduler that counts optimizer steps take one."""
        if self.scheduler is not None and self.steps is None:
            self._schedule(self.taken + 1)

    def multiply(self, factor: float) -> None:
        """Give the optimizer the rates of its scheduler, or its own, times ``factor``."""
        groups = self.optimizer.param_groups
        if len(groups) > len(self.base):  # one was added since
            if self.scheduler is not None:
                raise ValueError(
                    "the optimizer has a new parameter group, which its scheduler does not know:"
                    " add it before the scheduler is made, or set config=TrainConfig(schedule=...)"
                )
            self.base += [group["lr"] for group in groups[len(self.base) :]]
        rates = self.base if self.scheduler is None else self.scheduler.get_last_lr()
        for group, lr in zip(groups, rates, strict=True):
            group["lr"] = lr * factor

    def _schedule(self, steps: int) -> None:
        """Step the scheduler until it has taken so many steps."""
        assert self.scheduler is not None
        self.multiply(1.0)  # schedulers compute the next rate from the latest one
        while self.taken < steps:
            self.scheduler.step()
            self.taken += 1

    def state_dict(self) -> dict[str, Any]:
        """State of the scheduler."""
        if self.scheduler is None:
            return {}
        return {"scheduler": self.scheduler.state_dict(), "scheduled": self.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        if self.scheduler is not None and "scheduler" in state:
            self.scheduler.load_state_dict(state["scheduler"])
            self.taken = int(state["scheduled"])


@dataclass(frozen=True)
class Budget:
    """Training budget: exactly one of epochs, batches (``steps``), FLOPs, seconds and rows.

    Example::

        Trainer(model, train, budget=Budget(steps=100)).run()

    An epoch is one iteration of the loader; with a policy of a given rate it has rate x N rows.
    Learning rate schedules depend on the fraction of the budget spent, so they end with the budget
    in any unit. Evaluation is not counted. ``rows`` are those that pass through the model, trained
    on or scored.

    Raises ``ValueError`` unless exactly one limit is given and it is positive.
    """

    epochs: float | None = None
    flops: float | None = None
    seconds: float | None = None
    steps: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        limits = {name: limit for name, limit in asdict(self).items() if limit is not None}
        if len(limits) != 1:
            raise ValueError(
                f"budget names {sorted(limits) or 'no limit'}: give exactly one of epochs, steps,"
                " flops, seconds and rows"
            )
        for name, limit in limits.items():
            if name in ("steps", "rows"):
                value: float = check_count(f"budget {name}", limit)
            else:
                value = check_number(f"budget {name}", limit, ABOVE_0)
            object.__setattr__(self, name, value)

    def check(self, ledger: Ledger) -> None:
        """Raise ``ValueError`` for a FLOPs budget if some operations cannot be counted."""
        if self.flops is not None and ledger.uncounted:
            raise ValueError(
                f"budget flops is {self.flops:g}, but the FLOPs of"
                f" {', '.join(sorted(ledger.uncounted))} cannot be counted: give epochs, steps or"
                " seconds"
            )

    def spent(self, epochs: float, ledger: Ledger, steps: int = 0) -> float:
        """Fraction of the budget spent after ``epochs`` epochs and ``steps`` batches, in [0, 1]."""
        if self.epochs is not None:
            share = epochs / self.epochs
        elif self.steps is not None:
            share = steps / self.steps
        elif self.flops is not None:
            share = ledger.flops.total / self.flops
        elif self.rows is not None:
            share = (ledger.samples.trained + ledger.samples.scored) / self.rows
        else:
            share = ledger.seconds["training"] / (self.seconds or math.inf)
        return min(1.0, share)


def _factor(value: Any) -> float:
    with suppress(TypeError, ValueError, RuntimeError):
        return float(value)
    return math.nan


class TimeIsUp(RuntimeError):  # noqa: N818 - not an error
    """The process's time budget is spent; the run's checkpoints hold its state."""

    def __init__(self, step: int, folder: Path | None) -> None:
        saved = "nothing was saved, since the run had no checkpoints"
        if folder is not None:
            saved = f"saved in {folder}: run it again with resume=True to continue"
        hours = os.environ.get(TIME_BUDGET)
        super().__init__(f"the time budget of {hours} h is over after step {step}; {saved}")


def time_is_up() -> bool:
    """Whether the time budget of a process is spent, for example in hosted notebooks.

    ``ASTKIT_TIME_BUDGET_H`` sets it in hours, counted from the import of ``astkit.trainers``.
    0 sets no limit. Raises ``ValueError`` unless these are a number of 0 or more.
    """
    hours = os.environ.get(TIME_BUDGET)
    if not hours:
        return False
    try:
        limit = float(hours) * 3600
    except ValueError:
        limit = math.nan
    if not limit >= 0:
        raise ValueError(f"{TIME_BUDGET} is {hours!r}: give a number of hours, 0 or more")
    return limit > 0 and distributed.total(time.monotonic() - _BEGUN >= limit)[0] > 0


def choose_config(
    config: TrainConfig | None, lr: float | None, batch_size: int | None, optimizer: object
) -> TrainConfig:
    """``config`` with the settings that were given beside it; ``ValueError`` for two rates."""
    config = config or TrainConfig()
    if lr is not None:
        if config.lr is not None or optimizer is not None:
            other = "an optimizer" if optimizer is not None else "config.lr"
            raise ValueError(f"lr is {lr!r}, and {other} is given too: give one of them")
        config = replace(config, lr=lr)
    if batch_size is not None:
        config = replace(config, batch_size=batch_size)
    return config


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """The given device; for "auto" the available accelerator (CUDA, MPS, XPU), else the CPU."""
    if str(device) != "auto":
        try:
            return torch.device(device)
        except (RuntimeError, TypeError):
            raise ValueError(f"device is {device!r}: pass auto, cpu, cuda or mps") from None
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


_SWITCH = (True, False)
_LIMITS: dict[str, Limit] = {
    "lr": ABOVE_0,
    "weight_decay": FROM_0,
    "clip_norm": ABOVE_0,
    "warmup": SHARE,
    "precision": ("fp32", "bf16", "fp16"),
    "channels_last": _SWITCH,
    "compile": _SWITCH,
    "graphs": (True, False, "auto"),
    "batch_size": 1,
    "micro_batch": 1,
    "accumulation_steps": 1,
    "threads": 1,
    "keep_memory": _SWITCH,
    "validation_fraction": RATE,
    "report_every": 1,
    "seed": 0,
}
_OPTIONAL = ("lr", "clip_norm", "batch_size", "micro_batch", "threads")  # may be None
