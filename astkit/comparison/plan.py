"""What a comparison trains: the task that all runs share, its methods, and the plan of the runs.

Nothing here trains, and nothing here changes.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from astkit import rng
from astkit.aim.forecast import Forecast
from astkit.comparison.statistics import ALONE, BOTH, DENSE, NEAR, Entry
from astkit.comparison.verdict import unit
from astkit.datasets import BatchSource, Loader, as_loader
from astkit.datasets.batch import Batch
from astkit.datasets.foreign import check_unshuffled, open_data
from astkit.datasets.loader import old_rows
from astkit.gating.losses import Criterion, cross_entropy_rows
from astkit.gating.policies.random_subset import RandomSubset
from astkit.gating.policy import Policy, as_policy
from astkit.names import registered
from astkit.profiling.flops import RowFlops
from astkit.trainers import Budget, Metric, TrainConfig, Trainer, choose_device
from astkit.trainers.fingerprint import plain
from astkit.trainers.first_batch import initialise

Chosen = Policy | Mapping[str, Any]
Simple = bool | int | float | str
MakeOptimizer = Callable[[nn.Module], Any]

LEAST_FLOPS = 1000  # of training on a row, below which look-ups may take most of the time
SAME_RATE = 0.02  # of rates of random controls, relative: policies that near share one


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

    def at_rate(self, lr: float | None) -> Task:
        """The same with another learning rate; ``None``: with its own."""
        return self if lr is None else replace(self, config=replace(self.config, lr=lr))

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
        return as_loader(open_data(data), choose_device(self.device), shuffle=False)

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


def selectable(data: Any, seed: int) -> BatchSource:
    """Training data as batches of a `Loader`, whose rows can be selected before loading.

    A loader that iterates in its own way is passed through; it has no ``order``.
    """
    data = open_data(data)
    return data.reseeded(seed) if isinstance(data, Loader) else as_loader(data, seed=seed)


@dataclass(frozen=True)
class Method:
    """A way of training: a policy, or ``None`` for dense training."""

    label: str
    policy: Chosen | None
    keeps_best: bool = False  #: whether it ends with the weights of its best validation point

    def file_name(self, seed: int) -> str:
        """The name of a run's files."""
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


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison: dense training and all methods, for each seed at equal cost.

    Attributes:
        policies: the methods to be judged, by label.
        target_controls: with rows of a target, training on old and target rows alike, and on the
            target's alone; else none.
        selects: whether rows of the training data can be selected before loading, which random
            controls need.
        folder: of the results, where an interrupted run continues if it is ``resumable``.
    """

    task: Task
    policies: dict[str, Method]
    target_controls: dict[str, Method]
    selects: bool
    budget: Budget
    seeds: list[int]
    folder: Path
    resumable: bool
    forecast: Forecast | None = None

    dense: ClassVar[Method] = Method(DENSE, None)

    def new_policies(self) -> dict[str, Policy]:
        """A policy of each method to be judged, as the first seed has it."""
        made = {label: each.new_policy(self.seeds[0]) for label, each in self.policies.items()}
        return {label: policy for label, policy in made.items() if policy is not None}

    def trainer(self, policy: Policy | None = None, seed: int | None = None) -> Trainer:
        """A trainer of the first seed, or another one, that is not to be trained."""
        return self.task.trainer(policy, self.seeds[0] if seed is None else seed, self.budget)

    def run_budget(self, method: Method, dense: Entry | None) -> Budget:
        """Dense training has the budget given; other runs have what ``dense`` cost.

        Look-ups take time but no counted FLOPs: a model of little else is compared at equal rows.
        """
        if method.policy is None or dense is None:
            return self.budget
        if by_rows(dense):
            return Budget(rows=dense["trained"])
        counted = not dense["uncounted"]
        return Budget(flops=dense["flops"]) if counted else Budget(seconds=dense["seconds"])

    def random_controls(self, entries: Mapping[tuple[str, int], Entry]) -> dict[str, Method]:
        """Random selection at the rate of each policy for its first seed that did not fail.

        The rate has three significant digits. Policies of the same rate (to `SAME_RATE`) share a
        control; dense training is that of a policy which trains on all rows. Random subsets among
        the policies are the control of others of their rate.
        """
        controls: dict[str, Method] = {}
        policies = (as_policy(method.policy) for method in self.policies.values())
        given = [each.rate for each in policies if isinstance(each, RandomSubset)]
        rates: list[float] = []
        for label, method in self.policies.items():
            runs = (entries[label, seed] for seed in self.seeds if (label, seed) in entries)
            run = next((each for each in runs if "failed" not in each), None)
            if run is None or isinstance(as_policy(method.policy), RandomSubset):
                continue
            rate = float(f"{max(run['rate'], 1e-4):.3g}")
            known = any(abs(rate - each) <= SAME_RATE * each for each in rates)
            known |= any(abs(rate - each) <= NEAR * min(rate, 0.2) for each in given)
            if rate < 0.995 and not known:
                rates.append(rate)
                name = f"random at {rate:.3g}"
                controls[name] = Method(name, {"name": "random", "rate": rate})
        return controls if self.selects else {}


def by_rows(dense: Entry) -> bool:
    """Whether runs are compared with ``dense`` training at equal rows through the model."""
    counted = bool(dense.get("looks_up")) and not dense["uncounted"]
    return counted and dense["flops"] < LEAST_FLOPS * dense["trained"]


def controls_on_target(train: Any) -> dict[str, Method]:
    """Training on old and target rows alike, and on the target's alone; none without a target."""
    data = getattr(selectable(train, 0), "data", None)
    if data is None or old_rows(data) == len(data):
        return {}
    alone = (torch.arange(len(data)) >= old_rows(data)).float()
    return {
        BOTH: Method(BOTH, {"name": "weighted", "weights": torch.ones(len(data)), "cost": 0.0}),
        ALONE: Method(ALONE, {"name": "weighted", "weights": alone, "cost": 0.0}, keeps_best=True),
    }


# --- labels ---


def label_of(policy: Chosen) -> str:
    """The policy's name with the arguments given, such as "gate(0.25, score=entropy)"."""
    kind = type(as_policy(policy))
    arguments = _other_than_default(policy) if isinstance(policy, Policy) else policy
    first = next(iter(inspect.signature(kind).parameters), None)
    words = {key: _word(value) for key, value in arguments.items() if key not in ("name", "seed")}
    parts = [word if key == first else f"{key}={word}" for key, word in words.items()]
    parts.sort(key=lambda part: "=" in part)
    return registered("policy", kind) + (f"({', '.join(parts)})" if parts else "")


def _word(value: Any) -> str:
    if isinstance(value, bool | int | float | str | list | tuple | Mapping | None):
        return str(value)
    return str(getattr(value, "__name__", type(value).__name__))  # no address: it names files


def _other_than_default(policy: Policy) -> dict[str, Any]:
    """Arguments of ``policy`` that differ from the defaults; objects by their class."""
    parameters, config = inspect.signature(type(policy)).parameters, policy.config()
    known = {name: each for name, each in config.items() if isinstance(each, Simple)}
    simple = {name: each for name, each in known.items() if each != parameters[name].default}
    other: dict[str, Any] = {}
    with suppress(TypeError, ValueError):  # an object is required
        other = plain(type(policy)(**simple).config())
    objects = {
        name: each for name, each in config.items() if each is not None and name not in known
    }
    kinds = {name: type(v) for name, v in objects.items() if plain(v) != other.get(name)}
    return {**kinds, **simple}
