"""Energy: joules from a counter, or ``None`` with the reason; never a constant and never 0.

Why short totals are refused: a counter moves in steps (NVML about every 100 ms, RAPL every ms), so
what is read at an edge of a window is up to one step old. Where windows follow each other without a
pause they share that edge and its error cancels, so only the ends of the whole stretch count: over
100 steps they make 2 % at most. At a pause, half a step on average is booked at the other side's
power: again 2 % at most where a stretch lasts 25 steps and a pause draws no more than twice the
window's power.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch

from astkit.profiling.counters import EnergyCounter, Snapshot, UnavailableError, open_counter

STEPS = 100
"""Counter steps that a total must span."""
STEPS_OF_A_STRETCH = 25
"""Counter steps that the stretches between pauses must span on average."""
REUSED = 0.1
"""Share of a step within which a reading is used again: keeps a slow counter out of short steps."""


@dataclass(frozen=True)
class EnergyReading:
    """Joules over ``window_s`` seconds, or why there are none.

    ``kind`` tells a counter's joules from anybody's estimate; ``backend`` is the counter ("nvml",
    "rapl", "zeus-...") and ``scope`` what it covers. Raises ``ValueError`` unless
    there is either a positive number of joules or a reason.
    """

    joules: float | None
    kind: Literal["measured", "estimated"]
    backend: str | None
    scope: str
    window_s: float
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.joules is None) != bool(self.reason):
            raise ValueError(
                f"a reading holds joules or the reason why not, got joules {self.joules} and"
                f" reason {self.reason!r}: pass exactly one of them"
            )
        if self.joules is not None and not (math.isfinite(self.joules) and self.joules > 0):
            raise ValueError(
                f"joules must be finite and above 0, got {self.joules}: what was not measured is"
                " None with a reason"
            )

    def __str__(self) -> str:
        if self.joules is None:
            return f"joules not measured: {self.reason}"
        label = "" if self.kind == "measured" else "estimated, not measured: "
        return f"{label}{self.joules:,.1f} J ({self.backend}, {self.scope}, {self.window_s:.1f} s)"


def saved(gated: EnergyReading, dense: EnergyReading) -> float:
    """Share of the dense run's joules that the gated run did not spend, below 0 if it spent more.

    Raises ``ValueError`` unless both were measured, by the same counter on the same scope.
    """
    joules, of_dense = _measured("gated", gated), _measured("dense", dense)
    ours, theirs = (gated.backend, gated.scope), (dense.backend, dense.scope)
    if ours != theirs:
        raise ValueError(
            f"a saving needs the same counter and scope twice, got {ours} and {theirs}: measure"
            " both runs on one device"
        )
    return 1 - joules / of_dense


def _measured(name: str, reading: EnergyReading) -> float:
    if reading.joules is None or reading.kind != "measured":
        raise ValueError(
            f"a saving needs two measurements, but of the {name} run: {reading}; show FLOPs or"
            " seconds instead"
        )
    return reading.joules


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
    """Adds up the joules of many windows, under names that are kept apart::

        with meter.window("training"):
            step()
        print(meter.reading("training"))

    One window is open at a time; windows of another name (evaluation) are not part of a total.
    Without a counter the meter only keeps the time, and each reading is ``None`` with the reason.
    Wait for the device (``synchronize``) before each edge: work still queued is booked to whoever
    comes next.

    Args:
        device: whose energy. A GPU's is its whole board and leaves the CPU out; the CPU's is all
            its packages, with whatever else runs on them.
        counter: read this one instead of looking for the device's.
        clock: seconds, monotonic.
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
        self._open: tuple[str, float, _Edge | None] | None = None
        self._edge: _Edge | None = None
        self._ended: tuple[str | None, float] = (None, -math.inf)
        try:
            self.counter = counter or open_counter(torch.device(device))
        except UnavailableError as error:
            self.missing = str(error)

    @contextmanager
    def window(self, name: str = "training") -> Iterator[None]:
        """Measure a block under ``name``."""
        self.start(name)
        try:
            yield
        finally:
            self.stop()

    def start(self, name: str = "training") -> None:
        """Open a window. Raises ``RuntimeError`` when one is open."""
        if self._open is not None:
            raise RuntimeError(f"window {self._open[0]!r} is still open: stop() it first")
        account, now = self._accounts.setdefault(name, _Account()), self._clock()
        before, ended = self._ended
        if before != name or (self.counter is not None and now - ended > self.counter.step_s):
            account.stretches += 1
        self._open = (name, now, self._read(account, now))

    def stop(self) -> None:
        """Close the window and book it. Raises ``RuntimeError`` when none is open."""
        if self._open is None:
            raise RuntimeError("no window is open: start() one first")
        (name, began, before), self._open = self._open, None
        account, now = self._accounts[name], self._clock()
        after = self._read(account, now)
        self._ended = (name, now)
        account.seconds += now - began
        if self.counter is None or before is None or after is None:
            return
        try:
            seconds = after.at - before.at
            account.joules += self.counter.joules(before.values, after.values, seconds)
        except UnavailableError as error:
            account.reason = account.reason or str(error)

    def reading(self, name: str = "training", min_window_s: float = 0.0) -> EnergyReading:
        """Everything booked under ``name`` so far; ``None`` and why if a part of it is missing.

        A total is refused below ``min_window_s``, below 100 steps of the counter (10 s for a GPU)
        and where its pauses lie too close (see the module).
        """
        account = self._accounts.get(name, _Account())
        reason = self.missing or account.reason or self._refusal(account, min_window_s)
        return EnergyReading(
            joules=None if reason else account.joules,
            kind="measured",
            backend=self.counter.backend if self.counter else None,
            scope=self.counter.scope if self.counter else self._device,
            window_s=account.seconds,
            reason=reason,
        )

    def state_dict(self) -> dict[str, Any]:
        """What was booked, as plain values; the counter itself is not part of it."""
        return {
            "counter": self._identity(),
            "accounts": {name: asdict(account) for name, account in self._accounts.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; joules of another counter are never added to this one's."""
        self._accounts = {name: _Account(**fields) for name, fields in state["accounts"].items()}
        here, there = self._identity(), state["counter"]
        for account in self._accounts.values():
            if account.seconds and here != there:
                account.reason = account.reason or (
                    f"the run was continued elsewhere: measured by {there}, then by {here}"
                )

    def close(self) -> None:
        """Close the counter; what was booked can still be read."""
        if self.counter is not None:
            self.counter.close()

    def _identity(self) -> str:
        return f"{self.counter.backend} on {self.counter.scope}" if self.counter else "no counter"

    def _read(self, account: _Account, now: float) -> _Edge | None:
        if self.counter is None:
            return None
        if self._edge is None or now - self._edge.at >= REUSED * self.counter.step_s:
            try:
                self._edge = _Edge(now, self.counter.read())
            except UnavailableError as error:
                self._edge, account.reason = None, account.reason or str(error)
        return self._edge

    def _refusal(self, account: _Account, min_window_s: float) -> str | None:
        assert self.counter is not None
        step, seconds = self.counter.step_s, account.seconds
        least, stretch = max(min_window_s, STEPS * step), STEPS_OF_A_STRETCH * step
        if seconds < least:
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
