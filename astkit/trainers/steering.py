"""Changes to a run while it runs: put from anywhere, taken between two batches, kept as events."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """A setting that was changed: before training step ``step + 1``, ``name`` became ``value``."""

    step: int
    name: str
    value: Any


class Steering:
    """What somebody wants changed, and what was.

    ``put`` may be called from any thread; it only sets a value. Of several values for one name that
    arrive between two batches the last one counts.

    Args:
        replay: events of an earlier run, or its record's, which come up at their own steps.

    Attributes:
        events: the changes that were made, in order.
    """

    def __init__(self, replay: Iterable[Event | Mapping[str, Any]] = ()) -> None:
        self.events: list[Event] = []
        events = (each if isinstance(each, Event) else Event(**each) for each in replay)
        self._replay = sorted(events, key=lambda event: event.step)
        self._wanted: dict[str, Any] = {}
        self._lock = threading.Lock()

    def put(self, name: str, value: Any) -> None:
        """Ask for a change before the next batch."""
        with self._lock:
            self._wanted[name] = value

    def due(self, step: int) -> list[tuple[str, Any]]:
        """The changes to make now, after ``step`` batches."""
        if not self._wanted and not self._replay:
            return []
        changes = []
        while self._replay and self._replay[0].step <= step:
            event = self._replay.pop(0)
            if event.step == step:  # earlier ones are part of a state that was loaded
                changes.append((event.name, event.value))
        with self._lock:
            changes += self._wanted.items()
            self._wanted = {}
        return changes

    def note(self, step: int, name: str, value: Any) -> None:
        """Keep a change that was made."""
        self.events.append(Event(step, name, value))
