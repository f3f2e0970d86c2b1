"""Sends the records of a run to its observers, in groups, so that training waits for none."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from astkit.progress import in_notebook
from astkit.trainers.history import History, Observer, StepRecord
from astkit.trainers.metrics_file import MetricsFile

NOTEBOOK_SECONDS = 0.5  # between reports to a live picture


class Reports:
    """The history, the observers of a run, and the records that they have not received yet.

    Values of batches stay on the device until they are sent: after ``every`` batches, and twice a
    second in a notebook.
    """

    def __init__(self, history: History, observers: Sequence[Observer], every: int) -> None:
        self.history = history
        self.observers: list[Any] = [history, *observers]
        self.need_outputs = any(getattr(each, "needs_outputs", False) for each in observers)
        self.watchers = [each.watch for each in self.observers if hasattr(each, "watch")]
        self.waiting: list[StepRecord] = []
        self.every, self._live, self._sent = every, in_notebook(), 0.0

    def keep(self, record: StepRecord) -> bool:
        """Keep the record of a batch until it is sent; returns whether it is time to."""
        self.waiting.append(record)
        if len(self.waiting) >= self.every or record.step == 1:
            return True
        return self._live and time.perf_counter() - self._sent > NOTEBOOK_SECONDS

    def send(self, **latest: Any) -> None:
        """Send the kept records, the last one with the metrics ``latest``; waits for the device."""
        records, self.waiting = self.waiting, []
        for record, values in zip(records, _fetched(records), strict=True):
            known = latest if record is records[-1] else {}
            self.log(StepRecord(record.step, "train", {**record.metrics, **values, **known}))
        self._sent = time.perf_counter()

    def log(self, record: StepRecord) -> None:
        """Send a record to all observers."""
        for observer in self.observers:
            observer.log(record.step, phase=record.phase, **record.metrics)

    def sync(self) -> None:
        """Let observers with files write them, before a checkpoint."""
        for observer in self.observers:
            if hasattr(observer, "sync"):
                observer.sync()

    def start_again(self) -> None:
        """Remove the lines of a run that was killed before its first checkpoint."""
        for observer in self.observers:
            if isinstance(observer, MetricsFile):
                observer.load_state_dict({**observer.state_dict(), "lines": 0})

    def _stateful(self) -> Iterator[tuple[str, Any]]:
        """The observers with state, by class and number."""
        seen: Counter[str] = Counter()
        for observer in self.observers:
            if hasattr(observer, "load_state_dict"):
                kind = type(observer).__name__
                seen[kind] += 1
                yield f"{kind} {seen[kind]}", observer

    def state_dict(self) -> dict[str, Any]:
        """States of the observers that have one."""
        return {name: observer.state_dict() for name, observer in self._stateful()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        for name, observer in self._stateful():
            if name in state:
                observer.load_state_dict(state[name])
            elif isinstance(observer, MetricsFile) and observer.lines:
                raise ValueError(f"{observer.path} is not of this run: give a new file")


def _fetched(records: Sequence[StepRecord]) -> list[dict[str, float]]:
    """The values of the records that are tensors, as numbers, in one copy from each device."""
    numbers: list[dict[str, float]] = [{} for _ in records]
    places: dict[tuple[torch.device, torch.dtype], list[tuple[int, str]]] = {}
    for position, record in enumerate(records):
        for name, value in record.metrics.items():
            if isinstance(value, Tensor):
                places.setdefault((value.device, value.dtype), []).append((position, name))
    for entries in places.values():
        values = torch.stack([records[place].metrics[name] for place, name in entries])
        for (place, name), number in zip(entries, values.tolist(), strict=True):
            numbers[place][name] = number
    return numbers
