"""Ledger: the cost of a run in samples, FLOPs, seconds and joules, counted separately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from astkit import distributed
from astkit.profiling.energy import EnergyMeter, EnergyReading
from astkit.profiling.flops import BatchFlops

Clock = Literal["training", "evaluation"]


@dataclass
class SampleCounts:
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

    ``helper``: work of a policy besides passes of the model, such as those of a second model, and
    what its numbers from outside took to compute, see `Policy.cost`.
    """

    scoring: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    evaluation: float = 0.0
    helper: float = 0.0

    @property
    def total(self) -> float:
        """FLOPs spent on training: scoring, forward, backward and helper."""
        return self.scoring + self.forward + self.backward + self.helper


class Phase:
    """Adds the duration of its blocks to one entry of a ledger's ``phases``."""

    def __init__(self, phases: dict[str, float], name: str) -> None:
        self.phases, self.name = phases, name
        self.start = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        passed = time.perf_counter() - self.start
        self.phases[self.name] = self.phases.get(self.name, 0.0) + passed


@dataclass
class Ledger:
    """Measured counts only: samples, FLOPs, seconds and joules.

    ``seconds`` has two clocks that never run simultaneously, "training" and "evaluation"; ``with
    ledger.phase(name)`` adds to one of `phases`, which split the training clock and do not nest.
    Nothing here synchronises an accelerator while it trains: a phase measures the launching of
    work, and `settle` waits for what is queued before the other clock runs. ``flops_dense``: cost
    of training on all of the same samples. ``uncounted``: what ``flops`` does not include; if there
    is any, ``flops`` is a lower bound, and no ratio may be formed from it. ``meter`` measures
    joules while a clock runs. With several processes, samples and FLOPs are those of all of them
    after each `pool`; seconds and joules are not.
    """

    counts: SampleCounts = field(default_factory=SampleCounts)
    flops: Flops = field(default_factory=Flops)
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "evaluation": 0.0})
    phases: dict[str, float] = field(default_factory=dict)
    flops_dense: float = 0.0
    uncounted: set[str] = field(default_factory=set)
    synchronize: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    meter: EnergyMeter | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        flops = f"{'more than ' * bool(self.uncounted)}{self.flops.total:.3g} FLOPs"
        trained, seconds = self.samples.trained, self.seconds["training"]
        return f"Ledger({trained:,} samples trained on, {flops}, {seconds:.1f} s)"

    def __post_init__(self) -> None:
        self._padded: int | Tensor = 0  # may be on the device, not yet read
        self._pooled = [0.0] * len(self._totals())
        self._queued = False
        self._running: Clock | None = None
        self._started = 0.0
        self._window = ExitStack()  # of the meter, while a clock runs
        self._timers: dict[str, Phase] = {}
        self._resumed = False  # joules of a part are none of the whole

    def phase(self, name: str) -> Phase:
        """A context whose duration is added to ``phases[name]``."""
        if name not in self._timers:
            self._timers[name] = Phase(self.phases, name)
        return self._timers[name]

    @property
    def samples(self) -> SampleCounts:
        """The sample counts; may synchronise with the device."""
        padded, self._padded = int(self._padded), 0
        self.counts.padded += padded
        self.counts.trained -= padded
        return self.counts

    @property
    def samples_per_second(self) -> float:
        """Samples seen, trained on or skipped after scoring, per second of the training clock."""
        seen = self.samples.trained + self.samples.overflowed + self.samples.skipped
        return seen / self.seconds["training"] if self.seconds["training"] else 0.0

    def note(
        self,
        cost: BatchFlops,
        *,
        scored: int = 0,
        trained: int = 0,
        skipped: int = 0,
        evaluated: int = 0,
        passes: int = 1,
        overflowed: int = 0,
        padded: int | Tensor | None = None,
        dense: float = 0.0,
        dense_passes: float = 1,
    ) -> None:
        """Add one batch: numbers of samples, in ``passes`` passes of each kind, at ``cost``.

        Of the samples counted as trained, ``overflowed`` and ``padded`` (which may be a 0-dim
        tensor, read later) were not trained on; their FLOPs are still counted. ``dense``:
        rows that dense training would have trained on, in ``dense_passes``.
        """
        counts, flops = self.counts, self.flops
        counts.scored += scored
        counts.trained += trained - overflowed
        counts.overflowed += overflowed
        if padded is not None:
            self._padded = self._padded + padded
        counts.skipped += skipped
        counts.evaluated += evaluated
        self.uncounted.update(cost.uncounted)
        if scored:
            flops.scoring += cost.scoring.per_row * scored + cost.scoring.fixed * passes
        if trained:  # not by calling them, since every step comes here
            flops.forward += cost.forward.per_row * trained + cost.forward.fixed * passes
            flops.backward += cost.backward.per_row * trained + cost.backward.fixed * passes
        if dense:
            per_row = cost.forward.per_row + cost.backward.per_row
            fixed = cost.forward.fixed + cost.backward.fixed
            self.flops_dense += per_row * dense + fixed * dense_passes
        if evaluated:
            flops.evaluation += cost.scoring.per_row * evaluated + cost.scoring.fixed * passes

    def pool(self) -> None:
        """Sum samples and FLOPs over the processes since the last call; each must call it."""
        if distributed.world() == 1:
            return
        self.settle()  # the exchange waits for the device
        now = self._totals()
        added = distributed.total(*(a - b for a, b in zip(now, self._pooled, strict=True)))
        self._pooled = [a + b for a, b in zip(added, self._pooled, strict=True)]
        counts = len(fields(SampleCounts))
        self.counts = SampleCounts(*map(round, self._pooled[:counts]))
        self.flops = Flops(*self._pooled[counts:-1])
        self.flops_dense = self._pooled[-1]

    def _totals(self) -> list[float]:
        return [*asdict(self.samples).values(), *asdict(self.flops).values(), self.flops_dense]

    @contextmanager
    def clock(self, name: Clock | None) -> Iterator[None]:
        """Run one of the two clocks, and the energy meter, within a context; an outer one pauses.

        Queued work is waited for before an outer clock pauses, and before and after an evaluation,
        not while training.
        """
        outer = self._running
        if outer is not None or name != "training":
            self.settle()
        away = time.perf_counter()
        self._switch(name)
        try:
            yield
        finally:
            if name == "evaluation":
                self.settle()
            self._switch(outer)
            self._queued = name == "training"
            if outer is not None:
                away = time.perf_counter() - away
                for watch in self._timers.values():  # of a phase that is open
                    watch.start += away

    def paused(self) -> AbstractContextManager[None]:
        """Wait for queued work; then no clock runs within the context."""
        return self.clock(None)

    def _switch(self, name: Clock | None) -> None:
        """Stop the clock that runs, and start another one."""
        now = time.perf_counter()
        self._window.close()
        if self._running is not None:
            self.seconds[self._running] += now - self._started
        self._running, self._started = name, now
        if name is not None and self.meter is not None:
            self._window.enter_context(self.meter.window(name))

    def settle(self) -> None:
        """Wait for queued work; the wait belongs to the running clock, or else to training."""
        if self.synchronize is not None and (self._queued or self._running is not None):
            with nullcontext() if self._running is not None else self.clock("training"):
                self.synchronize()
        self._queued = False

    def energy(self, name: Clock = "training") -> EnergyReading:
        """Joules of a clock's total time, or the reason for their absence."""
        if self.meter is not None and not self._resumed:
            return self.meter.reading(name)
        reason = "the run was resumed" if self._resumed else "no meter was given"
        return EnergyReading(None, None, "none", self.seconds[name], reason)

    @property
    def origin_energy_units(self) -> float:
        """The original's "energy", for comparison: 10 per activation, 0.1 per skip; not joules."""
        return 10.0 * self.samples.trained + 0.1 * (self.samples.skipped + self.samples.unloaded)

    @property
    def origin_energy_units_dense(self) -> float:
        """The same of dense training on the same rows."""
        return 10.0 * (self.samples.trained + self.samples.skipped + self.samples.unloaded)

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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.counts = SampleCounts(**state["samples"])
        self._padded = 0
        self.flops = Flops(**state["flops"])
        self.seconds = {"training": 0.0, "evaluation": 0.0, **state["seconds"]}
        self.phases.clear()
        self.phases.update(state["phases"])
        self.flops_dense = state["flops_dense"]
        self.uncounted = set(state["uncounted"])
        self._pooled = self._totals()  # all counts so far are those of all processes
        self._resumed = True


def synchronizer(device: torch.device) -> Callable[[], None] | None:
    """A function that synchronises with ``device``; ``None`` for the CPU."""
    if device.type == "cpu":
        return None
    return lambda: torch.accelerator.synchronize(device)
