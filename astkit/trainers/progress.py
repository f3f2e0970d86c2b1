"""What the bar of a training run shows, at most ten times an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Protocol

from astkit.progress import Bar
from astkit.trainers.config import Budget
from astkit.trainers.history import History, StepRecord

PER_EPOCH = 10  # updates


class ShownRun(Protocol):
    """What is shown of a `Trainer`."""

    budget: Budget
    step: int
    progress: float

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""

    @property
    def history(self) -> History:
        """The records of the run."""

    def steps(self) -> Generator[StepRecord]:
        """Train, and yield a record after each batch and epoch."""


Show = Callable[[Any], None]
"""Called with a run."""


def show_nothing(run: ShownRun) -> None:
    """Does nothing."""


def state_of(run: ShownRun) -> str:
    """The current epoch and the latest loss known, such as "epoch 3/8, loss 0.123"."""
    words = f"epoch {run.epoch + 1}"
    if run.budget.epochs is not None:
        epochs = math.ceil(run.budget.epochs)
        words = f"epoch {min(run.epoch + 1, epochs)}/{epochs}"
    steps = run.history.steps
    if steps and steps[-1]["loss"] is not None:
        words += f", loss {steps[-1]['loss']:.3g}"
    return words


def follow(run: ShownRun, show: Show) -> Generator[StepRecord]:
    """The records of ``run.steps()``; ``show`` is called `PER_EPOCH` times an epoch."""
    shown = 0
    with closing(run.steps()) as steps:
        for record in steps:
            over = record.phase == "epoch"
            part = 0 if over else int(PER_EPOCH * record.metrics["of_epoch"])
            if over or shown < part < PER_EPOCH:
                show(run)
            shown = part
            yield record


class TrainingBar(Bar):
    """Epoch, loss, batches a second and time left of a run."""

    def __init__(self, run: ShownRun, shown: bool | None = None) -> None:
        super().__init__(shown, unit="batch", initial=run.step, desc=state_of(run))

    def show(self, run: ShownRun) -> None:
        """Move to where ``run`` is."""
        if run.progress:
            self.total = round(run.step / run.progress)
        self.set_description(state_of(run), refresh=False)
        self.update(run.step - self.n)
