"""The runs of a comparison: what they share, how one is trained, and what is kept of it."""

from __future__ import annotations

import copy
import hashlib
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from astkit import rng
from astkit.comparison.statistics import by_group, jackknife, parts_of_groups, parts_of_rows
from astkit.comparison.verdict import unit
from astkit.datasets import BatchSource, Loader, as_loader
from astkit.datasets.batch import Batch, join
from astkit.datasets.dependence import centred, sorted_by
from astkit.datasets.facts import row_groups
from astkit.datasets.foreign import check_unshuffled, open_data
from astkit.files import read_json, write_atomic, write_json
from astkit.gating.losses import Criterion, cross_entropy_rows
from astkit.gating.policies.random_subset import RandomSubset
from astkit.gating.policy import Policy, as_policy
from astkit.profiling.energy import EnergyMeter
from astkit.profiling.flops import RowFlops
from astkit.profiling.ledger import Ledger
from astkit.stamp import stamp
from astkit.trainers import (
    Budget,
    Checkpoints,
    Metric,
    StepResult,
    TrainConfig,
    Trainer,
    choose_device,
)
from astkit.trainers.evaluation import Aggregate
from astkit.trainers.first_batch import initialise
from astkit.trainers.progress import Show, follow, show_nothing

Chosen = Policy | Mapping[str, Any]
Entry = dict[str, Any]
MakeOptimizer = Callable[[nn.Module], Any]

POINTS = 12  # validations per run, at equal fractions of the budget
PARTS = 8  # equal parts of the budget for which visits are counted separately
PAUSE = 30.0  # minimum interval between checkpoints, in seconds
KEPT = 200 << 20  # bytes of test outputs to keep for a metric that is no mean over rows
RECORDS = "comparison_visits"
STAMPED = ("source", "commit", "dirty", "torch", "cpu", "devices")  # calls may differ in them


@dataclass(frozen=True)
class Task:
    """What all runs of a comparison share; the fields are arguments of `astkit.compare`."""

    make_model: Callable[[], nn.Module]
    train: Any
    validation: Any
    test: Any
    criterion: Criterion = cross_entropy_rows
    metrics: tuple[Metric, ...] = ()
    config: TrainConfig = field(default_factory=TrainConfig)
    batch_size: int | None = None
    make_optimizer: MakeOptimizer | None = None
    flops: RowFlops | None = None
    device: str = "auto"

    trainer_class: ClassVar[type[Trainer]] = Trainer

    def model(self, seed: int) -> nn.Module:
        """A new model; its weights depend on ``seed`` only."""
        device = choose_device(self.device)
        with rng.isolated(device, seed, "model"):
            model = self.make_model()
        if isinstance(model, nn.Module):

            def load() -> Batch:
                return next(iter(as_loader(selectable(self.train, seed), device).batches(0)))

            initialise(model, load, device, seed)
        return model

    def source(self, part: str) -> BatchSource:
        """The "validation" or "test" data, in order."""
        data = getattr(self, part)
        check_unshuffled(data)
        data = open_data(data)
        return as_loader(data, choose_device(self.device), shuffle=False)

    def trainer(
        self,
        policy: Policy | None,
        seed: int,
        budget: Budget,
        lr_factor: float = 1.0,
        **options: Any,
    ) -> Trainer:
        """A trainer of one run, with ``lr_factor`` times the learning rate."""
        model, config = self.model(seed), replace(self.config, seed=seed)
        optimizer = scheduler = None
        if self.make_optimizer is None:
            config = replace(config, lr=config.peak_lr * lr_factor)
        else:
            made = self.make_optimizer(model)
            optimizer, scheduler = made if isinstance(made, tuple) else (made, None)
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise ValueError(
                    f"make_optimizer returns a {type(optimizer).__name__}: return an optimizer of"
                    " the model that it is called with, or a pair of it and a scheduler"
                )
        return self.trainer_class(
            model,
            selectable(self.train, seed),
            self.source("validation"),
            policy=policy,
            budget=budget,
            batch_size=self.batch_size,
            config=config,
            criterion=copy.deepcopy(self.criterion),  # it may have a state
            metrics=self.metrics,
            optimizer=optimizer,
            scheduler=scheduler,
            flops=self.flops,
            lr_scale=1.0 if optimizer is None else lr_factor,
            validates=False,  # where it is, is decided by the comparison
            device=self.device,
            **options,
        )

    def value(self, values: Mapping[str, Any]) -> tuple[float, str, bool]:
        """Value, name and direction (whether higher is better) of what is compared.

        The first of ``metrics``; without metrics, the accuracy of a classifier, else the mean loss.
        Raises ``ValueError`` for an accuracy in percent.
        """
        if self.metrics:
            first = self.metrics[0]
            value = values[first.name]
            if unit(first.name)[0] > 1 and abs(value) > 1:
                raise ValueError(
                    f"{first.name} has the value {value:g}: return shares from 0 to 1, or give the"
                    " metric another name"
                )
            return value, first.name, bool(first.higher_is_better)
        if values["accuracy"] is not None:
            return values["accuracy"], "accuracy", True
        return values["loss"], "loss", False


