"""Arguments of `astkit.compare`: checked, completed from a task by name, and policies labelled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from torch import nn

from astkit.comparison.statistics import DENSE
from astkit.comparison.training import Chosen, Method, Task
from astkit.gating.policy import Policy, as_policy
from astkit.names import REGISTRIES
from astkit.tasks import task
from astkit.tasks.parts import PARTS
from astkit.trainers import Budget, TrainConfig
from astkit.trainers.evaluation import as_metrics
from astkit.trainers.fingerprint import plain


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
    words = {key: _word(value) for key, value in shown.items()}
    parts = [word if key == first else f"{key}={word}" for key, word in words.items()]
    parts.sort(key=lambda part: "=" in part)
    return names.get(place, kind.__name__) + (f"({', '.join(parts)})" if parts else "")


def _word(value: Any) -> str:
    if isinstance(value, bool | int | float | str | list | tuple | Mapping | None):
        return str(value)
    return str(getattr(value, "__name__", type(value).__name__))  # no address: it names files


def _given(policy: Policy) -> dict[str, Any]:
    """Arguments of ``policy`` that differ from the defaults; objects by their class."""
    parameters = inspect.signature(type(policy)).parameters
    held = policy.config()
    simple = {
        name: value
        for name, value in held.items()
        if name in parameters
        and isinstance(value, bool | int | float | str)
        and value != parameters[name].default
    }
    try:
        other = plain(type(policy)(**simple).config())
    except (TypeError, ValueError):  # an object is required
        other = {}
    now = plain(held)
    kinds = {k: type(v).__name__ for k, v in held.items() if now[k] != other.get(k)}
    return {**{k: v for k, v in kinds.items() if k != "seed"}, **simple}


KINDS: dict[str, tuple[Any, str]] = {
    "budget": (Budget | None, "a budget, such as Budget(epochs=5)"),
    "config": (TrainConfig | None, "a configuration, such as TrainConfig(lr=0.001)"),
    "criterion": (Callable | None, "a function, such as nn.MSELoss(reduction='none')"),
    "make_optimizer": (
        Callable | None,
        "a function, such as lambda model: torch.optim.SGD(model.parameters(), lr=0.1)",
    ),
    "seeds": (Iterable, "whole numbers, such as range(5)"),
    "minutes": (Real | None, "a number"),
    "jobs": (int, "a whole number"),
}
"""Types of the arguments of `compare`, and the words for them."""


def checked_methods(policies: Any) -> dict[str, Method]:
    """The policies by label, without "dense"; raises ``ValueError`` for invalid ones."""
    one = isinstance(policies, str | Mapping | Policy)
    every = [policies] if one else list(policies or [])
    found: dict[str, Method] = {}
    for each in every:
        if each == DENSE:  # always trained
            continue
        label = label_of(each)
        if label in found:
            raise ValueError(f"policies holds {label} twice: give each policy other arguments")
        if isinstance(each, Policy) and _used(each):
            raise ValueError(
                f"policies holds a {label} with what it observed in another run: pass a new one, or"
                " its name"
            )
        found[label] = Method(label, {"name": each} if isinstance(each, str) else each)
    if not found:
        raise ValueError(
            f"policies is {policies!r}: name at least one beside dense training, such as"
            " 'infobatch'"
        )
    return found


def _used(policy: Policy) -> bool:
    """Whether the state of ``policy`` is no longer that of a new one."""
    try:
        new = type(policy)(**policy.config())
    except (TypeError, ValueError):  # a constructor that does not store its arguments
        return False
    return bool(plain(policy.state_dict()) != plain(new.state_dict()))


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
            f"make_model returns models that share {shared[0]}, so that one run would train"
            " another's weights: build the whole model in each call, or copy the shared part"
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


def check_numbers(seeds: list[int], minutes: float | None, jobs: int, budget: Budget) -> None:
    """Raise ``ValueError`` for seeds, minutes, jobs or a budget that cannot be used."""
    whole = all(isinstance(seed, int) and seed >= 0 for seed in seeds)
    if not whole or len(set(seeds)) < len(seeds) or not (seeds or minutes is not None):
        raise ValueError(f"seeds is {seeds}: give different whole numbers, such as range(5)")
    if minutes is not None and not minutes > 0:
        raise ValueError(f"minutes is {minutes}: give a number above 0")
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}: give the number of processes, 1 or more")
    if budget.seconds is not None:
        raise ValueError(
            "budget is in seconds, which depend on the load of the machine: give epochs, steps or"
            " FLOPs"
        )
