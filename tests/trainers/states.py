"""States of runs: whether two are equal, stopping a run, and handing one over to another.

And a policy with a memory, whose runs show what a state lacks.
"""

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from astkit.datasets import Batch
from astkit.gating import Policy, RunInfo, Selection, Visit
from astkit.trainers import SampleBySampleTrainer, Trainer
from astkit.trainers.optimisation import Optimisation

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


def outcome(trainer: Trainer) -> dict[str, Any]:
    """What a run leaves behind and that is no time: weights, optimizer, epochs, counts."""
    state = trainer.state_dict()
    return copy.deepcopy(
        {
            "weights": dict(trainer.model.state_dict()),
            "optimizer": trainer.optimizer.state_dict()["state"],
            "epochs": timeless(trainer.history.epochs),
            "samples": asdict(trainer.ledger.samples),
            "flops": asdict(trainer.ledger.flops),
            **{name: state[name] for name in ("step", "progress", "done", "policy", "batches")},
        }
    )


class Records:
    """Keeps the records of a run, over its checkpoints."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def log(self, step: int, *, phase: str, **metrics: Any) -> None:
        self.kept.append({"step": step, "phase": phase, **metrics})

    def close(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"kept": list(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]


class Hardest(Policy):
    """Of each third of an epoch the half with the highest losses so far."""

    rounds = 3
    needs_index = needs_outputs = True
    state = ("losses", "wrong")

    def __init__(self, rows: int) -> None:
        self.losses = torch.full((rows,), torch.inf)
        self.wrong = torch.zeros(rows, dtype=torch.int64)

    def plan(self, run: RunInfo) -> Selection:
        order = self.losses[run.rows].argsort(descending=True, stable=True)
        best = run.rows[order[: len(order) // 2]]
        weight = 1.0 + self.wrong[best]
        return Selection(best, weight, float(len(best)))

    def observe(self, visit: Visit) -> None:
        self.losses[visit.index] = visit.losses
        self.wrong[visit.index] += ~visit.correct


class Given:
    """Batches that are given, as they are."""

    num_samples = None

    def __init__(self, *batches: tuple[Tensor, Tensor]) -> None:
        self.given = batches

    def __len__(self) -> int:
        return len(self.given)

    def batches(self, epoch: int, order: Any = None, start: int = 0) -> Iterator[Batch]:
        for x, y in self.given[start:]:
            yield Batch(torch.arange(len(y)), x, y)


class Elsewhere(Tensor):
    """A tensor on the CPU that says it lies on an accelerator."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


def flagged(monkeypatch: Any, work: Optimisation) -> Optimisation:
    """``work``, which guards what it sees as on a device: with a flag, and without waiting."""
    assert work.finite.flagged  # a fused AdamW reads the flag
    check = work.finite.check
    monkeypatch.setattr(
        work.finite, "check", lambda value, what: check(value.as_subclass(Elsewhere), what)
    )
    return work


class Recording:
    """Keeps the rows of the data set that each step trained on, and its results."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.rows: list[list[int]] = []
        self.results: list[Any] = []
        super().__init__(*args, **options)

    def train_batch(self, batch: Any, weight: Any) -> Any:
        result = super().train_batch(batch, weight)
        repeated = weight is not None and not weight.any()
        self.rows.append([] if repeated else batch.index[result.rows].tolist())
        self.results.append(result)
        return result


class RecordedTrainer(Recording, Trainer): ...


class RecordedSampleTrainer(Recording, SampleBySampleTrainer): ...


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
