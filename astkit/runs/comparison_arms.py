"""Arms of `astkit.compare`: the shared task, and the training of one arm for one seed."""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from astkit import rng
from astkit.batch import count_rows
from astkit.datasets import BatchSource, Loader, as_loader
from astkit.gating import Criterion, Policy, RandomSubset, as_policy
from astkit.gating.losses import class_outputs
from astkit.gating.policy import overrides
from astkit.identity import configuration
from astkit.names import REGISTRIES
from astkit.runs.record import write_json
from astkit.runs.visits import Visits
from astkit.trainers import (
    Budget,
    Checkpoints,
    DenseStep,
    GatedStep,
    Metric,
    Observer,
    Step,
    TrainConfig,
    Trainer,
    choose_device,
)

Entry = dict[str, Any]
Chosen = Policy | Mapping[str, Any]

POINTS = 12
"""Validations per run, at equal fractions of the budget."""
PAUSE = 30.0
"""Minimum interval between checkpoints, in seconds."""
VISITS = "comparison_visits"
DENSE = "dense"


@dataclass(frozen=True)
class Task:
    """What all arms of a comparison share; the fields are arguments of `astkit.compare`."""

    make_model: Callable[[], nn.Module]
    train: Any
    validation: Any
    test: Any
    criterion: Criterion
    metrics: tuple[Metric, ...] = ()
    config: TrainConfig = field(default_factory=TrainConfig)
    batch_size: int | None = None
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    device: str = "auto"

    def model(self, seed: int) -> nn.Module:
        """A new model; its weights depend on ``seed`` only."""
        with rng.isolated(choose_device(self.device), seed, "model"):
            return self.make_model()

    def held(self, part: str) -> BatchSource:
        """The "validation" or "test" data, in order."""
        data = getattr(self, part)
        opened = data if isinstance(data, IterableDataset) else opened_loader(data)
        return as_loader(opened, choose_device(self.device), shuffle=False)

    def trainer(self, policy: Policy | None, seed: int, budget: Budget, **options: Any) -> Trainer:
        """A trainer of one arm that does not validate by itself.

        Raises ``ValueError`` for training data whose rows cannot be selected before loading.
        """
        model, config = self.model(seed), replace(self.config, seed=seed)
        optimizer = None if self.make_optimizer is None else self.make_optimizer(model)
        work = Trainer(
            model,
            selectable(self.train, seed),
            self.held("validation"),
            policy=policy,
            budget=budget,
            batch_size=self.batch_size,
            config=config,
            criterion=self.criterion,
            metrics=self.metrics,
            optimizer=optimizer,
            device=self.device,
            **options,
        )
        work.validation = None  # `Curve` validates; the policy knows the labels
        return work

    def settings(self, budget: Budget, seed: int = 0) -> dict[str, Any]:
        """What must be equal in all arms of a comparison, as plain values."""
        described = self.trainer(None, seed, budget).described()
        described = {k: v for k, v in described.items() if k not in ("seed", "policy", "step")}
        described["data"].pop("seed")
        return {
            **described,
            "validation rows": self.held("validation").num_samples,
            "test rows": self.held("test").num_samples,
            "criterion": configuration(self.criterion),
            "metrics": [[each.name, each.higher_is_better] for each in self.metrics],
        }


class Arm(NamedTuple):
    """One training: a policy, or ``None`` for dense, and a seed."""

    label: str
    policy: Chosen | None
    seed: int

    @property
    def name(self) -> str:
        """A file name."""
        words = re.sub(r"[^a-z0-9]+", "_", self.label.lower()).strip("_")[:60]
        return f"{words}_{hashlib.sha256(self.label.encode()).hexdigest()[:6]}_s{self.seed}"

    def fresh(self) -> Policy | None:
        """A policy of this arm alone, with the arm's seed."""
        if isinstance(self.policy, Policy):
            policy = copy.deepcopy(self.policy)
            policy.seed = self.seed
            return policy
        return as_policy(self.policy, self.seed)


