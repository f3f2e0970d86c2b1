"""What the bar of a training run shows, at most ten times an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from astkit.progress import Bar
from astkit.trainers.history import StepRecord

PER_EPOCH = 10  # updates


Show = Callable[[Any], None]
"""Called with a `Trainer`, as all functions here are."""


def show_nothing(run: Any) -> None:
    """Does nothing."""


def state_of(run: Any) -> str:
    """The current epoch and the latest loss known, such as "epoch 3/8, loss 0.123"."""
    words = f"epoch {run.epoch + 1}"
    if run.budget.epochs is not None:
        epochs = math.ceil(run.budget.epochs)
        words = f"epoch {min(run.epoch + 1, epochs)}/{epochs}"
    steps = run.history.steps
    if steps and steps[-1]["loss"] is not None:
        words += f", loss {steps[-1]['loss']:.3g}"
    return words


def follow(run: Any, show: Show) -> Generator[StepRecord]:
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

    def __init__(self, run: Any, shown: bool | None = None) -> None:
        super().__init__(shown, unit="batch", initial=run.step, desc=state_of(run))

    def show(self, run: Any) -> None:
        """Move to where ``run`` is."""
        if run.progress:
            self.total = round(run.step / run.progress)
        self.set_description(state_of(run), refresh=False)
        self.update(run.step - self.n)
