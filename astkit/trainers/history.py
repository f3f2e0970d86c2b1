"""What a run reports: records of its batches and epochs, kept in memory or in a file."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from astkit import distributed
from astkit.files import plain_values, write_atomic
from astkit.gating.policy import Policy, overrides
from astkit.trainers.progress import in_notebook

NOTEBOOK_SECONDS = 0.5  # between reports to a live picture
PHASES = ("train", "epoch", "event")


@dataclass(frozen=True)
class StepRecord:
    """Metrics of one training batch or epoch, yielded by ``Trainer.steps``.

    ``metrics["loss"]`` of a batch is a tensor on the device of the run: ``float`` of it waits for
    the device.
    """

    step: int
    phase: str  # "train" or "epoch"
    metrics: dict[str, Any]


class Observer(Protocol):
    """Receives the records of a run.

    Optional methods: ``watch(batch, result)``, called after each training batch with its `Batch`
    and `StepResult`; ``state_dict`` and ``load_state_dict``, saved in checkpoints; ``sync``, called
    before a checkpoint is written.
    """

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Metrics of a batch ("train"), an "epoch", or a changed setting ("event").

        Batches arrive in groups, at each report.
        """

    def close(self) -> None:
        """Called when the run ends or iteration is stopped."""


class History:
    """Metrics of training batches, epochs and changes of settings, in chronological order.

    Above ``limit`` training batches, every second one is dropped.

    Attributes:
        steps: one mapping per training batch.
        epochs: one mapping per epoch, with validation metrics such as ``val_accuracy``.
        events: one mapping per changed setting, with ``name`` and ``value``.
    """

    def __init__(self, limit: int = 20_000) -> None:
        self.every, self.limit = 1, limit
        self.steps: list[dict[str, Any]] = []
        self.epochs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Store a record."""
        if phase == "train":
            if (step - 1) % self.every == 0:
                self.steps.append({"step": step, **metrics})
                if len(self.steps) > self.limit:
                    self.every *= 2
                    self.steps = self.steps[::2]
        elif phase == "epoch":
            self.epochs.append({"step": step, **metrics})
        elif phase == "event":
            self.events.append({"step": step, **metrics})

    def steps_to(self, accuracy: float) -> int | None:
        """Training batches until ``val_accuracy`` first reached ``accuracy``; ``None``: never."""
        reached = (each["step"] for each in self.epochs if each.get("val_accuracy", 0) >= accuracy)
        return next(reached, None)

    def close(self) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Epochs and events; batches are not saved, to limit the size of checkpoints."""
        return {"epochs": list(self.epochs), "events": list(self.events)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore epochs and events; earlier batches are available in a metrics file only."""
        self.epochs, self.events = list(state["epochs"]), list(state["events"])
        self.steps = []


class Reports:
    """The observers of a run, and the records that they have not received yet.

    Values of batches stay on the device until they are sent: after ``every`` batches, and twice a
    second in a notebook.
    """

    def __init__(self, observers: Sequence[Observer], every: int) -> None:
        self.observers: list[Any] = list(observers)
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

    Raises ``ValueError`` for ``replay`` of a policy without settings.
    """

    def __init__(self, policy: Policy, replay: Iterable[Event | Mapping[str, Any]] = ()) -> None:
        self.policy, self.events = policy, list[Event]()
        given = [each if isinstance(each, Event) else _event(**each) for each in replay]
        self.replay = sorted(given, key=lambda event: event.step)  # those that are left
        for event in self.replay:
            self._check(event.name)
        self._wanted: dict[str, Any] = {}
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
            self._wanted[name] = value

    def _check(self, name: str) -> None:
        if not overrides(self.policy, "steer"):
            raise ValueError(
                f"{type(self.policy).__name__} has no setting {name!r} to steer: give the trainer"
                " a policy that chooses after scoring, such as a Gate"
            )

    def applied(self, step: int) -> list[Event]:
        """Make the changes that are due after ``step`` batches; returns them.

        Warns for an invalid value, which must not stop the run.
        """
        if not self.replay and not self._wanted:
            return []
        due = [event for event in self.replay if event.step == step]
        # earlier ones are part of the loaded state
        self.replay = [event for event in self.replay if event.step > step]
        with self._lock:
            due += [Event(step, name, value) for name, value in self._wanted.items()]
            self._wanted = {}
        made = []
        for event in due:
            try:
                self.policy.steer(event.name, event.value)
                made.append(event)
            except (TypeError, ValueError) as error:
                warnings.warn(f"the setting was not changed: {error}", stacklevel=2)
        self.events += made
        return made

    def waiting(self) -> dict[str, Any]:
        """The changes that wait for the next batch."""
        with self._lock:
            return dict(self._wanted)

    def end(self, step: int) -> None:
        """Warn for events of ``replay`` that a run of ``step`` batches did not reach."""
        if left := [event for event in self.replay if event.step >= step]:
            warnings.warn(f"the run ended before {left[0]} of replay", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        """The applied changes, and those that wait for the next batch."""
        return {"events": [asdict(event) for event in self.events], "wanted": self.waiting()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        self.events = [Event(**each) for each in state["events"]]
        self._wanted = dict(state["wanted"])


def _event(step: int, name: str, value: Any, **rest: Any) -> Event:
    return Event(step, name, value)  # of a record, which holds more


class MetricsFile:
    """An observer that appends each record to a JSONL file; see `read`.

    A line is ``{"step": ..., "phase": "train" | "epoch" | "event", ...}``. A non-finite number is
    written as ``null``, so that every line is valid JSON (RFC 8259). Lines are on disk (fsync)
    before a checkpoint is written and at the end of a run. An existing file is continued; an
    incomplete last line is removed. Resuming removes the lines after the checkpoint, and where a
    run has none yet, all lines: give each run its own file.

    Args:
        path: the file; missing folders are created.

    Attributes:
        lines: number of complete lines, including those of a continued file; saved in checkpoints.

    Raises ``ValueError`` for metrics that JSON cannot represent.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        content = self.path.read_bytes() if self.path.exists() else None
        lines = _whole_lines(content or b"")
        if content is None or len(b"".join(lines)) < len(content):
            write_atomic(self.path, b"".join(lines))
        self.lines = len(lines)
        self._waiting: list[str] = []

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Keep one line, which is written with the next ones."""
        record = plain_values({"step": step, "phase": phase, **metrics})
        self._waiting.append(json.dumps(record, allow_nan=False) + "\n")
        self.lines += 1
        if phase != "train" or len(self._waiting) >= 50:
            self._write(safe=False)

    def _write(self, safe: bool) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with open(self.path, "ab") as file:
                file.write("".join(self._waiting).encode())
                if safe:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            os.truncate(self.path, size)  # the rest would follow half a line
            raise
        self._waiting = []

    def sync(self) -> None:
        """Write all lines and wait until they are on disk."""
        self._write(safe=True)

    close = sync

    def state_dict(self) -> dict[str, Any]:
        """Name of the file, and the number of its lines."""
        return {"file": self.path.name, "lines": self.lines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remove the lines written after ``state``, atomically.

        Raises ``ValueError`` for a damaged line, missing lines, and the state of another file.
        """
        self._write(safe=False)
        content, wanted = self.path.read_bytes(), int(state["lines"])
        lines = _whole_lines(content)
        _records(lines, self.path)
        if state["file"] != self.path.name or len(lines) < wanted:
            raise ValueError(
                f"{self.path} has {len(lines)} lines, but this run had written {wanted} to"
                f" {state['file']}: pass that file, or no MetricsFile"
            )
        if (kept := b"".join(lines[:wanted])) != content:
            write_atomic(self.path, kept)
        self.lines = wanted


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a metrics file, in order; an incomplete last line is ignored.

    Raises ``ValueError`` for a damaged line, ``FileNotFoundError`` if the file is missing.
    """
    return _records(_whole_lines(Path(path).expanduser().read_bytes()), path)


def _whole_lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")[:-1]  # after the last newline: empty or incomplete
    return [line + b"\n" for line in lines]


def _records(lines: list[bytes], path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if type(record["step"]) is not int or record["phase"] not in PHASES:
                raise ValueError("step is not an integer, or phase is unknown")
            records.append(record)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"line {number} of {path} is damaged ({error}): delete that line, or the file"
            ) from error
    return records
