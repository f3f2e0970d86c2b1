"""State of a run: budget, position, changes of settings, and history."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from astkit import distributed
from astkit.profiling.ledger import Ledger

Schedule = Callable[[float], float]
SWITCHING = ("selection", "probe")  # names of the events of `astkit.trainers.switching`
TIME_BUDGET = "ASTKIT_TIME_BUDGET_H"
_BEGUN = time.monotonic()


@dataclass(frozen=True)
class Budget:
    """Training budget: exactly one of epochs, batches (``steps``), FLOPs and seconds.

    An epoch is one iteration of the loader; with a policy of a given rate it has rate x N rows.
    Learning rate schedules depend on the fraction of the budget spent, so they end with the budget
    in any unit. Evaluation is not counted.

    Raises ``ValueError`` unless exactly one limit is given and it is positive.
    """

    epochs: float | None = None
    flops: float | None = None
    seconds: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = {name: limit for name, limit in asdict(self).items() if limit is not None}
        if len(given) != 1:
            raise ValueError(
                f"budget names {sorted(given) or 'no limit'}: give exactly one of epochs, steps,"
                " flops and seconds"
            )
        for name, limit in given.items():
            if not (isinstance(limit, Real) and 0 < float(limit) < math.inf):
                raise ValueError(f"budget {name} is {limit!r}: give a positive, finite number")

    def spent(self, epochs: float, ledger: Ledger, steps: int = 0) -> float:
        """Fraction of the budget spent after ``epochs`` epochs and ``steps`` batches, in [0, 1].

        Raises ``ValueError`` for a FLOPs budget if some operations cannot be counted.
        """
        if self.epochs is not None:
            share = epochs / self.epochs
        elif self.steps is not None:
            share = steps / self.steps
        elif self.flops is not None:
            if ledger.uncounted:
                raise ValueError(
                    f"budget flops is {self.flops:g}, but the FLOPs of"
                    f" {', '.join(sorted(ledger.uncounted))} cannot be counted: give epochs, steps"
                    " or seconds"
                )
            share = ledger.flops.total / self.flops
        else:
            share = ledger.seconds["training"] / (self.seconds or math.inf)
        return min(1.0, share)


def cosine(progress: float) -> float:
    """Half a cosine from 1 to 0. Source: Loshchilov and Hutter, "SGDR", ICLR 2017."""
    return 0.5 * (1 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Schedule] = {"cosine": cosine, "constant": lambda progress: 1.0}


class TimeIsUp(RuntimeError):  # noqa: N818 - not an error
    """The process's time budget is spent; the run's checkpoints hold its state."""

    def __init__(self, step: int, folder: Path | None) -> None:
        saved = "nothing was saved, since the run had no checkpoints"
        if folder is not None:
            saved = f"saved in {folder}: run it again with resume=True to continue"
        hours = os.environ.get(TIME_BUDGET)
        super().__init__(f"the time budget of {hours} h is over after step {step}; {saved}")


def time_is_up() -> bool:
    """Whether the time budget of a process is spent, for example in hosted notebooks.

    ``ASTKIT_TIME_BUDGET_H`` sets it in hours, counted from the import of ``astkit.trainers``.
    """
    hours = os.environ.get(TIME_BUDGET)
    if not hours:
        return False
    try:
        limit = float(hours) * 3600
    except ValueError:
        raise ValueError(f"{TIME_BUDGET} is {hours!r}: give hours, such as 8.5") from None
    return limit > 0 and distributed.total(time.monotonic() - _BEGUN >= limit)[0] > 0


@contextmanager
def interrupt_held(last: Callable[[], object]) -> Iterator[None]:
    """Hold an interrupt (SIGINT) back until the block ends, and call ``last`` before it acts.

    A second interrupt takes effect at once, as for a loader that hangs.
    """
    before, received = signal.getsignal(signal.SIGINT), False
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received:
            before(number, frame)
        received = True

    signal.signal(signal.SIGINT, handle)
    try:
        yield
        if received:
            last()
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        before(signal.SIGINT, None)


@dataclass(frozen=True)
class StepRecord:
    """Metrics of one batch, yielded by ``Trainer.steps``."""

    step: int
    phase: str  # "train" or "validate"
    metrics: dict[str, Any]


@dataclass
class Position:
    """The position of a run in its data and phases, as plain numbers.

    Attributes:
        step: training batches so far; ``batch`` of them in the current ``epoch``.
        round: plans made in this epoch; ``taken``: batches returned since the latest plan.
        spent: fraction of the budget.
        phase: "train", "validate" or "done".
        validated: batches of the current validation; ``sums``: metric sums over their rows.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    round: int = 0
    taken: int = 0
    spent: float = 0.0
    phase: str = "train"
    validated: int = 0
    sums: list[float] = field(default_factory=list)

    def end_epoch(self) -> None:
        """Move to the first batch of the next epoch."""
        self.epoch, self.batch, self.round, self.taken = self.epoch + 1, 0, 0, 0


