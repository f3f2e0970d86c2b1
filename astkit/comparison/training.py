"""One run of a comparison: it is trained, recorded, and tested once; its entry is kept."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from astkit.aim.policy import Aim
from astkit.comparison.plan import Method, Task, selectable
from astkit.comparison.units import values_by_unit, values_without
from astkit.datasets.batch import Batch
from astkit.datasets.facts import row_groups
from astkit.files import read_json, write_atomic, write_json
from astkit.profiling.energy import EnergyMeter
from astkit.stamp import stamp
from astkit.trainers import Budget, Checkpoints, StepResult, Trainer, choose_device
from astkit.trainers.evaluation import Best
from astkit.trainers.progress import Show, follow, show_nothing

POINTS = 12  # validations per run, at equal fractions of the budget
PARTS = 8  # equal parts of the budget for which visits are counted separately
PAUSE = 30.0  # minimum interval between checkpoints, in seconds
KEPT = 200 << 20  # bytes of test outputs to keep for a metric that is no mean over rows
RECORDS = "comparison_visits"
LOOKUPS = (nn.Embedding, nn.EmbeddingBag)  # whose work is not counted in FLOPs
STAMPED = ("source", "commit", "dirty", "torch", "cpu", "devices")  # calls may differ in them


class RunRecord:
    """An observer of what a run trains on, by row, and of its validation values.

    It does not wait for the device, and reads no reports, which come late. Rows are counted if
    batches are ``indexed``.

    Attributes:
        trained: int32 ``[PARTS, rows]``: how often each row was trained on in each part.
        losses: float32 ``[PARTS, rows]``: loss of its latest training or scoring in each part; NaN
            without one.
        predicted: int32 ``[rows]``: class predicted at the latest training; -1 before.
        progress: fraction of the budget spent, which whoever trains sets before each step.
        points: lists ``[FLOPs, training seconds, value]``, at `POINTS` equal fractions of the
            budget and at its end; FLOPs are ``None`` if not countable.
        offered: int64 ``[2]``: rows that the policy could choose from, and those that have a label.
        best: the weights at the best point, where they are wanted; else ``None``.
        best_at: the ``best_step`` and ``best_flops`` of that point.
        validation: value of each validation row at the latest point; ``None`` if not known.
    """

    needs_outputs = True

    def __init__(
        self, rows: int, device: torch.device, indexed: bool = True, keeps_best: bool = False
    ) -> None:
        self.indexed = indexed
        self.best = Best() if keeps_best else None
        self.best_at: dict[str, Any] = {}
        self.trained = torch.zeros(PARTS, rows, dtype=torch.int32, device=device)
        self.losses = torch.full((PARTS, rows), torch.nan, device=device)
        self.predicted = torch.full((rows,), -1, dtype=torch.int32, device=device)
        self.offered = torch.zeros(2, dtype=torch.int64, device=device)
        self.progress = 0.0
        self.points: list[list[float | None]] = []
        self.reached = 0
        self.validation: Tensor | None = None

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def watch(self, batch: Batch, result: StepResult) -> None:
        """Count a training step."""
        seen, chosen = result.seen, result.selection
        if seen is not None:
            labelled = torch.ones(seen.rows, dtype=torch.bool, device=self.losses.device)
            labelled = labelled if seen.labelled is None else seen.labelled
            self.offered[0] += batch.rows
            self.offered[1] += labelled.sum() if seen.places is None else len(seen.places)
        if not self.indexed:
            return
        assert batch.index is not None
        part = min(PARTS - 1, int(PARTS * self.progress))
        index = batch.index.to(self.losses.device)
        if seen is not None and seen.evaluated:
            held = index if seen.places is None else index[seen.places]
            if len(held):
                self.losses[part, held] = seen.losses.float().masked_fill(~labelled, torch.nan)
        rows = index[result.rows.to(index.device)]
        times = torch.ones_like(rows, dtype=torch.int32)
        if chosen is not None:  # padding rows have weight 0
            times = (chosen.weight[: len(rows)] > 0).to(torch.int32)
        self.trained[part].index_add_(0, rows, times)
        self.losses[part, rows] = result.losses.float()
        if result.predictions.predicted is not None:
            self.predicted[rows] = result.predictions.predicted.to(torch.int32)

    def validate(self, trainer: Trainer, task: Task) -> None:
        """Measure the validation data if the run has reached the next fraction of its budget."""
        part = int(trainer.progress * POINTS)
        last_step_to_come = trainer.progress >= 1 and not trainer.done
        if part <= self.reached or last_step_to_come:
            return
        measured = trainer.measure_validation()
        value, metric, higher = task.value(measured.values())
        self.validation = measured.rows.get(metric)
        if self.best is not None and self.best.look(value if higher else -value, trainer.model):
            self.best_at = {"best_step": trainer.step, "best_flops": _flops(trainer)}
        self.points.append([_flops(trainer), trainer.ledger.seconds["training"], value])
        self.reached = part

    def by_row(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: getattr(self, name) for name in ("trained", "losses", "predicted")}

    def state_dict(self) -> dict[str, Any]:
        best = {} if self.best is None else self.best.state_dict()
        kept = {name: getattr(self, name) for name in ("points", "reached", "best_at", "offered")}
        return {**self.by_row(), **kept, "best": best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in self.by_row().items():
            value.copy_(state[name])
        self.points, self.reached = [list(each) for each in state["points"]], state["reached"]
        self.best_at, self.offered = dict(state["best_at"]), state["offered"].to(self.losses.device)
        if self.best is not None:
            self.best.load_state_dict(state["best"])


def train_method(
    task: Task,
    method: Method,
    seed: int,
    budget: Budget,
    folder: Path,
    *,
    resumable: bool = True,
    show: Show = show_nothing,
    schedule_steps: int | None = None,
) -> dict[str, Any]:
    """Train one method with one seed, evaluate it once on the test data; returns its entry.

    Args:
        folder: of the comparison; an interrupted run resumes from its checkpoints there.
        resumable: whether to write checkpoints.
        show: called with the trainer, ten times an epoch.
        schedule_steps: of a torch scheduler, see `Optimisation`.

    A run that diverges has the ``value`` ``None``, and ``failed`` gives the reason.
    """
    name, device = method.file_name(seed), choose_device(task.device)
    saved = folder / "checkpoints" / name
    source = selectable(task.train, seed)
    rows = source.num_samples or 0
    record = RunRecord(rows, device, hasattr(source, "order"), method.keeps_best)
    trainer = task.trainer(
        method.new_policy(seed),
        seed,
        budget,
        observers=[record],
        checkpoints=Checkpoints(saved, every=1, pause=PAUSE) if resumable else None,
        resume=resumable,
        meter=EnergyMeter(device),
        schedule_steps=schedule_steps,
    )
    result: dict[str, Any]
    arrays = record.by_row()
    try:
        train_to_end(trainer, task, record, show)
    except FloatingPointError as error:
        result = {"value": None, "failed": str(error)}
    else:
        result, test_rows = _tested(trainer, task)
        if test_rows is not None:
            arrays["test"] = test_rows
        result |= record.best_at
    if record.validation is not None:
        arrays["validation"] = record.validation
    entry = {
        "policy": method.label,
        "seed": seed,
        **_cost(trainer, record.offered),
        **result,
        "curve": record.points,
        "validation_rows": None if record.validation is None else len(record.validation),
        "stamp": {key: value for key, value in stamp().items() if key in STAMPED},
        "visits": f"{name}.safetensors",
    }
    arrays = {key: each.cpu().contiguous() for key, each in arrays.items()}
    write_atomic(folder / RECORDS / entry["visits"], save(arrays))
    path = write_json(folder / "entries" / f"{name}.json", entry)
    shutil.rmtree(saved, ignore_errors=True)
    return read_json(path)


def train_to_end(trainer: Trainer, task: Task, record: RunRecord, show: Show) -> None:
    """Train, with validations by ``record``; ends at its best point, if that is kept."""
    record.progress = trainer.progress
    record.validate(trainer, task)  # the run may have been stopped before
    for _ in follow(trainer, show):
        record.progress = trainer.progress
        record.validate(trainer, task)
    if record.best is not None:
        record.best.restore(trainer.model)


def _flops(trainer: Trainer) -> float | None:
    ledger = trainer.ledger
    return None if ledger.uncounted else ledger.flops.total


def _cost(trainer: Trainer, given: Tensor) -> dict[str, Any]:
    """What a run took, for its entry; ``given``: see `RunRecord.offered`."""
    ledger, counts = trainer.ledger, trainer.ledger.samples
    passes = ledger.flops.forward + ledger.flops.backward
    offered = max(1, counts.trained + counts.skipped + counts.unloaded)
    counted = ledger.flops_dense and not ledger.uncounted
    rate = passes / ledger.flops_dense if counted else counts.trained / offered
    if given[1]:  # rows without a label are no candidates, nor are they in a plan
        rate *= float(given[0] / given[1])
    energy = ledger.energy()
    return {
        "seconds": ledger.seconds["training"],
        "phases": ledger.phases,
        "joules": energy.joules,
        "joules_reason": energy.reason,
        "flops": _flops(trainer),
        "trained": counts.trained,
        "scored": counts.scored,
        "rate": min(1.0, rate),
        "steps": trainer.step,
        "optimizer_steps": trainer.optimisation.steps + trainer.optimisation.skipped,
        "uncounted": sorted(ledger.uncounted),
        "looks_up": any(isinstance(part, LOOKUPS) for part in trainer.model.modules()),
        "scores_counted": trainer.policy.cost is not None,
        "abstained": isinstance(trainer.policy, Aim) and trainer.policy.drawn_by is None,
    }


def _tested(trainer: Trainer, task: Task) -> tuple[dict[str, Any], Tensor | None]:
    """One pass over the test data, for the entry; values of its rows, groups or parts, if known."""
    first = task.metrics[0] if task.metrics else None
    source = task.source("test")
    measured = trainer.measure(source, keep=0 if first is None or first.averaged else KEPT)
    values, units = measured.values(), None
    value, metric, higher = task.value(values)
    groups = row_groups(source)
    if metric in measured.rows:
        units = values_by_unit(measured.rows[metric], source, measured.rows.get("label"))
    elif first is not None and measured.kept is not None:
        units = values_without(first, measured.kept, source)
    result = {
        "value": value,
        "metric": metric,
        "higher": higher,
        "test_rows": values["samples"],
        "test_groups": None if groups is None else len(groups.unique()),
    }
    return result, units
