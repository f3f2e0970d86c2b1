"""The task that all arms of `astkit.compare` share, and their policies by label; both checked."""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from astkit import rng
from astkit.datasets import BatchSource, Loader, as_loader
from astkit.datasets.foreign import Indexed
from astkit.gating import Criterion, Policy, as_policy, cross_entropy_rows
from astkit.identity import configuration
from astkit.names import REGISTRIES
from astkit.runs.paired import DENSE
from astkit.tasks import task
from astkit.tasks.parts import PARTS
from astkit.trainers import Budget, Metric, TrainConfig, Trainer, choose_device
from astkit.trainers.evaluator import as_metrics
from astkit.trainers.resume import data_identity

Chosen = Policy | Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What all arms of a comparison share; the fields are arguments of `astkit.compare`."""

    make_model: Callable[[], nn.Module]
    train: Any
    validation: Any
    test: Any
    criterion: Criterion = cross_entropy_rows
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
        data = opened_loader(getattr(self, part))
        return as_loader(data, choose_device(self.device), shuffle=False)

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
            criterion=copy.deepcopy(self.criterion),  # it may have a state
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
        held = {part: data_identity(self.held(part)) for part in ("validation", "test")}
        return {
            **described,
            **held,
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
        named = self.policy and {k: v for k, v in self.policy.items() if k != "seed"}
        return as_policy(named, self.seed)


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
            " without its own sampler, worker_init_fn, or collate_fn of indexed rows"
        )
    return source


def opened_loader(data: Any) -> Any:
    """A torch DataLoader that loads each row once as a `Loader`; anything else unchanged."""
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return data
    rows: Any = data.dataset
    sampler: Any = data.sampler
    collate: Any = None if data.collate_fn is default_collate else data.collate_fn
    plain = type(sampler) in (RandomSampler, SequentialSampler) and len(sampler) == len(rows)
    if not plain or getattr(sampler, "replacement", False) or data.batch_size is None:
        return data
    if data.num_workers and data.worker_init_fn:
        return data
    if isinstance(rows, Indexed):  # the Loader provides indices itself
        own: Any = rows.collate(collate)
        if getattr(collate, "func", None) is own.func:
            collate = collate.args[0]
        elif collate is not None:
            return data
        rows = rows.indexed_data
    return Loader(
        rows,
        data.batch_size,
        shuffle=isinstance(sampler, RandomSampler),
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


def checked_policies(policies: Any) -> dict[str, Chosen]:
    """The policies by label, without "dense"; raises ``ValueError`` for invalid ones."""
    one = isinstance(policies, str | Mapping | Policy)
    every = [policies] if one else list(policies or [])
    found: dict[str, Chosen] = {}
    for each in every:
        if each == DENSE:  # always trained
            continue
        label = label_of(each)
        if label in found:
            raise ValueError(f"policies holds {label} twice: give each policy other arguments")
        found[label] = {"name": each} if isinstance(each, str) else each
    if not found:
        raise ValueError(
            f"policies is {policies!r}: name at least one beside dense, such as 'infobatch'"
        )
    return found


def checked_task(given: Mapping[str, Any]) -> Task:
    """The `Task` with the fields ``given``, those that are not ``None``.

    Raises ``ValueError`` for missing data and arguments that do not fit together.
    """
    for part in PARTS:
        if given[part] is None:
            raise ValueError(f"{part} is missing: pass data for it, or dataset='digits'")
    named = {name: value for name, value in given.items() if value is not None}
    needed = {"make_model": given["make_model"], "metrics": as_metrics(given["metrics"])}
    found = Task(**named | needed)
    _check_model(found)
    return found


def with_task(dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments ``given``, those that are ``None`` from the task ``dataset``.

    Raises ``ValueError`` for an unknown task, and if data are given too.
    """
    for part in PARTS:
        if given[part] is not None:
            raise ValueError(f"dataset is {dataset!r}, but {part} is given too: pass only one")
    known = task(dataset)
    return {name: known.get(name) if value is None else value for name, value in given.items()}


def _check_model(task: Task) -> None:
    make = task.make_model
    if isinstance(make, nn.Module) or not callable(make):
        raise ValueError(
            f"make_model is a {type(make).__name__}: pass a function without arguments that returns"
            " a new model"
        )
    one, other = task.model(0), task.model(0)
    if not isinstance(one, nn.Module):
        raise ValueError(f"make_model returns a {type(one).__name__}: return a torch module")
    if one is other:
        raise ValueError("make_model returns the same model twice: build a new one in each call")
    held = _addresses(one)
    if shared := [name for name, address in _addresses(other).items() if address in held.values()]:
        raise ValueError(
            f"make_model returns models that share {shared[0]}, so that one arm would train another"
            "'s weights: build the whole model in each call, or copy the shared part"
        )
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    if not all(first.equal(second) for first, second in pairs):
        raise ValueError(
            "make_model returns different weights for the same seed: draw them with torch's default"
            " generator only"
        )


def _addresses(model: nn.Module) -> dict[str, int]:
    """Where the tensors lie that training changes: those with gradients, and running statistics."""
    return {
        name: value.data_ptr()
        for name, value in model.state_dict(keep_vars=True).items()
        if value.numel() and (value.requires_grad or name.endswith("running_mean"))
    }
