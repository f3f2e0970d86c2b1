"""Checks of the arguments of `astkit.compare`, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from astkit.gating import Policy
from astkit.runs.comparison_task import DENSE, Chosen, Task, label_of
from astkit.tasks import task
from astkit.tasks.parts import PARTS
from astkit.trainers import Metric


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
    named |= {"make_model": given["make_model"], "metrics": _metrics(given["metrics"])}
    found = Task(**named)
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


def _metrics(metrics: Any) -> tuple[Metric, ...]:
    if isinstance(metrics, Metric):
        metrics = [metrics]
    if isinstance(metrics, Mapping):
        metrics = [Metric(name, function) for name, function in metrics.items()]
    for each in metrics or ():
        if not isinstance(each, Metric):
            raise ValueError(
                f"metrics holds a {type(each).__name__}: give functions (outputs, targets) ->"
                " [rows] by name, or Metric objects"
            )
    return tuple(metrics or ())


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
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    if not all(first.equal(second) for first, second in pairs):
        raise ValueError(
            "make_model returns different weights for the same seed: draw them with torch's default"
            " generator only"
        )
