"""Pilot of a comparison: what each policy can save on this machine, before anything is trained.

Seconds of an offered batch of B rows are measured in interleaved rounds on copies of the model:
dense training D (loading, forward, backward, optimizer and the loop), a scoring forward pass S,
and training T(n) on n rows. A policy that chooses after scoring then takes

    D - T(B) + S' + T(rate * B)

a batch, where S' is S, or the seconds of the policy's own ``choose`` where it can be called. One
that plans before loading takes ``rate * D``, and ``load + S`` for each row that it only scores. As
a share of D this is ``seconds``; the line through T(rate * B) and T(B) gives the rest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from astkit import rng
from astkit.batch import Batch
from astkit.gating import Policy
from astkit.gating.policy import overrides
from astkit.profiling import bootstrap_interval, interleaved
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.runs.comparison_arm import POINTS
from astkit.runs.comparison_task import Arm, Chosen, Task
from astkit.trainers import Budget, Trainer, choose_device

SECONDS, ROUNDS = 8.0, 15
"""The pilot measures as many rounds as take `SECONDS`, from 5 to `ROUNDS`."""


@dataclass(frozen=True)
class Prediction:
    """Predicted cost of one pass of a policy over the offered rows, as a share of dense's.

    Attributes:
        rate: share of the rows that is trained on; ``assumed`` says why if it depends on the data.
        seconds, low, high: median over the rounds, and its 95 % bootstrap interval.
        flops: scoring and training, without helper models.
        ceiling: speed-up over dense at a rate of 0; ``None`` for selection before loading.
        break_even: rate at which ``seconds`` is 1; 0 if scoring costs more than training.
    """

    policy: str
    rate: float
    seconds: float
    low: float
    high: float
    flops: float
    ceiling: float | None
    break_even: float
    assumed: str = ""

    @property
    def pays(self) -> bool:
        """Whether a pass may take less time than dense's, as far as the interval says."""
        return self.low < 1 or self.ceiling is None

    @property
    def measured(self) -> str:
        """The prediction in words."""
        most = "" if self.ceiling is None else f", speed-up at most {self.ceiling:.2f}"
        note = f" ({self.assumed})" if self.assumed else ""
        return (
            f"a pass at rate {self.rate:.2f}{note} takes {self.seconds:.2f} of dense's seconds"
            f" [{self.low:.2f}, {self.high:.2f}], break-even rate {self.break_even:.2f}{most}"
        )


@dataclass(frozen=True)
class Pilot:
    """Measurements of a pilot.

    Attributes:
        batch: rows per batch; ``rows``: rows of the training data.
        seconds: per batch: medians of "dense" and "score", means of "load", "forward", "backward"
            and "optimizer" in dense training; and "start" of an arm.
        flops: of a forward and a backward pass per row; 0 if they cannot be counted.
        predictions: one per policy.
    """

    batch: int
    rows: int
    seconds: dict[str, float]
    flops: float
    predictions: tuple[Prediction, ...]

    def of(self, label: str) -> Prediction | None:
        """The prediction for a policy; ``None`` for dense and random controls."""
        return next((each for each in self.predictions if each.policy == label), None)

    def arm_seconds(self, label: str, budget: Budget, held_rows: int) -> float:
        """Estimated seconds of one arm, including ``held_rows`` rows that it evaluates."""
        if budget.steps is not None:
            batches: float = budget.steps
        elif budget.flops is not None:
            batches = budget.flops / max(1.0, self.flops) / self.batch
        else:
            batches = (budget.epochs or 0.0) * self.rows / self.batch
        found = self.of(label)
        slower = found.seconds / found.flops if found is not None else 1.0
        evaluation = self.seconds["score"] * held_rows / self.batch
        return self.seconds["start"] + batches * self.seconds["dense"] * slower + evaluation

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Pilot:
        """The pilot that `to_dict` described."""
        made = tuple(Prediction(**each) for each in values["predictions"])
        return cls(**{**values, "predictions": made})


def held_rows(task: Task) -> int:
    """Rows that each arm evaluates."""
    sizes = [task.held(part).num_samples or 0 for part in ("validation", "test")]
    return POINTS * sizes[0] + sizes[1]


def measure(task: Task, policies: Mapping[str, Chosen], seed: int = 0) -> Pilot:
    """Measure a few dozen batches, and predict the cost of each of ``policies`` (by label).

    Models are built for it, and the global RNG is left alone. Raises ``ValueError`` for data,
    models and criteria that do not fit together.
    """
    with rng.isolated(choose_device(task.device), seed, "pilot"):
        begin = time.perf_counter()
        work = task.trainer(None, seed, Budget(epochs=1e9))
        steps = work.steps()
        try:
            next(steps)  # resolves "auto" settings, counts FLOPs
            started = time.perf_counter() - begin
            made = {label: Arm(label, each, seed).fresh() for label, each in policies.items()}
            return _measured(work, steps, {k: v for k, v in made.items() if v}, started)
        finally:
            steps.close()


