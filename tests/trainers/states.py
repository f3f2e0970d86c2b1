"""Training states: whether two are equal, and handing one from a run to another."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

from torch import Tensor

TIMES = ("seconds", "joules", "joules_reason")


def same(a: Any, b: Any) -> bool:
    """Whether both hold the same, in the same types, orders and memory formats."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and a.stride() == b.stride()
            and bool((a == b).all())
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what a clock or a meter said."""
    return [{k: v for k, v in each.items() if k not in TIMES} for each in records]


def leave_after(trainer: Any, records: int) -> Any:
    """``trainer``, left in the middle of its run."""
    steps = trainer.steps()
    for _ in itertools.islice(steps, records):
        pass
    steps.close()
    return trainer


def hand_over(first: Any, second: Any) -> Any:
    """``second``, with a copy of all that ``first`` is: weights, optimizer and loop."""
    second.model.load_state_dict(copy.deepcopy(first.model.state_dict()))
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    return second
