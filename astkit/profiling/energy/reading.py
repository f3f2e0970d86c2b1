"""What a reading of energy is, what a counter must offer, and what may be said to be saved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

Snapshot = tuple[float, ...]


class UnavailableError(Exception):
    """Joules cannot be had from a counter; the text is the reason, without a full stop."""


class EnergyCounter(Protocol):
    """What a meter needs of a back end: cumulative counters that are read at the edges of windows.

    ``step_s`` is how often the counter moves; ``scope`` names what draws the energy.
    """

    backend: str
    scope: str
    step_s: float

    def read(self) -> Snapshot:
        """All counters now, in the back end's own units. Raises ``UnavailableError``."""

    def joules(self, before: Snapshot, after: Snapshot, seconds: float) -> float:
        """Joules between two readings ``seconds`` apart. Raises ``UnavailableError``."""

    def close(self) -> None:
        """Give back what the counter holds; it is not read afterwards."""


@dataclass(frozen=True)
class EnergyReading:
    """Joules over ``window_s`` seconds, or why there are none.

    ``kind`` tells a counter's joules from the user's watts; ``backend`` is the counter ("nvml",
    "nvml-power", "rapl", "zeus-...") and ``scope`` what it covers. Raises ``ValueError`` unless
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


def estimated(watts: float, window_s: float, scope: str) -> EnergyReading:
    """The user's own ``watts`` times ``window_s``, labelled as what it is.

    It tells no more than the seconds do: in any ratio the watts cancel.
    Raises ``ValueError`` unless the product is finite and above 0.
    """
    return EnergyReading(
        watts * window_s, "estimated", f"{watts:g} W given by the user", scope, window_s
    )


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