def _measured(
    work: Trainer, steps: Iterator[object], policies: Mapping[str, Policy], started: float
) -> Pilot:
    batch = work.learner.prepare(work.feed.peek())
    found = _timed(work, steps, batch, policies)
    cost, rows = work.costs.of(batch, work.train.check_labels), batch.rows
    made = [
        _scoring(k, v, found, rows) if _choosing(v) else _planning(k, v, found)
        for k, v in policies.items()
    ]
    parts = {name: work.ledger.phases.get(name, 0.0) / work.position.step for name in _PHASES}
    seconds = {
        "dense": statistics.median(found.dense),
        "score": statistics.median(found.score),
        "start": started,
        **parts,
    }
    flops = 0.0 if cost.uncounted else cost.training
    return Pilot(rows, work.train.num_samples or 0, seconds, flops, tuple(made))


_PHASES = ("load", "forward", "backward", "optimizer")


class _Times(NamedTuple):
    """Seconds of each round; ``load`` of a batch, and the forward pass's share of the FLOPs."""

    dense: tuple[float, ...]
    score: tuple[float, ...]
    training: dict[int, tuple[float, ...]]  # by number of rows
    chosen: dict[str, tuple[float, ...]]  # by policy
    load: float
    forward: float


def _timed(
    work: Trainer, steps: Iterator[object], batch: Batch, policies: Mapping[str, Policy]
) -> _Times:
    learner = work.learner
    sizes = {batch.rows, *(_rows(v, batch.rows) for v in policies.values() if _choosing(v))}
    callable_ = [k for k, v in policies.items() if _choosing(v) and _alone(v)]

    def train(rows: int) -> Callable[[], object]:
        part = batch.take(slice(0, rows))
        return lambda: learner.train(part.x, part.y, ledger=Ledger())

    def choose(policy: Policy) -> Callable[[], object]:
        return lambda: policy.choose(learner.scored(batch))

    training = {rows: train(rows) for rows in sizes}
    chosen = {label: choose(policies[label]) for label in callable_}
    arms: dict[str, Callable[[], object]] = {
        "dense": lambda: next(steps),
        "score": lambda: learner.scored(batch).losses,
        **{f"train {rows}": each for rows, each in training.items()},
        **{f"choose {label}": each for label, each in chosen.items()},
    }
    wait = synchronizer(work.device)
    first = interleaved(arms, rounds=2, warmup=1, synchronize=wait)
    once = sum(map(first.median, arms))
    rounds = max(5, min(ROUNDS, int(SECONDS / max(once, 1e-9))))
    seconds = interleaved(arms, rounds=rounds, warmup=0, synchronize=wait).seconds
    cost = work.costs.of(batch, work.train.check_labels)
    return _Times(
        seconds["dense"],
        seconds["score"],
        {rows: seconds[f"train {rows}"] for rows in training},
        {label: seconds[f"choose {label}"] for label in chosen},
        work.ledger.phases["load"] / work.position.step,
        cost.forward / cost.training if cost.training else 1 / 3,
    )


def _alone(policy: Policy) -> bool:
    """Whether ``choose`` works without ``plan`` and ``prepare``."""
    return not overrides(policy, "plan") and not overrides(policy, "prepare")


def _choosing(policy: Policy | None) -> bool:
    return policy is not None and overrides(policy, "choose")


def _rate(policy: Policy) -> float:
    """Share of the rows that is trained on, as far as known without the data."""
    if _choosing(policy):
        return float(getattr(policy, "target_rate", getattr(policy, "rate", 1.0)))
    many = 1_000_000
    return min(1.0, policy.expected_rows(many) / many, 1 - policy.cost.forwards)


def _rows(policy: Policy, rows: int) -> int:
    return min(rows, max(2, round(_rate(policy) * rows)))


def _planning(label: str, policy: Policy, found: _Times) -> Prediction:
    rate, scored = _rate(policy), policy.cost.forwards
    extra = [scored * (found.load + s) / d for d, s in zip(found.dense, found.score, strict=True)]
    assumed = "assumed: it depends on the data" if rate == 1 or scored else ""
    seconds = [rate + each for each in extra]
    return _summary(label, rate, seconds, rate + scored * found.forward, None, 1.0, assumed)


def _scoring(label: str, policy: Policy, found: _Times, rows: int) -> Prediction:
    rate, n, cost = _rate(policy), _rows(policy, rows), policy.cost
    passes = cost.forwards + cost.helpers
    whole, part = found.training[rows], found.training[n]
    chosen = found.chosen.get(label) or tuple(passes * each for each in found.score)
    rounds = zip(found.dense, chosen, part, whole, strict=True)
    seconds = [1 + (c + p - w) / d for d, c, p, w in rounds]
    d, c, w, p = map(statistics.median, (found.dense, chosen, whole, part))
    slope = (w - p) / (1 - n / rows) if n < rows else w  # what the rows of a batch cost
    ceiling = d / max(d + c - slope, 1e-12)
    break_even = max(0.0, 1 - c / slope) if slope > 0 else 0.0
    assumed = "assumed for every batch" if overrides(policy, "plan") else ""
    flops = rate + passes * found.forward
    return _summary(label, rate, seconds, flops, ceiling, break_even, assumed)


def _summary(
    label: str,
    rate: float,
    seconds: list[float],
    flops: float,
    ceiling: float | None,
    break_even: float,
    assumed: str,
) -> Prediction:
    low, high = bootstrap_interval(seconds)
    middle = statistics.median(seconds)
    return Prediction(label, rate, middle, low, high, flops, ceiling, break_even, assumed)