@dataclass(frozen=True)
class Method:
    """A way of training: a policy, or ``None`` for dense training."""

    label: str
    policy: Chosen | None
    keeps_best: bool = False  #: whether it ends with the weights of its best validation point

    def name(self, seed: int) -> str:
        """A file name."""
        words = re.sub(r"[^a-z0-9]+", "_", self.label.lower()).strip("_")[:60]
        return f"{words}_{hashlib.sha256(self.label.encode()).hexdigest()[:6]}_s{seed}"

    def new_policy(self, seed: int) -> Policy | None:
        """A policy of one run alone, with its seed."""
        if isinstance(self.policy, Policy):
            policy = copy.deepcopy(self.policy)
            policy.seed = seed
            return policy
        named = self.policy and {k: v for k, v in self.policy.items() if k != "seed"}
        return as_policy(copy.deepcopy(named), seed)

    def random_control(self, entry: Entry) -> Method | None:
        """Random selection at the rate of a run; ``None`` if dense training is that control.

        The rate has three significant digits.
        """
        rate = float(f"{max(entry['rate'], 1e-4):.3g}")
        if rate >= 0.995 or isinstance(as_policy(self.policy), RandomSubset):
            return None
        return Method(f"random at {rate:.3g}", {"name": "random", "rate": rate})


@dataclass
class Best:
    """The best validation point of a run, and the weights there."""

    value: float | None = None
    step: int = 0
    flops: float | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)

    def look(self, value: float, higher: bool, trainer: Trainer) -> None:
        """Keep the weights of ``trainer`` if ``value`` is the best so far."""
        if self.value is not None and not (value > self.value if higher else value < self.value):
            return
        own = trainer.model.state_dict()
        self.weights = {name: part.detach().clone() for name, part in own.items()}
        self.value, self.step, self.flops = value, trainer.step, _flops(trainer.ledger)