@dataclass(frozen=True)
class Event:
    """A change of a setting: ``name`` was set to ``value`` before training step ``step + 1``."""

    step: int
    name: str
    value: Any


class Steering:
    """Changes of settings requested during a run, and the applied ones in order (``events``).

    ``put`` is thread-safe. If several values for one name are put between two batches, the last one
    is applied. ``replay``: events of an earlier run, or their records, which are applied again at
    the same steps.
    """

    def __init__(self, replay: Iterable[Event | Mapping[str, Any]] = ()) -> None:
        self.events: list[Event] = []
        events = (each if isinstance(each, Event) else Event(**each) for each in replay)
        self._replay = sorted(events, key=lambda event: event.step)
        self._wanted: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def steered(self) -> bool:
        """Whether the user changed a setting."""
        return any(event.name not in SWITCHING for event in self.events)

    def take_switching(self) -> list[Event]:
        """Remove and return the events of selection being switched on or off."""
        taken = [event for event in self._replay if event.name in SWITCHING]
        self._replay = [event for event in self._replay if event.name not in SWITCHING]
        return taken

    def put(self, name: str, value: Any) -> None:
        """Request a change before the next batch."""
        with self._lock:
            self._wanted[name] = value

    def due(self, step: int) -> list[tuple[str, Any]]:
        """The changes to apply now, after ``step`` batches."""
        changes = []
        while self._replay and self._replay[0].step <= step:
            event = self._replay.pop(0)
            if event.step == step:  # earlier ones are part of the loaded state
                changes.append((event.name, event.value))
        with self._lock:
            changes += self._wanted.items()
            self._wanted = {}
        return changes


class Observer(Protocol):
    """Receives the records of a run.

    Optional methods: ``state_dict`` and ``load_state_dict``, saved in checkpoints; ``sync``, called
    before a checkpoint is written; ``records``, read after a checkpoint is loaded.
    """

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Metrics of a batch ("train", "validate") or an "epoch", or a change ("event")."""

    def close(self) -> None:
        """Called when the run ends or iteration is stopped."""


class History:
    """Metrics of training batches, epochs and changes of settings, in chronological order.

    Keeps every ``every``-th training batch, starting with the first. Above ``limit`` entries, every
    second one is dropped and ``every`` is doubled.

    Attributes:
        steps: one mapping per training batch.
        epochs: one mapping per epoch, with validation metrics such as ``val_accuracy``.
        events: one mapping per changed setting, with ``name`` and ``value``.
    """

    def __init__(self, every: int = 1, limit: int = 20_000) -> None:
        self.every, self.limit = every, limit
        self.steps: list[dict[str, Any]] = []
        self.epochs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Store a record; validation batches are ignored."""
        if phase == "train":
            if (step - 1) % self.every == 0:
                self.steps.append({"step": step, **metrics})
                self._thin()
        elif phase == "epoch":
            self.epochs.append({"step": step, **metrics})
        elif phase == "event":
            self.events.append({"step": step, **metrics})

    def _thin(self) -> None:
        while len(self.steps) > self.limit:
            self.every *= 2
            self.steps = [each for each in self.steps if (each["step"] - 1) % self.every == 0]

    def close(self) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Epochs and events; batches are not saved, to limit the size of checkpoints."""
        return {"epochs": list(self.epochs), "events": list(self.events)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore epochs and events; earlier batches are available in a metrics file only."""
        self.epochs, self.events = list(state["epochs"]), list(state["events"])
        self.steps = []

    def restore_steps(self, records: list[dict[str, Any]]) -> None:
        """Restore the training batches from the records of a metrics file."""
        kept = [each for each in records if (each["step"] - 1) % self.every == 0]
        train = [record for record in kept if record["phase"] == "train"]
        self.steps = [{k: v for k, v in record.items() if k != "phase"} for record in train]
        self._thin()
