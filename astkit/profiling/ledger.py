"""Ledger: the cost of a run in samples, FLOPs, seconds and joules, counted separately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import torch

from astkit import distributed
from astkit.profiling.energy import EnergyMeter, EnergyReading
from astkit.profiling.flops import FlopsPerSample

Clock = Literal["training", "evaluation"]


@dataclass
class Samples:
    """Numbers of samples scored, trained on, skipped after scoring, never loaded, evaluated.

    ``overflowed``: gradient discarded after overflow of an fp16 step; ``padded``: weight-0 rows
    that fill a batch of fixed size. Such samples were not trained on.
    """

    scored: int = 0
    trained: int = 0
    skipped: int = 0
    unloaded: int = 0
    evaluated: int = 0
    overflowed: int = 0
    padded: int = 0


@dataclass
class Flops:
    """FLOPs, 2 per multiply-add; ``evaluation`` is not part of ``total``.

    ``helper``: scoring and training of a policy's helper models.
    """

    scoring: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    evaluation: float = 0.0
    helper: float = 0.0

    @property
    def total(self) -> float:
        """FLOPs spent on training: scoring, forward, backward and helper models."""
        return self.scoring + self.forward + self.backward + self.helper


@dataclass
class Ledger:
    """Measured counts only: samples, FLOPs, seconds and joules.

    ``seconds`` has two clocks that never run simultaneously, "training" and "evaluation"; `phases`
    splits the training clock ("load", "score", "gate", "forward", "backward", "optimizer", "log").
    On an accelerator both are read after ``synchronize``, so that they measure execution and not
    launches. While ``waiting`` is false the training clock does not synchronise, and the next
    synchronised reading covers the whole interval, apart from what the device did while no clock
    ran. ``queued``: whether the training clock stopped without synchronising. ``flops_dense``: cost
    of training on all of the same samples, for comparison. ``uncounted``: executed operations
    without a FLOP formula; if there are any, ``flops`` is a lower bound, and no ratio may be formed
    from it. ``meter`` measures joules while a clock runs; without one they are not measured. With
    several processes, samples and FLOPs are those of all of them after each epoch, when `pool` is
    called; seconds and joules are not.
    """

    counts: Samples = field(default_factory=Samples)
    flops: Flops = field(default_factory=Flops)
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "evaluation": 0.0})
    phases: dict[str, float] = field(default_factory=dict)
    flops_dense: float = 0.0
    uncounted: set[str] = field(default_factory=set)
    padding: torch.Tensor | None = field(default=None, repr=False, compare=False)
    pooled: list[float] = field(default_factory=list, repr=False, compare=False)
    waiting: bool = field(default=True, repr=False, compare=False)
    queued: bool = field(default=False, repr=False, compare=False)
    synchronize: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    meter: EnergyMeter | None = field(default=None, repr=False, compare=False)

    @property
    def samples(self) -> Samples:
        """The sample counts; may synchronise with the device."""
        if self.padding is not None:
            padded, self.padding = int(self.padding), None
            self.counts.padded += padded
            self.counts.trained -= padded
        return self.counts

    def note(
        self,
        cost: FlopsPerSample,
        *,
        scored: int = 0,
        trained: int = 0,
        skipped: int = 0,
        evaluated: int = 0,
        overflowed: int = 0,
        padded: torch.Tensor | None = None,
    ) -> None:
        """Add one batch: numbers of samples, each at ``cost`` FLOPs.

        Of the samples counted as trained, ``overflowed`` and ``padded`` (0-dim, read
        later) were not trained on; their FLOPs are still counted.
        """
        self.counts.scored += scored
        self.counts.trained += trained - overflowed
        self.counts.overflowed += overflowed
        self.counts.skipped += skipped
        self.counts.evaluated += evaluated
        self.uncounted.update(cost.uncounted)
        if padded is not None:
            self.padding = padded if self.padding is None else self.padding + padded
        self.flops.scoring += scored * cost.scoring
        self.flops.forward += trained * cost.forward
        self.flops.backward += trained * cost.backward
        self.flops.evaluation += evaluated * cost.scoring

    def note_helper(self, cost: FlopsPerSample, rows: int, trained: bool) -> None:
        """Add a pass of a policy's helper model over ``rows`` rows."""
        self.uncounted.update(cost.uncounted)
        self.flops.helper += rows * (cost.training if trained else cost.scoring)

    def pool(self) -> None:
        """Sum samples and FLOPs over the processes since the last call; each must call it."""
        if distributed.world() == 1:
            return
        self.settle()  # the exchange waits for the device
        now = self._totals()
        before = self.pooled or [0.0] * len(now)
        added = distributed.total(*(a - b for a, b in zip(now, before, strict=True)))
        self.pooled = [a + b for a, b in zip(added, before, strict=True)]
        counts = len(fields(Samples))
        self.counts = Samples(*map(round, self.pooled[:counts]))
        self.flops = Flops(*self.pooled[counts:-1])
        self.flops_dense = self.pooled[-1]

    def _totals(self) -> list[float]:
        return [*asdict(self.samples).values(), *asdict(self.flops).values(), self.flops_dense]

    @contextmanager
    def clock(self, name: Clock) -> Iterator[None]:
        """Run one of the two clocks, and the energy meter, within a context."""
        evaluation = name == "evaluation"
        if evaluation or self.waiting:
            self.settle()
        start = self._now(evaluation)
        with nullcontext() if self.meter is None else self.meter.window(name):
            try:
                yield
            finally:
                self.seconds[name] += self._now(evaluation) - start
                self.queued = not (evaluation or self.waiting)

    def settle(self) -> None:
        """Wait for the work that the training clock left queued; the wait is training."""
        if self.queued and self.synchronize is not None:
            waiting, self.waiting = self.waiting, False
            with self.clock("training"):
                self.waiting = True  # the clock synchronises when it stops
            self.waiting = waiting

    def energy(self, name: Clock = "training") -> EnergyReading:
        """Joules of a clock's total time, or the reason for their absence."""
        if self.meter is None:
            return EnergyReading(None, None, "none", self.seconds[name], "no meter was given")
        return self.meter.reading(name)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of a block to phase ``name``; phases do not nest."""
        start = self._now()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self._now() - start

    def _now(self, wait: bool = False) -> float:
        if self.synchronize is not None and (wait or self.waiting):
            self.synchronize()
        return time.perf_counter()

    @property
    def origin_energy_units(self) -> float:
        """The original's "energy", for comparison: 10 per activation, 0.1 per skip; not joules."""
        return 10.0 * self.samples.trained + 0.1 * (self.samples.skipped + self.samples.unloaded)

    def state_dict(self) -> dict[str, Any]:
        """All counts as plain numbers; waits for queued work."""
        self.settle()
        return {
            "samples": asdict(self.samples),
            "flops": asdict(self.flops),
            "seconds": dict(self.seconds),
            "phases": dict(self.phases),
            "flops_dense": self.flops_dense,
            "uncounted": sorted(self.uncounted),
            "meter": None if self.meter is None else self.meter.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; raises ``ValueError`` for non-numeric counts."""
        parts = ("samples", "flops", "seconds", "phases")
        for value in [each for part in parts for each in state[part].values()]:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"the ledger counts {value!r:.80}")
        self.counts, self.padding = Samples(**state["samples"]), None
        self.flops = Flops(**state["flops"])
        self.seconds = {"training": 0.0, "evaluation": 0.0, **state["seconds"]}
        self.phases = dict(state["phases"])
        self.flops_dense = state["flops_dense"]
        self.uncounted = set(state["uncounted"])
        self.pooled = self._totals()  # all counts so far are those of all processes
        if self.meter is not None and state.get("meter"):
            self.meter.load_state_dict(state["meter"])


def synchronizer(device: torch.device) -> Callable[[], None] | None:
    """A function that synchronises with ``device``; ``None`` for the CPU."""
    if device.type == "cpu":
        return None
    return lambda: torch.accelerator.synchronize(device)
