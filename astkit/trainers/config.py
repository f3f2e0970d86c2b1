"""The settings of a training run, in one frozen place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from astkit.trainers.memory_saving import ATTENTION
from astkit.trainers.state import SCHEDULES

PRECISIONS = ("fp32", "bf16", "fp16", "auto")
ALLOCATOR = ("auto", "on", "off")
Auto = Literal["auto"]


@dataclass(frozen=True)
class TrainConfig:
    """The fixed settings of a run; the same names in code, notebooks and commands.

    The defaults do the same on every machine. ``"auto"`` is decided once, at the first step, from
    the machine and where noted by a short probe; the decision is recorded with its reason and kept
    when a run is resumed. `TrainConfig.fast` sets the switches that change nothing that is learned
    to "auto".

    Attributes:
        lr: peak learning rate of AdamW.
        weight_decay: AdamW's decoupled weight decay.
        clip_norm: gradients are scaled down to this norm; ``None`` leaves them alone.
        schedule: learning rate over the budget, "cosine" or "constant".
        precision: "fp32"; "bf16" or "fp16" for autocast with float32 weights (fp16 with a loss
            scale, for accelerators without bf16); "auto" takes bf16 where it is native and, on a
            CPU, a probe is at least 10 % faster.
        channels_last: keep images and convolutions in NHWC memory order; "auto" probes.
        fused: one kernel for the optimizer's step; "auto" takes it where torch has it.
        compile: torch.compile for the training pass; "auto" is off on a CPU, on on CUDA.
        attention: back end of scaled_dot_product_attention; "auto" leaves it to torch.
        activation_checkpointing: forget activations and compute them again in the backward pass.
        batch_size: rows a batch; ``None`` keeps the loader's.
        micro_batch: rows that are in the model at a time; ``None`` for the whole batch. Halved when
            memory runs out; without BatchNorm the gradients are the same.
        accumulation_steps: batches whose gradients are added up for one optimizer step.
        threads: torch's CPU threads, at most the CPUs that the process may use; "auto" takes
            torch's own number.
        allocator: keep freed memory in the process ("on"); "auto" does on Linux CPU runs.
        deterministic: refuse operations whose results vary from run to run.
        prefetch: load the next batch while this one computes; "auto" does where it could pay.
        validation_fraction: share of the validation rows that is evaluated after each pass, in
            (0, 1]; its accuracy then has a stated interval.
        metrics_every: batches between two that report loss, rate and threshold; each report makes
            an accelerator wait.
        switch_off: train on every row while that takes less time than the policy's selection; see
            `astkit.trainers.switching`. Results then depend on the clock (``replay`` repeats a run
            exactly), and each step makes an accelerator wait. Not for a policy that is used for its
            accuracy.
        seed: of dropout; data order, augmentation and gate carry their own.

    Raises ``ValueError`` for a value outside its range.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    schedule: str = "cosine"
    precision: str = "fp32"
    channels_last: bool | Auto = False
    fused: bool | Auto = "auto"
    compile: bool | Auto = False
    attention: str = "auto"
    activation_checkpointing: bool = False
    batch_size: int | None = None
    micro_batch: int | None = None
    accumulation_steps: int = 1
    threads: int | Auto = "auto"
    allocator: str = "off"
    deterministic: bool = False
    prefetch: bool | Auto = False
    validation_fraction: float = 1.0
    metrics_every: int = 1
    switch_off: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = {
            "lr": (0 < self.lr < math.inf, "a learning rate above 0, such as 0.001"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "0 or more, such as 0.01"),
            "clip_norm": (
                self.clip_norm is None or self.clip_norm > 0,
                "a norm above 0, or None for none",
            ),
            "validation_fraction": (0 < self.validation_fraction <= 1, "a share in (0, 1]"),
        }
        for name, (valid, remedy) in ranges.items():
            if not valid:
                raise ValueError(f"{name} is {getattr(self, name)}: give {remedy}")
        for name, allowed in _CHOICES.items():
            _choose(name, getattr(self, name), allowed)
        for name, words in _COUNTS.items():
            _count(name, getattr(self, name), words)

    @classmethod
    def fast(cls, **settings: Any) -> TrainConfig:
        """The switches in `AUTO` set to "auto", and ``settings`` on top."""
        return cls(**{**dict.fromkeys(AUTO, "auto"), **settings})

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], also: Iterable[str] = ()) -> TrainConfig:
        """A configuration from plain settings; ``ValueError`` names any key it does not know.

        ``also``: keys that the caller takes himself, for that sentence.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ValueError(
                f"unknown setting {', '.join(unknown)}: choose from"
                f" {', '.join(sorted(known | set(also)))}"
            )
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return asdict(self)


_SWITCH = (True, False, "auto")
_CHOICES: dict[str, tuple[object, ...]] = {
    "schedule": tuple(SCHEDULES),
    "precision": PRECISIONS,
    "channels_last": _SWITCH,
    "fused": _SWITCH,
    "compile": _SWITCH,
    "attention": ATTENTION,
    "activation_checkpointing": (True, False),
    "allocator": ALLOCATOR,
    "deterministic": (True, False),
    "prefetch": _SWITCH,
    "switch_off": (True, False),
}
_COUNTS: dict[str, tuple[object, ...]] = {
    "batch_size": (None,),
    "micro_batch": (None,),
    "accumulation_steps": (),
    "threads": ("auto",),
    "metrics_every": (),
}
AUTO = ("precision", "channels_last", "compile", "allocator", "prefetch")
"""Switches that `TrainConfig.fast` sets to "auto": none changes what is learned."""


def _choose(name: str, value: object, allowed: tuple[object, ...]) -> None:
    # 1 == True, and a list cannot be looked up: only the very kind that is listed will do
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(map(str, allowed))}")


def _count(name: str, value: object, words: tuple[object, ...]) -> None:
    if any(value is word or value == word for word in words):
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        also = "".join(f", or {word!r}" for word in words)
        raise ValueError(f"{name} is {value!r}: give a whole number, 1 or more{also}")
