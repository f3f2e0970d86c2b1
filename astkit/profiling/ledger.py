"""The ledger: what a run has spent, in samples, FLOPs and seconds, each counted apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from astkit.profiling.energy import EnergyMeter, EnergyReading
from astkit.profiling.flops import FlopsPerSample

Clock = Literal["training", "evaluation"]

ORIGIN_UNITS_ACTIVATION, ORIGIN_UNITS_SKIP = 10.0, 0.1


@dataclass
class Samples:
    """How often a sample was scored, trained on, skipped after scoring, never loaded, evaluated.

    ``overflowed``: its gradient was computed and then thrown away, because an fp16 step overflowed;
    such a sample was not trained on.
    """

    scored: int = 0
    trained: int = 0
    skipped: int = 0
    unloaded: int = 0
    evaluated: int = 0
    overflowed: int = 0


@dataclass
class Flops:
    """FLOPs, 2 per multiply-add; ``evaluation`` is not part of ``total``."""

    scoring: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    evaluation: float = 0.0

    @property
    def total(self) -> float:
        """FLOPs spent on training: scoring, forward and backward."""
        return self.scoring + self.forward + self.backward


@dataclass
class Ledger:
    """Counts what was really spent; it estimates nothing and saves nothing.

    ``seconds`` holds two clocks that never run together, "training" and "evaluation"; ``phases``
    splits the training clock ("load", "score", "gate", "forward", "backward", "optimizer", "log").
    On an accelerator both are read after ``synchronize``, so that they hold the work and not its
    launch. While ``waiting`` is false neither waits: a stretch of batches is then timed as a whole,
    by the first reading after it that does. ``flops_dense`` is what training on all of the same
    samples would take: a line to compare with, not spent. ``meter`` measures joules while a clock
    runs; without one they are not measured.
    """

    samples: Samples = field(default_factory=Samples)
    flops: Flops = field(default_factory=Flops)
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "evaluation": 0.0})
    phases: dict[str, float] = field(default_factory=dict)
    flops_dense: float = 0.0
    waiting: bool = field(default=True, repr=False, compare=False)
    synchronize: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    meter: EnergyMeter | None = field(default=None, repr=False, compare=False)

    def note(
        self,
        cost: FlopsPerSample,
        *,
        scored: int = 0,
        trained: int = 0,
        skipped: int = 0,
        evaluated: int = 0,
        overflowed: int = 0,
        passes: int = 1,
    ) -> None:
        """Book one batch: numbers of samples, each at ``cost`` FLOPs, scored in ``passes`` each.

        ``overflowed`` of those that were booked as trained, now or before, were not.
        """
        self.samples.scored += scored
        self.samples.trained += trained - overflowed
        self.samples.overflowed += overflowed
        self.samples.skipped += skipped
        self.samples.evaluated += evaluated
        self.flops.scoring += scored * passes * cost.scoring
        self.flops.forward += trained * cost.forward
        self.flops.backward += trained * cost.backward
        self.flops.evaluation += evaluated * cost.scoring

    @contextmanager
    def clock(self, name: Clock) -> Iterator[None]:
        """Run one of the two clocks, and the energy meter, for the length of a block."""
        start = self._now()
        if self.meter is not None:
            self.meter.start(name)
        try:
            yield
        finally:
            self.seconds[name] += self._now() - start
            if self.meter is not None:
                self.meter.stop()

    def energy(self, name: Clock = "training") -> EnergyReading:
        """Joules of all blocks of a clock, or why there are none."""
        if self.meter is None:
            seconds = self.seconds[name]
            return EnergyReading(None, "measured", None, "none", seconds, "no meter was given")
        return self.meter.reading(name)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Book the length of a block under ``name``; phases do not nest."""
        start = self._now()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self._now() - start

    def _now(self) -> float:
        if self.synchronize is not None and self.waiting:
            self.synchronize()
        return time.perf_counter()

    @property
    def origin_energy_units(self) -> float:
        """The origin's "energy": 10 an activation, 0.1 a skip. Not joules; for comparison only."""
        skipped = self.samples.skipped + self.samples.unloaded
        return ORIGIN_UNITS_ACTIVATION * self.samples.trained + ORIGIN_UNITS_SKIP * skipped

    def state_dict(self) -> dict[str, Any]:
        """All counts as plain numbers."""
        return {
            "samples": asdict(self.samples),
            "flops": asdict(self.flops),
            "seconds": dict(self.seconds),
            "phases": dict(self.phases),
            "flops_dense": self.flops_dense,
            "meter": None if self.meter is None else self.meter.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.samples = Samples(**state["samples"])
        self.flops = Flops(**state["flops"])
        self.seconds = dict(state["seconds"])
        self.phases = dict(state["phases"])
        self.flops_dense = state.get("flops_dense", 0.0)
        if self.meter is not None and state.get("meter"):
            self.meter.load_state_dict(state["meter"])


def synchronizer(device: torch.device) -> Callable[[], None] | None:
    """A function that waits for ``device``; ``None`` for the CPU, which has nothing to wait for."""
    if device.type == "cpu":
        return None
    return lambda: torch.accelerator.synchronize(device)