def selectable(data: Any, seed: int) -> BatchSource:
    """Training data as batches of a `Loader`, whose rows can be selected before loading.

    Raises ``ValueError`` for data that cannot do so.
    """
    data = opened_loader(data)
    if isinstance(data, Loader):
        return data.reseeded(seed)
    source = as_loader(data, seed=seed)
    if not hasattr(source, "order") or not source.num_samples:
        raise ValueError(
            f"train is a {type(data).__name__} that loads all rows in its own order, so no random"
            " rows can be drawn for the controls: pass a map-style data set, or a DataLoader of one"
            " without its own sampler"
        )
    return source


def opened_loader(data: Any) -> Any:
    """A torch DataLoader of a map-style data set as a `Loader`; anything else unchanged."""
    samplers = (RandomSampler, SequentialSampler)
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return data
    if data.batch_size is None or type(data.sampler) not in samplers:
        return data
    rows: Any = data.dataset
    collate: Any = data.collate_fn
    if hasattr(rows, "indexed_data"):  # the Loader provides indices itself
        rows, collate = rows.indexed_data, getattr(collate, "args", (None,))[0]
    return Loader(
        rows,
        data.batch_size,
        shuffle=isinstance(data.sampler, RandomSampler),
        num_workers=data.num_workers,
        drop_last=data.drop_last,
        collate_fn=collate,
    )


def label_of(policy: str | Chosen) -> str:
    """The policy's name with the arguments given, such as "gate(0.25, score=entropy)"."""
    built = as_policy(policy)
    assert built is not None
    kind = type(built)
    place = f"{kind.__module__}:{kind.__qualname__}"
    names = {held: name for name, held in REGISTRIES["policy"].items()}
    if isinstance(policy, Policy):
        given = _given(built)
    else:
        given = {} if isinstance(policy, str) else dict(policy)
    shown = {key: value for key, value in given.items() if key not in ("name", "seed")}
    first = next(iter(inspect.signature(kind).parameters), None)
    parts = [str(value) if key == first else f"{key}={value}" for key, value in shown.items()]
    parts.sort(key=lambda part: "=" in part)
    return names.get(place, kind.__name__) + (f"({', '.join(parts)})" if parts else "")


def _given(policy: Policy) -> dict[str, Any]:
    """Arguments of ``policy`` that differ from the defaults; objects by their class."""
    parameters = inspect.signature(type(policy)).parameters
    held = policy.config()
    plain = {
        name: value
        for name, value in held.items()
        if name in parameters
        and isinstance(value, bool | int | float | str)
        and value != parameters[name].default
    }
    try:
        other = configuration(type(policy)(**plain).config())
    except (TypeError, ValueError):  # an object is required
        other = {}
    now = configuration(held)
    kinds = {k: type(v).__name__ for k, v in held.items() if now[k] != other.get(k)}
    return {**{k: v for k, v in kinds.items() if k != "seed"}, **plain}


class Curve:
    """An observer that validates at `POINTS` equal fractions of the budget and at its end.

    Attributes:
        points: lists ``[FLOPs, training seconds, value]``.
    """

    def __init__(self, measure: Callable[[], list[float]]) -> None:
        self.measure = measure
        self.points: list[list[float]] = []
        self.reached = 0

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        """Validate if the next fraction is reached."""
        part = int(metrics["progress"] * POINTS)
        due = part > self.reached if phase == "train" else phase == "epoch"
        if due and (part < POINTS) == (phase == "train"):
            self.points.append(self.measure())
            self.reached = part

    def close(self) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {"points": self.points, "reached": self.reached}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.points, self.reached = [list(each) for each in state["points"]], state["reached"]