class RunRecord:
    """An observer of what a run trains on, by row, and of its validation values.

    It does not wait for the device, and reads no reports, which come late. Rows are counted if
    batches are ``indexed``.

    Attributes:
        trained: int32 ``[PARTS, rows]``: how often each row was trained on in each part.
        losses: float32 ``[PARTS, rows]``: loss of its latest training or scoring in each part; NaN
            without one.
        predicted: int32 ``[rows]``: class predicted at the latest training; -1 before.
        points: lists ``[FLOPs, training seconds, value]``, at `POINTS` equal fractions of the
            budget and at its end; FLOPs are ``None`` if not countable.
        best: of the points, where that is wanted; else ``None``.
    """

    needs_outputs = True

    def __init__(
        self,
        rows: int,
        progress: Callable[[], float],
        device: torch.device,
        indexed: bool = True,
        keeps_best: bool = False,
    ) -> None:
        self.indexed, self.progress = indexed, progress
        self.best = Best() if keeps_best else None
        self.trained = torch.zeros(PARTS, rows, dtype=torch.int32, device=device)
        self.losses = torch.full((PARTS, rows), torch.nan, device=device)
        self.predicted = torch.full((rows,), -1, dtype=torch.int32, device=device)
        self.points: list[list[float | None]] = []
        self.reached = 0

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def watch(self, batch: Batch, result: StepResult) -> None:
        """Count a training step."""
        if not self.indexed:
            return
        assert batch.index is not None
        part = min(PARTS - 1, int(PARTS * self.progress()))
        index = batch.index.to(self.losses.device)
        seen, chosen = result.seen, result.selection
        if seen is not None and seen.evaluated:
            self.losses[part, index] = seen.losses.float()
        rows = index[result.rows.to(index.device)]
        times = torch.ones_like(rows, dtype=torch.int32)
        if chosen is not None:  # padding rows have weight 0
            weight = chosen.weight.reshape(len(chosen), -1).sum(1)[: len(rows)]
            times = (weight > 0).to(torch.int32)
        self.trained[part].index_add_(0, rows, times)
        self.losses[part, rows] = result.losses.float()
        if result.predictions.predicted is not None:
            self.predicted[rows] = result.predictions.predicted.to(torch.int32)

    def reach(self, done: bool, measure: Callable[[], list[float | None]]) -> None:
        """Validate if the next fraction of the budget is reached."""
        progress = self.progress()
        part = int(progress * POINTS)
        last_step_to_come = progress >= 1 and not done
        if part > self.reached and not last_step_to_come:
            self.points.append(measure())
            self.reached = part

    def by_row(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: getattr(self, name) for name in ("trained", "losses", "predicted")}

    def state_dict(self) -> dict[str, Any]:
        best = None if self.best is None else vars(self.best)
        return {**self.by_row(), "points": self.points, "reached": self.reached, "best": best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in self.by_row().items():
            value.copy_(state[name])
        self.points, self.reached = [list(each) for each in state["points"]], state["reached"]
        if self.best is not None:
            self.best = Best(**state["best"])


def train_method(
    task: Task,
    method: Method,
    seed: int,
    budget: Budget,
    folder: Path,
    *,
    resumable: bool = True,
    check: Callable[[Trainer], None] | None = None,
    show: Show = show_nothing,
    schedule_steps: int | None = None,
) -> Entry:
    """Train one method with one seed, evaluate it once on the test data; returns its entry.

    Args:
        folder: of the comparison; an interrupted run resumes from its checkpoints there.
        resumable: whether to write checkpoints.
        check: called with the trainer before it starts.
        show: likewise, ten times an epoch.
        schedule_steps: of a torch scheduler, see `Optimisation`.

    A run that diverges has the ``value`` ``None``, and ``failed`` gives the reason.
    """
    name, device = method.name(seed), choose_device(task.device)
    saved = folder / "checkpoints" / name
    source = selectable(task.train, seed)
    indexed = hasattr(source, "order")
    rows = source.num_samples or 0
    record = RunRecord(rows, lambda: trainer.progress, device, indexed, method.keeps_best)
    arrays: dict[str, Tensor] = {}
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
    if check is not None:
        check(trainer)
    failure: Entry | None = None
    try:
        train_to_end(trainer, task, record, arrays, show)
    except FloatingPointError as error:
        failure = {"value": None, "failed": str(error)}
    tested = failure or _test(trainer, task, arrays)
    entry = {
        "policy": method.label,
        "seed": seed,
        **_cost(trainer),
        **tested,
        "curve": record.points,
        "validation_rows": len(arrays["validation"]) if "validation" in arrays else None,
        "stamp": {key: value for key, value in stamp().items() if key in STAMPED},
        "visits": f"{name}.safetensors",
    }
    if record.best is not None and failure is None:
        entry |= {"best_step": record.best.step, "best_flops": record.best.flops}
    kept = {name: each.cpu().contiguous() for name, each in {**record.by_row(), **arrays}.items()}
    write_atomic(folder / RECORDS / entry["visits"], save(kept))
    path = write_json(folder / "entries" / f"{name}.json", entry)
    shutil.rmtree(saved, ignore_errors=True)
    return read_json(path)


def train_to_end(
    trainer: Trainer, task: Task, record: RunRecord, arrays: dict[str, Tensor], show: Show
) -> None:
    """Train, with validations by ``record``; ends at its best point, if that is kept."""
    measure = partial(_point, trainer, task, record, arrays)
    record.reach(trainer.done, measure)  # stopped between a step and this
    for _ in follow(trainer, show):
        record.reach(trainer.done, measure)
    if record.best is not None and record.best.weights:
        trainer.model.load_state_dict(record.best.weights)


def _point(
    trainer: Trainer, task: Task, record: RunRecord, arrays: dict[str, Tensor]
) -> list[float | None]:
    """FLOPs, seconds and value now; ``arrays`` keeps the value of each validation row."""
    measured = trainer.measure_validation()
    value, metric, higher = task.value(measured.values())
    if metric in measured.rows:
        arrays["validation"] = measured.rows[metric]
    if record.best is not None:
        record.best.look(value, higher, trainer)
    return [_flops(trainer.ledger), trainer.ledger.seconds["training"], value]


def _flops(ledger: Ledger) -> float | None:
    return None if ledger.uncounted else ledger.flops.total


def _cost(trainer: Trainer) -> Entry:
    ledger, counts = trainer.ledger, trainer.ledger.samples
    passes = ledger.flops.forward + ledger.flops.backward
    offered = max(1, counts.trained + counts.skipped + counts.unloaded)
    counted = ledger.flops_dense and not ledger.uncounted
    rate = passes / ledger.flops_dense if counted else counts.trained / offered
    energy = ledger.energy()
    return {
        "seconds": ledger.seconds["training"],
        "phases": ledger.phases,
        "joules": energy.joules,
        "joules_reason": energy.reason,
        "flops": _flops(ledger),
        "trained": counts.trained,
        "scored": counts.scored,
        "rate": min(1.0, rate),
        "steps": trainer.step,
        "optimizer_steps": trainer.optimisation.steps + trainer.optimisation.skipped,
        "uncounted": sorted(ledger.uncounted),
        "scores_counted": trainer.policy.cost is not None,
    }


def _test(trainer: Trainer, task: Task, arrays: dict[str, Tensor]) -> Entry:
    """Entry of one pass over the test data; ``arrays`` keeps the values of rows or parts."""
    first = task.metrics[0] if task.metrics else None
    keep = 0 if first is None or first.averaged else KEPT
    source = task.source("test")
    tested = trainer.measure(source, keep=keep)
    values = tested.values()
    value, metric, higher = task.value(values)
    groups = row_groups(source)
    if metric in tested.rows:
        arrays["test"] = _by_unit(tested.rows[metric], source, tested.rows.get("label"))
    elif first is not None and tested.kept is not None:
        arrays["test"] = _leave_out(first, tested.kept, source)
    return {
        "value": value,
        "metric": metric,
        "higher": higher,
        "test_rows": values["samples"],
        "test_groups": None if groups is None else len(groups.unique()),
    }


def _by_unit(values: Tensor, source: BatchSource, labels: Tensor | None) -> Tensor:
    """``values`` of the rows of ``source`` in the order of its data, or one for each group of them.

    Of rows that are sorted by ``labels`` the differences between classes are taken out, so that
    only neighbours that depend on each other seem to: intervals are for the given class shares.
    See `row_groups`, `by_group` and `sorted_by`.
    """
    order, groups = _order(source, len(values))
    values = values[order]
    if groups is not None:
        return by_group(values, groups)
    counted = values.isfinite()
    classes = torch.zeros(len(values)) if labels is None else labels[order]
    if sorted_by(classes[counted].numpy()):
        middle = centred(values[counted].double().numpy(), classes[counted].numpy())
        values[counted] = torch.from_numpy(middle).float()
    return values


def _order(source: BatchSource, rows: int) -> tuple[Tensor, Tensor | None]:
    """Places of the rows that ``source`` yields in the order of its data, and groups in it."""
    if not isinstance(source, Loader):
        return torch.arange(rows), None
    loaded, groups = source.order(0)[:rows], row_groups(source)
    order = loaded.argsort()
    return order, None if groups is None else groups[loaded[order]]


def _leave_out(metric: Metric, kept: Sequence[tuple[Any, Any]], source: BatchSource) -> Tensor:
    """Pseudo-values of a metric that is no mean over rows, for parts of the rows of ``source``."""
    outputs, targets = (join([pair[place] for pair in kept]) for place in (0, 1))
    whole = Batch(None, outputs, targets)
    order, groups = _order(source, whole.rows)

    def value(rows: Tensor) -> float:
        part, aggregate = whole.take(order[rows]), copy.deepcopy(metric.function)
        assert isinstance(aggregate, Aggregate)
        try:
            aggregate.update(part.x, part.y)
            return float(aggregate.compute())
        except (ValueError, RuntimeError, ZeroDivisionError):  # such as rows of one class
            return math.nan

    if groups is not None:
        return jackknife(value, parts_of_groups(groups))
    single = isinstance(targets, Tensor) and targets.reshape(whole.rows, -1).shape[1] == 1
    labels = targets.reshape(-1)[order].numpy() if single else np.zeros(whole.rows)
    return jackknife(value, parts_of_rows(whole.rows, dealt=sorted_by(labels)))


def selectable(data: Any, seed: int) -> BatchSource:
    """Training data as batches of a `Loader`, whose rows can be selected before loading.

    A loader that iterates in its own way is passed through; it has no ``order``.
    """
    data = open_data(data)
    return data.reseeded(seed) if isinstance(data, Loader) else as_loader(data, seed=seed)
