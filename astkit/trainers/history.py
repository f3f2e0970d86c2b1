"""Observers are told what happened; the history is the one that keeps it in memory."""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Told what happened; the loop knows nothing else of it."""

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Metrics of one batch ("train", "validate") or pass ("epoch"), or a change ("event")."""

    def close(self) -> None:
        """The run has ended or was left."""


class History:
    """Metrics of every training batch, pass and change of settings, in the order they came in.

    Attributes:
        steps: one mapping a training batch.
        epochs: one mapping a pass, with validation metrics as ``val_accuracy`` and ``val_loss``.
        events: one mapping a change made while the run went on, with ``name`` and ``value``.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.epochs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Keep what came, the batches of validation excepted."""
        if phase == "train":
            self.steps.append({"step": step, **metrics})
        elif phase == "epoch":
            self.epochs.append({"step": step, **metrics})
        elif phase == "event":
            self.events.append({"step": step, **metrics})

    def close(self) -> None:
        """Nothing to close."""
