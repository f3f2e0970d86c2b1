"""Records of training batches and epochs, and the history that keeps them in memory."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol


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
    and `StepResult`; ``state_dict`` and ``load_state_dict``, saved in checkpoints. With an
    attribute ``needs_outputs`` that is true, the result of a step holds what the model predicts for
    its rows. With ``seconds``, and `Reports.add`, records come so often; with a true ``live`` the
    ``scores`` of some batches too.
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
        kept = {"train": self.steps, "epoch": self.epochs, "event": self.events}[phase]
        if phase != "train" or (step - 1) % self.every == 0:
            kept.append({"step": step, **metrics})
        if len(self.steps) > self.limit:
            self.every *= 2
            self.steps = self.steps[::2]

    def plot(self) -> Any:
        """A figure of the losses and the metrics by batch; see `plots.learning_curves`."""
        plots = import_module("astkit.widgets.plots")  # matplotlib is loaded for a figure only
        return plots.learning_curves(self.steps, self.epochs)

    def __repr__(self) -> str:
        latest = self.epochs[-1] if self.epochs else {}
        batches = latest.get("step", 0)
        if self.steps:
            batches = max(batches, self.steps[-1]["step"])
        parts = [f"{len(self.epochs)} epochs", f"{batches} batches"]
        for name, value in latest.items():
            if name.startswith("val_") and isinstance(value, float):
                parts.append(f"{name} {value:.4g}")
        return f"History({', '.join(parts)})"

    def close(self) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Epochs and events; batches are not saved, to limit the size of checkpoints."""
        return {"epochs": list(self.epochs), "events": list(self.events)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore epochs and events; an observer may keep earlier batches."""
        self.epochs, self.events = list(state["epochs"]), list(state["events"])
        self.steps = []