class Recalls:
    """A metric that also counts rows and correct rows of each class, ``[2, classes]``."""

    def __init__(self) -> None:
        self.counts: Tensor | None = None

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Whether each row is correct, float ``[rows]``; zeros without classes."""
        found = class_outputs(outputs, targets)
        if found is None:
            return torch.zeros(count_rows(targets))
        logits, labels = found
        right, classes = logits.argmax(1) == labels, logits.shape[1]
        rows = [each.bincount(minlength=classes) for each in (labels, labels[right])]
        counts = torch.stack(rows)
        self.counts = counts if self.counts is None else self.counts + counts
        return right.float()

    def worst(self) -> float | None:
        """The lowest recall of a class that occurs; ``None`` without classes."""
        if self.counts is None:
            return None
        rows, right = self.counts[:, self.counts[0] > 0].double()
        return float((right / rows).min())


def value_of(found: Mapping[str, Any], metrics: tuple[Metric, ...]) -> tuple[float, str, bool]:
    """Value, name and direction (whether higher is better) of what a comparison compares.

    The first of ``metrics``; without metrics, the accuracy of a classifier, else the mean loss.
    """
    if metrics:
        first = metrics[0]
        return found[first.name], first.name, first.higher_is_better is not False
    if found["accuracy"] is not None:
        return found["accuracy"], "accuracy", True
    return found["loss"], "loss", False


def run_arm(
    task: Task,
    arm: Arm,
    budget: Budget,
    folder: Path,
    observers: tuple[Observer, ...] = (),
    *,
    resumable: bool = True,
    timed: bool = True,
) -> Entry:
    """Train one arm, evaluate it once on the test data and write its entry; returns the entry.

    Args:
        folder: of the comparison; an interrupted arm resumes from its checkpoints there.
        resumable: whether to write checkpoints.
        timed: whether no other arm runs at the same time.

    Raises ``FloatingPointError`` if dense training diverges; for a policy, the entry's ``value`` is
    then ``None``, and ``failed`` gives the reason.
    """
    policy, held = arm.fresh(), task.held("validation")
    chooses = policy is not None and overrides(policy, "choose")
    step: Step = GatedStep(policy) if chooses and policy is not None else DenseStep()
    rows = selectable(task.train, arm.seed).num_samples or 0
    device = choose_device(task.device)

    def measure() -> list[float]:
        ledger = work.ledger
        value = value_of(work.evaluate(held), task.metrics)[0]
        return [ledger.flops.total, ledger.seconds["training"], value]

    curve, visits = Curve(measure), Visits(step, rows, lambda: work.progress, device)
    saved = folder / "checkpoints" / arm.name
    kept = Checkpoints(saved, every=1, pause=PAUSE, best=None) if resumable else None
    work = task.trainer(
        policy,
        arm.seed,
        budget,
        step=visits,
        observers=[curve, *observers],
        checkpoints=kept,
        resume=resumable,
    )
    failed = None
    try:
        work.run()
    except FloatingPointError as error:
        if policy is None:
            raise
        failed = str(error)
    entry = {
        "policy": arm.label,
        "seed": arm.seed,
        **_cost(work),
        **({} if timed else {"seconds": None}),
        **(
            {"value": None, "worst_class": None, "failed": failed}
            if failed
            else _tested(work, task)
        ),
        "curve": curve.points,
        "visits": f"{arm.name}.safetensors",
    }
    visits.save(folder / VISITS / entry["visits"])
    write_json(folder / "entries" / f"{arm.name}.json", entry)
    shutil.rmtree(saved, ignore_errors=True)
    return entry


def _cost(work: Trainer) -> Entry:
    ledger, counts = work.ledger, work.ledger.samples
    passes = ledger.flops.forward + ledger.flops.backward
    offered = max(1, counts.trained + counts.skipped + counts.unloaded)
    rate = passes / ledger.flops_dense if ledger.flops_dense else counts.trained / offered
    return {
        "seconds": ledger.seconds["training"],
        "flops": ledger.flops.total,
        "trained": counts.trained,
        "scored": counts.scored,
        "rate": min(1.0, rate),
        "steps": work.position.step,
        "uncounted": sorted(ledger.uncounted),
    }


def _tested(work: Trainer, task: Task) -> Entry:
    recalls = Recalls()
    work.evaluator.metrics += (Metric("class recalls", recalls),)
    tested = work.evaluate(task.held("test"))
    value, metric, higher = value_of(tested, task.metrics)
    return {
        "value": value,
        "metric": metric,
        "higher": higher,
        "worst_class": recalls.worst(),
        "test_rows": tested["samples"],
    }


def control_of(entry: Entry, policy: Chosen) -> Arm | None:
    """Random selection at the realised rate of ``entry``; ``None`` if dense is that control."""
    rate = max(0.01, round(entry["rate"], 2))
    if rate >= 1 or isinstance(as_policy(policy), RandomSubset):
        return None
    return Arm(f"random at {rate:.2f}", {"name": "random", "rate": rate}, entry["seed"])
