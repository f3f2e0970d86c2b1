"""One arm of `astkit.compare`: training, validation curve, test value and cost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astkit.batch import count_rows, tensors
from astkit.gating import RandomSubset, as_policy
from astkit.gating.losses import class_outputs
from astkit.gating.policy import overrides
from astkit.profiling import EnergyMeter, Ledger
from astkit.runs.comparison_task import Arm, Chosen, Task, selectable
from astkit.runs.paired import RANDOM
from astkit.runs.record import read_json, write_json
from astkit.runs.visits import Visits
from astkit.stamp import stamp
from astkit.trainers import (
    Budget,
    Checkpoints,
    DenseStep,
    GatedStep,
    Learner,
    Metric,
    Observer,
    Step,
    Trainer,
    choose_device,
)

Entry = dict[str, Any]

POINTS = 12  # validations per run, at equal fractions of the budget
PAUSE = 30.0  # minimum interval between checkpoints, in seconds
VISITS = "comparison_visits"
STAMPED = ("source", "commit", "dirty", "torch", "cpu", "devices")  # calls may differ in them


class Curve:
    """An observer that validates at `POINTS` equal fractions of the budget and at its end.

    Attributes:
        points: lists ``[FLOPs, training seconds, value]``; FLOPs are ``None`` if not countable.
    """

    def __init__(self, measure: Callable[[], list[float | None]]) -> None:
        self.measure = measure
        self.points: list[list[float | None]] = []
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

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.counts: Tensor | None = None

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Whether each row is correct, float ``[rows]``; zeros without classes."""
        found = class_outputs(outputs, targets) if self.learner.classifying else None
        if found is None:
            return torch.zeros(count_rows(targets), device=next(tensors(targets)).device)
        logits, labels = found
        right, classes = logits.argmax(1) == labels, logits.shape[1]
        rows = [each[each >= 0].bincount(minlength=classes) for each in (labels, labels[right])]
        counts = torch.stack(rows).cpu()
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
    step: Step = GatedStep(policy) if policy is not None and chooses else DenseStep()
    rows = selectable(task.train, arm.seed).num_samples or 0
    device = choose_device(task.device)

    def measure() -> list[float | None]:
        value = value_of(work.evaluate(held), task.metrics)[0]
        return [_flops(work.ledger), work.ledger.seconds["training"], value]

    curve, visits = Curve(measure), Visits(step, rows, lambda: work.progress, device)
    saved = folder / "checkpoints" / arm.name
    kept = Checkpoints(saved, every=1, pause=PAUSE) if resumable else None
    work = task.trainer(
        policy,
        arm.seed,
        budget,
        step=visits,
        observers=[curve, *observers],
        checkpoints=kept,
        resume=resumable,
        meter=EnergyMeter(device),
    )
    failure = None
    try:
        work.run()
    except FloatingPointError as error:
        if policy is None:
            raise
        failure = {"value": None, "worst_class": None, "failed": str(error)}
    entry = {
        "policy": arm.label,
        "seed": arm.seed,
        **_cost(work),
        **({} if timed else {"seconds": None, "joules": None, "joules_reason": "parallel arms"}),
        **(failure or _tested(work, task)),
        "curve": curve.points,
        "stamp": {name: value for name, value in stamp().items() if name in STAMPED},
        "visits": f"{arm.name}.safetensors",
    }
    visits.save(folder / VISITS / entry["visits"])
    path = write_json(folder / "entries" / f"{arm.name}.json", entry)
    shutil.rmtree(saved, ignore_errors=True)
    return read_json(path)


def _flops(ledger: Ledger) -> float | None:
    return None if ledger.uncounted else ledger.flops.total


def _cost(work: Trainer) -> Entry:
    ledger, counts = work.ledger, work.ledger.samples
    passes = ledger.flops.forward + ledger.flops.backward
    offered = max(1, counts.trained + counts.skipped + counts.unloaded)
    counted = ledger.flops_dense and not ledger.uncounted
    rate = passes / ledger.flops_dense if counted else counts.trained / offered
    energy = ledger.energy()
    return {
        "seconds": ledger.seconds["training"],
        "joules": energy.joules,
        "joules_reason": energy.reason,
        "flops": _flops(ledger),
        "trained": counts.trained,
        "scored": counts.scored,
        "rate": min(1.0, rate),
        "steps": work.position.step,
        "uncounted": sorted(ledger.uncounted),
    }


def _tested(work: Trainer, task: Task) -> Entry:
    recalls = Recalls(work.learner)
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
    return Arm(f"{RANDOM}{rate:.2f}", {"name": "random", "rate": rate}, entry["seed"])
