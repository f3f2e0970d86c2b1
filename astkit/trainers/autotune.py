"""What "auto" means on this machine: each setting decided once, with its reason, and recorded."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn

from astkit import rng
from astkit.batch import Batch, call
from astkit.datasets.settings import free_memory
from astkit.gating import Criterion, row_losses
from astkit.profiling import interleaved
from astkit.profiling.ledger import synchronizer
from astkit.stamp import stamp
from astkit.trainers.config import TrainConfig
from astkit.trainers.learner import Learner

FASTER = 1.1
"""How many times faster a probe must be to be taken: less is within what a machine drifts."""
ROUNDS = 5


@dataclass(frozen=True)
class Decision:
    """What an "auto" became. ``figures``: what was measured for it, by name."""

    name: str
    value: Any
    why: str
    figures: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Scene:
    """What decisions are made for: this model on such a batch, on that device.

    ``resident``: whether the training data lie on the device already; ``keyed``: whether a thread
    may load them ahead; ``rows``: how many there are, ``None`` if unknown.
    """

    model: nn.Module
    batch: Batch
    device: torch.device
    criterion: Criterion
    resident: bool
    keyed: bool
    rows: int | None


def open_choices(config: TrainConfig) -> list[str]:
    """The settings of ``config`` that are yet to be decided."""
    own = {"fused", "attention", "allocator", "threads"}  # settled where they are used
    names = [entry.name for entry in fields(config) if entry.name not in own]
    return [name for name in names if getattr(config, name) == "auto"]


def resolve(config: TrainConfig, scene: Scene) -> tuple[TrainConfig, list[Decision]]:
    """``config`` without "auto", and what was decided why. The model's weights are left alone."""
    names = open_choices(config)
    decisions = [DECIDE[name](config, scene) for name in names if name in DECIDE]
    config = replace(config, **{made.name: made.value for made in decisions})
    layouts = [name for name in ("precision", "channels_last") if name in names]
    if layouts:
        probed = _precision_and_layout(config, scene, layouts)
        decisions += probed
        config = replace(config, **{made.name: made.value for made in probed})
    return config, decisions


def _compile(config: TrainConfig, scene: Scene) -> Decision:
    if scene.device.type == "cuda":
        return Decision("compile", True, "a CUDA device: kernels are fused once and used often")
    why = f"on {scene.device.type} compiling takes longer than most runs win back"
    return Decision("compile", False, why)


def _prefetch(config: TrainConfig, scene: Scene) -> Decision:
    if scene.resident:
        why = "the data lie on the device: there is nothing to wait for"
    elif scene.device.type == "cpu":
        why = "a thread that loads takes from the step what it saves: both need the CPU"
    elif not scene.keyed:
        why = "the loader draws from torch's default generators, which a thread must not share"
    else:
        return Decision("prefetch", True, "rows are fetched batch by batch: a thread can be ahead")
    return Decision("prefetch", False, why)


def _batch_size(config: TrainConfig, scene: Scene) -> Decision:
    per_row = activation_bytes(scene) / scene.batch.rows
    free = _free_memory(scene.device)
    fits = max(1, int(0.5 * free / max(per_row, 1.0)))
    limit = fits if scene.rows is None else min(fits, max(1, scene.rows // 32))
    size = 1 << (limit.bit_length() - 1)
    figures = {"bytes_per_row": per_row, "free_bytes": float(free)}
    why = "the largest power of two that takes half of the free memory and a 32nd of the rows"
    return Decision("batch_size", size, why, figures)


DECIDE: dict[str, Callable[[TrainConfig, Scene], Decision]] = {
    "compile": _compile,
    "prefetch": _prefetch,
    "batch_size": _batch_size,
}


def activation_bytes(scene: Scene) -> int:
    """Bytes that the forward pass of the batch keeps for its backward pass, parameters apart."""
    model = copy.deepcopy(scene.model).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with rng.isolated(scene.device, 0), hooks:
        outputs = call(model, scene.batch.x, scene.batch.y)
        kept = row_losses(scene.criterion, outputs, scene.batch.y)  # alive, or addresses repeat
    del kept
    return sum(seen.values())


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = free_memory()
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if found is None else found


def _precision_and_layout(
    config: TrainConfig, scene: Scene, names: Sequence[str]
) -> list[Decision]:
    """Both at once, because bf16 gains most in NHWC: every pair is timed on training steps."""
    precisions, why_not = _precisions(config, scene.device)
    images = isinstance(scene.batch.x, torch.Tensor) and scene.batch.x.ndim == 4
    layouts = [False, True] if images else [False]
    if "channels_last" not in names:
        layouts = [bool(config.channels_last)]
    plain = (precisions[0], layouts[0])
    pairs = [(precision, layout) for precision in precisions for layout in layouts]
    speed = dict.fromkeys(pairs, 1.0)
    if len(pairs) > 1:
        arms = {_label(*pair): stepper(config, scene, *pair) for pair in pairs}
        wait = synchronizer(scene.device)
        timed = interleaved(
            arms, rounds=ROUNDS, warmup=2, baseline=_label(*plain), synchronize=wait
        )
        speed = {pair: timed.ratio(_label(*plain), _label(*pair)).median for pair in pairs}
    best = max(pairs, key=speed.__getitem__)
    best = best if speed[best] >= FASTER else plain
    figures = {_label(*pair): speed[pair] for pair in pairs}
    why = f"{_label(*best)} trains {speed[best]:.2f} times as fast as {_label(*plain)}"
    chosen = {"precision": best[0], "channels_last": best[1]}
    return [Decision(name, chosen[name], why_not or why, figures) for name in names]


def _precisions(config: TrainConfig, device: torch.device) -> tuple[list[str], str]:
    if config.precision != "auto":
        return [config.precision], ""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = device.type == "cpu" and bool(stamp()["bf16_native"])
    if native:
        return ["fp32", "bf16"], ""
    return ["fp32"], f"{device.type} here has no instructions for bf16"


def _label(precision: str, channels_last: bool) -> str:
    return f"{precision}, {'channels_last' if channels_last else 'contiguous'}"


def stepper(
    config: TrainConfig, scene: Scene, precision: str, channels_last: bool
) -> Callable[[], object]:
    """A function that trains a copy of the model on the scene's batch, once more at each call."""
    fixed = replace(config, precision=precision, channels_last=channels_last, compile=False)
    model = copy.deepcopy(scene.model).train()
    learner = Learner(model, fixed, criterion=scene.criterion, device=scene.device)
    batch = learner.prepare(scene.batch)

    def step() -> None:
        with rng.isolated(scene.device, config.seed, "probe"):
            learner.train(batch.x, batch.y)

    return step
