"""The settings of a training run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from astkit.trainers.memory_saving import ATTENTION
from astkit.trainers.state import SCHEDULES, Budget

Auto = Literal["auto"]


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run; names are the same in code, notebooks and commands.

    The defaults do not depend on the machine. ``"auto"`` is resolved once, at the first step, from
    the hardware or, where noted, by a short probe; the decision is recorded with its reason and
    reused when a run is resumed. `TrainConfig.fast` sets switches that change results by rounding
    at most to "auto", and ``metrics_every`` to 50.

    Attributes:
        lr: peak learning rate of AdamW.
        weight_decay: AdamW's decoupled weight decay.
        clip_norm: maximum norm of the gradient; ``None`` disables clipping.
        schedule: learning rate schedule over the budget, "cosine" or "constant".
        precision: "fp32"; "bf16" or "fp16" for autocast with float32 weights (fp16 with a loss
            scale, for accelerators without bf16); "auto" uses bf16 if supported natively and at
            least 10 % faster in a probe.
        channels_last: use NHWC memory format for images and convolutions; "auto" probes.
        fused: use the fused AdamW kernel; "auto" uses it if available.
        compile: use torch.compile for the training pass; "auto" enables it on CUDA only.
        attention: backend of scaled_dot_product_attention; "auto" leaves the choice to torch.
        activation_checkpointing: recompute activations in the backward pass to save memory.
        batch_size: rows per batch; ``None`` keeps the loader's.
        micro_batch: rows per forward pass; ``None`` for the whole batch. Halved after an
            out-of-memory error; without BatchNorm the gradients do not change.
        accumulation_steps: number of batches whose gradients are accumulated per optimizer step.
        threads: CPU threads of torch, at most the CPUs available to the process; "auto" uses
            torch's default.
        allocator: keep freed memory in the process ("on"); "auto" enables it for Linux CPU runs.
        prefetch: load the next batch during computation; "auto" enables it if useful.
        validation_fraction: fraction of the validation rows evaluated after each epoch, in (0, 1];
            below 1, the accuracy is reported with an interval.
        metrics_every: interval, in batches, of reports of loss, rate and threshold; each report
            synchronises with the device, as does every step under a budget in seconds.
        switch_off: train on all rows while that takes less time than selection by the policy; see
            `astkit.trainers.switching`. Results then depend on measured times (``replay`` repeats a
            run exactly), and each step synchronises with the device. Leave it off for a policy
            whose purpose is accuracy.
        seed: random seed of dropout; data order, augmentation and gate have their own.

    Raises ``ValueError`` for a value out of range.
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
    prefetch: bool | Auto = False
    validation_fraction: float = 1.0
    metrics_every: int = 1
    switch_off: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (valid, remedy) in _RANGES.items():
            value = getattr(self, name)
            unset = value is None and name == "clip_norm"
            if not unset and not (isinstance(value, Real) and valid(value)):
                raise ValueError(f"{name} is {value!r}: give {remedy}")
        for name, allowed in _CHOICES.items():
            _choose(name, getattr(self, name), allowed)
        for name, words in _COUNTS.items():
            _count(name, getattr(self, name), words)

    @classmethod
    def fast(cls, **settings: Any) -> TrainConfig:
        """The switches in `AUTO` set to "auto", ``metrics_every=50``, updated by ``settings``."""
        return cls(**{**dict.fromkeys(AUTO, "auto"), "metrics_every": 50, **settings})

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], also: Iterable[str] = ()) -> TrainConfig:
        """A configuration from plain settings; raises ``ValueError`` for unknown keys.

        ``also``: further valid keys to list in the error message.
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


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lr": (lambda value: 0 < value < math.inf, "a learning rate above 0, such as 0.001"),
    "weight_decay": (lambda value: 0 <= value < math.inf, "0 or more, such as 0.01"),
    "clip_norm": (lambda value: value > 0, "a norm above 0, or None for none"),
    "validation_fraction": (lambda value: 0 < value <= 1, "a share in (0, 1]"),
}
_SWITCH = (True, False, "auto")
_CHOICES: dict[str, tuple[object, ...]] = {
    "schedule": tuple(SCHEDULES),
    "precision": ("fp32", "bf16", "fp16", "auto"),
    "channels_last": _SWITCH,
    "fused": _SWITCH,
    "compile": _SWITCH,
    "attention": ATTENTION,
    "activation_checkpointing": (True, False),
    "allocator": ("auto", "on", "off"),
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
"""Switches that `TrainConfig.fast` sets to "auto"; they change results by rounding at most."""


def _choose(name: str, value: object, allowed: tuple[object, ...]) -> None:
    # compare types as well: 1 == True, and a list is not hashable
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(map(str, allowed))}")


def _count(name: str, value: object, words: tuple[object, ...]) -> None:
    if any(value is word or value == word for word in words):
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        also = "".join(f", or {word!r}" for word in words)
        raise ValueError(f"{name} is {value!r}: give a whole number, 1 or more{also}")


KINDS: dict[str, tuple[Any, str]] = {
    "model": (nn.Module, "a torch module"),
    "epochs": (Real | None, "a number"),
    "budget": (Budget | None, "a budget, such as Budget(epochs=5)"),
    "step": (Callable | None, "a step, such as GatedStep(gate)"),
    "config": (TrainConfig | None, "a configuration, such as TrainConfig(lr=0.001)"),
    "criterion": (Callable | None, "a function, such as nn.MSELoss(reduction='none')"),
    "optimizer": (Optimizer | None, "an optimizer, such as SGD(model.parameters(), lr=0.1)"),
    "observers": (Sequence, "a list of observers"),
}
"""Types of arguments, and the words for them."""


def check_kinds(given: Mapping[str, Any], kinds: Mapping[str, tuple[Any, str]] = KINDS) -> None:
    """Raise ``ValueError`` for an argument whose type is not that in ``kinds``."""
    for name, value in given.items():
        kind, words = kinds.get(name, (object, ""))
        if not isinstance(value, kind):
            shown = " ".join(repr(value).split())
            raise ValueError(f"{name} is {shown:.60}: pass {words}")
