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

    def state_dict(self) -> dict[str, Any]:
        """Passes and events; a run has too many batches for each checkpoint to hold them all."""
        return {"epochs": list(self.epochs), "events": list(self.events)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after ``state``; the batches before it are known to a metrics file alone."""
        self.epochs, self.events = list(state["epochs"]), list(state["events"])
        self.steps = []

    def restore_steps(self, records: list[dict[str, Any]]) -> None:
        """Take the training batches out of the records of a metrics file."""
        train = [record for record in records if record["phase"] == "train"]
        self.steps = [{k: v for k, v in record.items() if k != "phase"} for record in train]
