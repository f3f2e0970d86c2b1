"""Energy: joules from a counter, or ``None`` with the reason; no estimates.

Why short totals are rejected: a counter is updated in steps (NVML about every 100 ms, RAPL every
ms), so a reading at the edge of a window is up to one step old. Consecutive windows without a
pause share that edge and its error cancels, so only the two ends of a stretch matter: at most 2 %
over 100 steps; gaps shorter than a tenth of a step may be included. At a pause, half a step on
average is counted at the power of the other side: again at most 2 % if a stretch has 25 steps and a
pause draws at most twice the window's power.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from astkit.profiling.energy_counters import EnergyCounter, Snapshot, UnavailableError, open_counter

STEPS = 100
"""Minimum number of counter steps in a total."""
STEPS_OF_A_STRETCH = 25
"""Minimum mean number of counter steps between pauses."""
REUSED = 0.1
"""Share of a step within which a reading is reused, to keep short windows cheap."""


@dataclass(frozen=True)
class EnergyReading:
    """Joules over ``window_s`` seconds, or the reason for their absence.

    ``backend`` is the counter ("nvml" or "rapl") and ``scope`` what it covers.
    """

    joules: float | None
    backend: str | None
    scope: str
    window_s: float
    reason: str | None = None

    def __str__(self) -> str:
        if self.joules is None:
            return f"joules not measured: {self.reason}"
        return f"{self.joules:,.1f} J ({self.backend}, {self.scope}, {self.window_s:.1f} s)"


class _Edge(NamedTuple):
    at: float
    values: Snapshot


@dataclass
class _Account:
    joules: float = 0.0
    seconds: float = 0.0
    stretches: int = 0
    reason: str | None = None


class EnergyMeter:
    """Accumulates the joules of named windows::

        with meter.window("training"):
            step()
        print(meter.reading("training"))

    Only one window may be open; windows with other names (evaluation) are not part of a total.
    Without a counter only time is measured, and each reading is ``None`` with the reason.
    Synchronise the device before each edge: queued work is counted in the next window.

    Of a GPU, its whole board without the CPU is measured; of the CPU, all its packages, including
    all processes; or what ``counter`` counts. ``clock``: monotonic, in seconds.
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        *,
        counter: EnergyCounter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.counter = counter
        self.missing: str | None = None
        self._device, self._clock = str(device), clock
        self._accounts: dict[str, _Account] = {}
        self._open: str | None = None
        self._edge: _Edge | None = None
        self._ended: tuple[str | None, float] = (None, -math.inf)
        try:
            self.counter = counter or open_counter(torch.device(device))
        except UnavailableError as error:
            self.missing = str(error)

    @contextmanager
    def window(self, name: str = "training") -> Iterator[None]:
        """Measure a block under ``name``. Raises ``RuntimeError`` inside another window."""
        if self._open is not None:
            raise RuntimeError(f"window {self._open!r} is still open: leave it first")
        account, began = self._accounts.setdefault(name, _Account()), self._clock()
        last, ended = self._ended
        self._open, previous = name, self._edge
        before = self._read(account, began)
        if last == name and began - ended <= self._step:
            self._add(account, previous, before, ended)
        else:
            account.stretches += 1
        try:
            yield
        finally:
            now = self._clock()
            after = self._read(account, now)
            self._open, self._ended = None, (name, now)
            account.seconds += now - began
            self._add(account, before, after, now)

    def reading(self, name: str = "training") -> EnergyReading:
        """The total of ``name`` so far; ``None`` with the reason if incomplete or too short.

        That is below 100 steps of the counter (10 s for a GPU), or between frequent pauses.
        """
        account = self._accounts.get(name, _Account())
        reason = self.missing or account.reason or self._refusal(account)
        return EnergyReading(
            joules=None if reason else account.joules,
            backend=self.counter.backend if self.counter else None,
            scope=self.counter.scope if self.counter else self._device,
            window_s=account.seconds,
            reason=reason,
        )

    def state_dict(self) -> dict[str, Any]:
        """The totals so far, as plain values."""
        return {
            "counter": self._identity(),
            "accounts": {name: asdict(account) for name, account in self._accounts.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; joules of different counters are never summed."""
        self._accounts = {name: _Account(**fields) for name, fields in state["accounts"].items()}
        here, there = self._identity(), state["counter"]
        for account in self._accounts.values():
            if account.seconds and here != there:
                account.reason = account.reason or (
                    f"the run was continued elsewhere: measured by {there}, then by {here}"
                )

    @property
    def _step(self) -> float:
        return self.counter.step_s if self.counter is not None else math.inf

    def _identity(self) -> str:
        return f"{self.counter.backend} on {self.counter.scope}" if self.counter else "no counter"

    def _read(self, account: _Account, now: float) -> _Edge | None:
        if self.counter is None:
            return None
        if self._edge is None or now - self._edge.at >= REUSED * self._step:
            try:
                self._edge = _Edge(now, self.counter.read())
            except UnavailableError as error:
                self._edge, account.reason = None, account.reason or str(error)
        return self._edge

    def _add(
        self, account: _Account, before: _Edge | None, after: _Edge | None, ended: float
    ) -> None:
        """Add the energy between two edges; of an interval with a gap, the share before the gap."""
        if self.counter is None or before is None or after is None or before is after:
            return
        seconds = after.at - before.at
        try:
            joules = self.counter.joules(before.values, after.values, seconds)
            account.joules += joules * (ended - before.at) / seconds
        except UnavailableError as error:
            account.reason = account.reason or str(error)

    def _refusal(self, account: _Account) -> str | None:
        seconds, stretch = account.seconds, STEPS_OF_A_STRETCH * self._step
        if seconds < STEPS * self._step:
            least = STEPS * self._step
            return f"too short: {seconds:.2f} s measured, at least {least:g} s needed"
        if seconds < account.stretches * stretch:
            between = seconds / account.stretches
            return (
                f"too many pauses: {between:.3g} s between them on average, at least {stretch:g} s"
                " needed"
            )
        if not account.joules > 0:
            return f"the counter ({self._identity()}) did not move in {seconds:.1f} s"
        return None
