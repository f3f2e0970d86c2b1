"""Changes of a policy's settings during a run, and their replay."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from astkit import distributed
from astkit.gating.policy import Policy
from astkit.progress import warn


@dataclass(frozen=True)
class Event:
    """A change of a setting: ``name`` was set to ``value`` before training step ``step + 1``."""

    step: int
    name: str
    value: Any


class Steering:
    """Changes of the settings of ``policy`` during a run; the applied ones in order: ``events``.

    If several values for one name are put between two batches, the last one is applied. ``replay``:
    events of an earlier run, or their records, which are applied again at the same steps.

    Attributes:
        replay: events that are left; ``requested``: values that wait for the next batch, by name.

    Raises ``ValueError`` for ``replay`` of a policy without settings.
    """

    def __init__(self, policy: Policy, replay: Iterable[Event | Mapping[str, Any]] = ()) -> None:
        self.policy, self.events = policy, list[Event]()
        given = [asdict(each) if isinstance(each, Event) else each for each in replay]
        events = [Event(each["step"], each["name"], each["value"]) for each in given]
        self.replay = sorted(events, key=lambda event: event.step)
        for event in self.replay:
            self._check(event.name)
        self.requested: dict[str, Any] = {}
        self._lock = threading.Lock()

    def put(self, name: str, value: Any) -> None:
        """Request a change before the next batch; thread-safe. Raises: see `Trainer.steer`."""
        if (processes := distributed.world()) > 1:
            raise ValueError(
                f"{name} cannot be changed while {processes} processes train, since they would do"
                " so at different steps: pass replay=[Event(step, name, value)]"
            )
        self._check(name)
        with self._lock:
            self.requested[name] = value

    def _check(self, name: str) -> None:
        if not self.policy.steers:
            raise ValueError(
                f"{type(self.policy).__name__} has no setting {name!r} to steer: give the trainer"
                " a policy that chooses after scoring, such as a Gate"
            )

    def apply_due(self, step: int) -> list[Event]:
        """Make the changes that are due after ``step`` batches; returns them.

        Warns for an invalid value, which must not stop the run.
        """
        due = [event for event in self.replay if event.step == step]
        # earlier ones are part of the loaded state
        self.replay = [event for event in self.replay if event.step > step]
        with self._lock:
            due += [Event(step, name, value) for name, value in self.requested.items()]
            self.requested = {}
        made = []
        for event in due:
            try:
                self.policy.steer(event.name, event.value)
                made.append(event)
            except (TypeError, ValueError) as error:
                warn(f"the setting was not changed: {error}")
        self.events += made
        return made

    def end(self, step: int) -> None:
        """Warn for events of ``replay`` that a run of ``step`` batches did not reach."""
        if left := [event for event in self.replay if event.step >= step]:
            warn(f"the run ended before {left[0]} of replay")

    def state_dict(self) -> dict[str, Any]:
        """The applied changes, and those that wait for the next batch."""
        return {
            "events": [asdict(event) for event in self.events],
            "requested": dict(self.requested),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        self.events = [Event(**each) for each in state["events"]]
        self.requested = dict(state["requested"])
