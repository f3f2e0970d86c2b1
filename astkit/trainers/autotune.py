"""Resolves "auto" settings on this machine, once each, and records the reasons."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch

from astkit import rng, system
from astkit.batch import Batch
from astkit.profiling import interleaved
from astkit.profiling.ledger import synchronizer
from astkit.stamp import stamp
from astkit.trainers.batch_order import Feed
from astkit.trainers.config import TrainConfig
from astkit.trainers.learner import Learner

FASTER = 1.1
"""Minimum speed-up for a probed setting to be chosen; smaller ones may be noise."""
ROUNDS = 5
_SETTLED_ELSEWHERE = {"fused", "attention", "allocator", "threads"}


@dataclass(frozen=True)
class Decision:
    """The value chosen for an "auto" setting, and why. ``figures``: measurements by name."""

    name: str
    value: Any
    why: str
    figures: dict[str, float] = field(default_factory=dict)


def open_choices(config: TrainConfig) -> list[str]:
    """Names of the unresolved "auto" settings of ``config``."""
    names = [entry.name for entry in fields(config) if entry.name not in _SETTLED_ELSEWHERE]
    return [name for name in names if getattr(config, name) == "auto"]


class SettingsInUse:
    """Resolves a configuration on this machine, once per run; resumed runs reuse the result.

    Attributes:
        config: the settings in use; may contain "auto" before the first step.
        decisions: the choices for "auto" settings.
        system: the record of `astkit.system.tuned`.
    """

    def __init__(self, config: TrainConfig, learner: Learner, feed: Feed) -> None:
        self.config, self._learner, self._feed = config, learner, feed
        self.decisions: list[Decision] = []
        self.system: dict[str, Any] = {}
        self._apply(config)

    @contextmanager
    def tuned(self, fixed_shapes: bool) -> Iterator[None]:
        """Resolve "auto" settings and run a block with the system settings applied."""
        if open_choices(self.config):
            self._resolve()
        with system.tuned(
            device=self._learner.device,
            threads=self.config.threads,
            allocator=self.config.allocator,  # type: ignore[arg-type]
            fixed_shapes=fixed_shapes,
        ) as self.system:
            yield

    def _resolve(self) -> None:
        names = open_choices(self.config)
        if "compile" in names:
            self._decide("compile", *self._compile())
        if "prefetch" in names:
            self._decide("prefetch", *self._prefetch())
        layouts: list[str] = [n for n in ("precision", "channels_last") if n in names]
        if layouts:
            chosen, why, figures = self._precision_and_layout(layouts)
            for name in layouts:
                self._decide(name, chosen[name], why, figures)
        self._apply(self.config)
        self._learner.adopt(self.config)

    def _decide(
        self, name: str, value: Any, why: str, figures: dict[str, float] | None = None
    ) -> None:
        self.decisions.append(Decision(name, value, why, figures or {}))
        self.config = replace(self.config, **{name: value})

    def _compile(self) -> tuple[bool, str]:
        device = self._learner.device.type
        if device == "cuda":
            return True, "a CUDA device: compilation fuses kernels"
        return False, f"on {device}, compilation takes longer than it saves in most runs"

    def _prefetch(self) -> tuple[bool, str]:
        source = self._feed.source
        if getattr(source, "resident", False):
            return False, "the data are already on the device"
        if self._learner.device.type == "cpu":
            return False, "on the CPU, a loading thread competes with the training step"
        if not getattr(source, "keyed", False):
            return False, "the loader uses torch's default generators; no thread may share them"
        return True, "a thread can load batches in advance"

    def _precision_and_layout(
        self, names: list[str]
    ) -> tuple[dict[str, Any], str, dict[str, float]]:
        """Time all pairs on training steps; jointly, since bf16 gains most with NHWC."""
        device, config = self._learner.device, self.config
        precisions, why = _precisions(config.precision, device.type)
        batch = self._feed.peek()
        layouts = [bool(config.channels_last)]
        if "channels_last" in names:
            layouts = [False, True] if getattr(batch.x, "ndim", 0) == 4 else [False]
        pairs = {_label(p, layout): (p, layout) for p in precisions for layout in layouts}
        plain, speed = next(iter(pairs)), dict.fromkeys(pairs, 1.0)
        if len(pairs) > 1:
            arms = {name: self._probe(batch, *pair) for name, pair in pairs.items()}
            timed = interleaved(
                arms, rounds=ROUNDS, warmup=2, baseline=plain, synchronize=synchronizer(device)
            )
            speed = {name: timed.ratio(plain, name).median for name in pairs}
        best = max(pairs, key=speed.__getitem__)
        best = best if speed[best] >= FASTER else plain
        chosen = dict(zip(("precision", "channels_last"), pairs[best], strict=True))
        why = why or f"{best} trains {speed[best]:.2f} times as fast as {plain}"
        return chosen, why, speed

    def _probe(self, batch: Batch, precision: str, channels_last: bool) -> Callable[[], object]:
        """A function that trains a copy of the model for one step on ``batch``."""
        learner, config = self._learner, self.config
        fixed = replace(config, precision=precision, channels_last=channels_last, compile=False)
        model = copy.deepcopy(learner.model).train()
        twin = Learner(model, fixed, criterion=learner.criterion, device=learner.device)
        batch = twin.prepare(batch)

        def step() -> None:
            with rng.isolated(learner.device, config.seed, "probe"):
                twin.train(batch.x, batch.y)

        return step

    def _apply(self, config: TrainConfig) -> None:
        self.config = config
        self._feed.prefetch = config.prefetch is True

    def record(self) -> dict[str, Any]:
        """Decisions and settings as plain values, for results and reports."""
        batch = getattr(self._feed.source, "batch_size", None)
        steps = self.config.accumulation_steps
        return {
            "settings": {**self.config.to_dict(), "micro_batch": self._learner.micro_batch},
            "batch_size": batch,
            "effective_batch_size": None if batch is None else batch * steps,
            "decisions": [asdict(decision) for decision in self.decisions],
            "system": self.system,
        }

    def state_dict(self) -> dict[str, Any]:
        """Decisions that a resumed run reuses."""
        return self.record()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the decisions of the resumed run."""
        settled = state["settings"]
        chosen = {name: settled[name] for name in open_choices(self.config)}
        self.decisions = [Decision(**decision) for decision in state["decisions"]]
        self._apply(replace(self.config, **chosen))
        self.system = state["system"]
        self._learner.adopt(self.config)
        self._learner.micro_batch = settled["micro_batch"]


def _precisions(wanted: str, device: str) -> tuple[list[str], str]:
    """The precisions to probe, and the reason for excluding others."""
    if wanted != "auto":
        return [wanted], ""
    if device == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = device == "cpu" and bool(stamp()["bf16_native"])
    return (["fp32", "bf16"], "") if native else (["fp32"], f"{device} has no bf16 instructions")


def _label(precision: str, channels_last: bool) -> str:
    return f"{precision}, {'channels_last' if channels_last else 'contiguous'}"
