"""The task that all arms of `astkit.compare` share, and an arm of it."""

from __future__ import annotations

import copy
import hashlib
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
from astkit.trainers import Budget, Metric, TrainConfig, Trainer, choose_device
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
            "make_model": configuration(self.make_model),
            "metrics": configuration(self.metrics),
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
        return as_policy(copy.deepcopy(named), self.seed)


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
