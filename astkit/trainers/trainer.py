"""Trainer: trains a model until its budget is spent."""

from __future__ import annotations

from typing import Any

from astkit import distributed
from astkit.datasets import as_loader
from astkit.trainers.loop import Loop


class Trainer(Loop):
    """Trains ``model`` until the budget is spent: ``Trainer(...).run()``.

    With several processes (torchrun), each runs the same script, and a run has the same steps as in
    one process: see docs/distributed.md.

    Args:
        model: called with the inputs of a batch, see `astkit.batch.call`; with several processes a
            DistributedDataParallel, or a model with ``fully_shard`` applied.
        train: a data set, a `Loader`, or a torch DataLoader of batches of any structure.
        validation: likewise, evaluated after each epoch; ``None`` disables validation.
        policy: chooses the rows to train on: a `Policy`, its name, or ``{"name": ..., argument:
            value}``; by default all rows.
        epochs: iterations of the training data; shorthand for ``budget=Budget(epochs=...)``.
        budget: training budget.
        batch_size: rows a batch, in all processes together; for data sets and a `Loader`.
        step: training step; by default chosen to fit the policy.
        config: learning rate, precision and so on.
        criterion: ``(outputs, targets)`` -> one loss per row; cross-entropy by default.
        metrics: additional validation metrics: functions ``(outputs, targets) -> [rows]`` by name,
            or `Metric` objects. Accuracy is computed for integer labels by default.
        optimizer: built on ``model``'s parameters; AdamW from ``config`` by default.
        observers: receive a record after each batch; their time is not measured.
        replay: events of a steered or switched run whose changes are applied again.
        meter: measures the energy of training and evaluation; none by default.
        evaluator: factory of the evaluator; by default of loss and ``metrics``.
        costs: factory of the FLOPs counter; by default it traces the model's operations.
        device: "auto" uses the available accelerator.
        checkpoints: a `Checkpoints` object or a folder for the state of the run.
        resume: continue from the newest checkpoint, or start if there is none.

    Raises:
        ValueError: before any weight changes, for labels out of range, a criterion that averages,
            or model outputs of the wrong shape. For existing checkpoints if ``resume`` is false,
            the settings differ, or all are damaged.
    """

    def steer(self, name: str, value: Any) -> None:
        """Change a setting of the policy before the next batch; thread-safe.

        The change is recorded as an event, and the run is marked as steered.
        Raises ``ValueError`` for a run without such settings, or in several processes.
        """
        if distributed.world() > 1:
            raise ValueError(
                f"{name} cannot be changed while {distributed.world()} processes train, since they"
                " would do so at different steps: pass replay=[Event(step, name, value)]"
            )
        if not hasattr(self.step, "steer"):
            raise ValueError(
                f"{type(self.step).__name__} has no setting {name!r} to steer: give the trainer a"
                " policy that chooses after scoring, such as a Gate"
            )
        self.steering.put(name, value)

    def evaluate(self, data: Any) -> dict[str, Any]:
        """Metrics of one pass over ``data``, such as the test split; not counted as training.

        ``samples``, ``loss``, and the metrics by name; for integer labels ``accuracy`` in [0, 1]
        with its 95 % interval ``accuracy_interval``, else ``None``.
        """
        return self.evaluator.evaluate(as_loader(data, self.device, shuffle=False))
