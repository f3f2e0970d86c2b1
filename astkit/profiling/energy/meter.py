"""Adding up joules over many windows, and when a total may be shown.

Why the rules on windows: a counter moves in steps (NVML about every 100 ms, RAPL every ms), so what
is read at an edge of a window is up to one step old. Where windows follow each other without a
pause they share that edge and its error cancels, so only the ends of the whole stretch count: over
100 steps they make 2 % at most. At a pause, half a step on average is booked at the other side's
power: again 2 % at most where a stretch lasts 25 steps and a pause draws no more than twice the
window's power. Shorter totals are refused.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from astkit.profiling.energy.nvml import open_nvml
from astkit.profiling.energy.rapl import RaplCounter
from astkit.profiling.energy.reading import EnergyCounter, EnergyReading, Snapshot, UnavailableError
from astkit.profiling.energy.zeus import open_zeus

STEPS = 100
"""Counter steps that a total must span."""
STEPS_OF_A_STRETCH = 25
"""Counter steps that the stretches between pauses must span on average."""
REUSED = 0.1
"""Share of a step within which a reading is used again: keeps a slow counter out of short steps."""


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
    """Adds up the joules of many windows, under names that are kept apart.

    One window is open at a time; windows of another name (evaluation) are not part of a total.
    Without a counter the meter only keeps the time, and each reading is ``None`` with the reason.
    Wait for the device (``synchronize``) before each edge: work still queued is booked to whoever
    comes next.

        with meter.window("training"):
            step()
        print(meter.reading("training"))

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
        self.counter: EnergyCounter | None = None
        self.missing: str | None = None
        self._device, self._clock = str(device), clock
        self._accounts: dict[str, _Account] = {}
        self._open: tuple[str, float, _Edge | None] | None = None
        self._edge: _Edge | None = None
        self._ended: tuple[str, float] | None = None
        try:
            self.counter = counter or open_counter(torch.device(device))
        except UnavailableError as error:
            self.missing = str(error)

    @property
    def available(self) -> bool:
        """Whether there is a counter to read."""
        return self.counter is not None

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
        account = self._accounts.setdefault(name, _Account())
        now = self._clock()
        before, ended = self._ended or (None, -math.inf)
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
        """What was booked, as plain values; the counter itself cannot be taken along."""
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
        """Let go of the counter; what was booked can still be read."""
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
        least = max(min_window_s, STEPS * step)
        if seconds < least:
            return f"too short: {seconds:.2f} s measured, at least {least:g} s needed"
        if seconds < account.stretches * STEPS_OF_A_STRETCH * step:
            return (
                f"too many pauses: {seconds / account.stretches:.3g} s between them on average, at"
                f" least {STEPS_OF_A_STRETCH * step:g} s needed"
            )
        if not account.joules > 0:
            return f"the counter ({self._identity()}) did not move in {seconds:.1f} s"
        return None


def open_counter(device: torch.device) -> EnergyCounter:
    """The counter of ``device``: NVML, RAPL, or zeus where those two do not reach.

    Raises ``UnavailableError`` with the reason where nothing can be read. No network is asked.
    """
    attempts: list[Callable[[], EnergyCounter]] = []
    if device.type == "cpu":
        attempts.append(RaplCounter)
    elif device.type == "cuda" and torch.version.hip is None:
        attempts.append(lambda: open_nvml(device))
    # on x86 there is nothing of these two that zeus could read and they could not
    if not (attempts and platform.machine().lower() in ("x86_64", "amd64")):
        attempts.append(lambda: open_zeus(device))
    reasons = []
    for attempt in attempts:
        try:
            return attempt()
        except UnavailableError as error:
            reasons.append(str(error))
    raise UnavailableError("; ".join(reasons))
