"""What the bar of a training run shows, at most ten times an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING

from astkit.progress import Bar
from astkit.trainers.history import StepRecord

if TYPE_CHECKING:
    from astkit.trainers.trainer import Trainer

PER_EPOCH = 10  # updates

Show = Callable[["Trainer"], None]


def show_nothing(trainer: Trainer) -> None:
    """Does nothing."""


def state_of(trainer: Trainer) -> str:
    """The current epoch and the latest loss known, such as "epoch 3/8, loss 0.123"."""
    words = f"epoch {trainer.epoch + 1}"
    if trainer.budget.epochs is not None:
        epochs = math.ceil(trainer.budget.epochs)
        words = f"epoch {min(trainer.epoch + 1, epochs)}/{epochs}"
    steps = trainer.history.steps
    if steps and steps[-1]["loss"] is not None:
        words += f", loss {steps[-1]['loss']:.3g}"
    return words


def follow(trainer: Trainer, show: Show) -> Generator[StepRecord]:
    """The records of ``trainer.steps()``; ``show`` is called `PER_EPOCH` times an epoch."""
    shown = 0
    with closing(trainer.steps()) as steps:
        for record in steps:
            over = record.phase == "epoch"
            part = 0 if over else int(PER_EPOCH * record.metrics["of_epoch"])
            if over or shown < part < PER_EPOCH:
                show(trainer)
            shown = part
            yield record


class TrainingBar(Bar):
    """Epoch, loss, batches a second and time left of a run."""

    def __init__(self, trainer: Trainer, shown: bool | None = None) -> None:
        super().__init__(shown, unit="batch", initial=trainer.step, desc=state_of(trainer))

    def show(self, trainer: Trainer) -> None:
        """Move to where ``trainer`` is."""
        if trainer.progress:
            self.total = round(trainer.step / trainer.progress)
        self.set_description(state_of(trainer), refresh=False)
        self.update(trainer.step - self.n)
