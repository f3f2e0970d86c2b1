"""Switches selection off while dense training takes less time per row."""

from __future__ import annotations

import copy
import warnings
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from astkit.trainers.state import Event

WINDOW = 30
"""Timed steps with selection whose median decides whether it stays on."""
WARMUP, BEGIN, PROBE = 3, 15, 7
"""Untimed steps after each change; timed steps of the first probe and of later ones."""
SHARE = 0.005
"""Maximum share of the training time for all probes after the first."""


@dataclass
class Switch:
    """Decides after each step whether the next step uses selection or trains on all rows.

    Selection is switched off if its median over `WINDOW` steps, in seconds per offered row, exceeds
    that of the latest dense steps. It is switched on again if the dense steps that follow, or a
    later probe, show the opposite. The offered rows of a plan are the candidates of its round; the
    cost of planning is divided by their number. The policy observes no dense steps.

    Attributes:
        name: of the policy, for messages.
        replay: changes of an earlier run by step, applied in place of measured decisions.
        mode: "start" (the first probe, dense), "on", "off", "probe dense" or "probe selection".
        switched: the latest decision, "on" or "off".
        since: number of steps in this mode.
        mark: training seconds at the latest booking.
        probed: seconds of the probes after the first.
        planning: seconds of the latest plan.
        price: expected seconds of the next probe.
        told: whether the warning was given.
        per_row: seconds per candidate of planning, and of scoring at the end of a round.
        times: seconds per offered row of the latest timed steps.
        rows: offered rows of the latest step.
    """

    name: str
    replay: dict[int, Event] = field(default_factory=dict)
    mode: str = "start"
    switched: str = "on"
    since: int = 0
    mark: float = 0.0
    probed: float = 0.0
    planning: float = 0.0
    price: float = 0.0
    told: bool = False
    per_row: dict[str, float] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=lambda: {"dense": [], "selection": []})
    rows: dict[str, float] = field(default_factory=dict)

    @property
    def selecting(self) -> bool:
        """Whether the next step uses selection."""
        return self.mode in ("on", "probe selection")

    @property
    def probing(self) -> bool:
        """Whether the next step belongs to a probe after the first."""
        return self.mode.startswith("probe")

    def round_cost(self, part: str, now: float, candidates: int) -> None:
        """Book the seconds until ``now`` as ``part`` ("plan" or "score") of a whole round."""
        seconds, self.mark = now - self.mark, now
        if self.selecting and self.probing:
            self.probed += seconds
        if self.selecting or part == "score":
            self.per_row[part] = seconds / max(1, candidates)
        if self.selecting and part == "plan":
            self.planning = seconds

    def step_ended(self, step: int, now: float, rows: float, may_probe: bool) -> Event | None:
        """Book a step of ``rows`` offered rows that ended at ``now``; returns the change of mode.

        Unless ``may_probe``, no probe of dense training starts.
        """
        kind = "selection" if self.selecting else "dense"
        seconds, self.mark = now - self.mark, now
        self.since += 1
        self.rows[kind] = rows
        if self.probing:
            self.probed += seconds
        if self.since > WARMUP:
            cost = seconds / rows + (sum(self.per_row.values()) if self.selecting else 0.0)
            self.times[kind] = [*self.times[kind], cost][-WINDOW:]
        if self.replay:
            event = self.replay.get(step)
        else:
            mode = self._decided(now, may_probe)
            same = mode not in ("on", "off") or mode == self.switched
            event = None if mode is None else Event(step, "probe" if same else "selection", mode)
        if event is not None:
            self._change(event)
        return event

    def _change(self, event: Event) -> None:
        kind = "selection" if self.selecting else "dense"
        timed = self.since - WARMUP
        if timed >= PROBE:
            self.times[kind] = self.times[kind][-timed:]  # none from before this mode
        self.mode, self.since = event.value, 0
        other = "dense" if self.selecting else "selection"
        if self.times[other]:
            self.price = (WARMUP + PROBE) * median(self.times[other]) * self.rows[other]
            self.price += 0.0 if self.selecting else self.planning
        if event.name == "selection":
            self.switched = event.value
        if event.value == "off" and not self.told and all(self.times.values()):
            self.told = True
            selection, dense = (median(self.times[kind]) for kind in ("selection", "dense"))
            warnings.warn(
                f"{self.name} is switched off: it takes a median of {selection:.3g} s per offered"
                f" row, and dense training {dense:.3g} s; training continues on all rows, and short"
                " probes test the policy again",
                stacklevel=2,
            )

    def _decided(self, now: float, may_probe: bool) -> str | None:
        """The mode of the next step; ``None`` for the same."""
        dense, selection = self.times["dense"], self.times["selection"]
        allowed = SHARE * now - self.probed
        complete = self.since == WARMUP + (BEGIN if self.mode == "start" else PROBE)
        if self.mode == "off" and complete and median(selection) <= median(dense[-PROBE:]):
            return "on"  # the machine was slower, not the policy
        if self.mode in ("on", "off"):
            if self.since < WARMUP + WINDOW:
                return None
            if self.mode == "off":
                return "probe selection" if self.price <= allowed else None
            if median(selection) > median(dense):
                return "off"
            return "probe dense" if may_probe and self.price <= allowed else None
        if not complete and not (self.probing and allowed < 0):
            return None
        if self.mode == "probe selection":
            pays = complete and median(selection[-PROBE:]) <= median(dense)
            return "on" if pays else "off"
        return "on"

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values."""
        return {k: v for k, v in asdict(self).items() if k not in ("name", "replay")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        for name in self.state_dict():
            setattr(self, name, copy.deepcopy(state[name]))
