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

import copy
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from astkit import rng
from astkit.batch import Batch
from astkit.gating import Policy
from astkit.gating.policy import overrides
from astkit.profiling import bootstrap_interval, interleaved
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.runs.comparison_arms import POINTS, Arm, Chosen, Task
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
        ceiling: largest speed-up over dense, at a rate of 0; ``None`` without a limit.
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
        return self.break_even >= 1 or self.low < 1

    def __str__(self) -> str:
        most = "" if self.ceiling is None else f", speed-up at most {self.ceiling:.2f}"
        note = f" ({self.assumed})" if self.assumed else ""
        return (
            f"{self.policy}: a pass at rate {self.rate:.2f}{note} takes {self.seconds:.2f} of"
            f" dense's seconds [{self.low:.2f}, {self.high:.2f}]; break-even rate"
            f" {self.break_even:.2f}{most}"
        )


@dataclass(frozen=True)
class Pilot:
    """Measurements of a pilot.

    Attributes:
        batch: rows per batch; ``rows``: rows of the training data.
        seconds: per batch, medians: "dense", "score", and "load", "forward", "backward" and
            "optimizer" of dense training.
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
        return batches * self.seconds["dense"] * slower + evaluation

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
        return _measured(task, policies, seed)


def _measured(task: Task, policies: Mapping[str, Chosen], seed: int) -> Pilot:
    work = task.trainer(None, seed, Budget(epochs=1e9))
    steps = work.steps()
    try:
        next(steps)  # resolves "auto" settings
        made = {label: Arm(label, spec, seed).fresh() for label, spec in policies.items()}
        batch = work.learner.prepare(work.feed.peek())
        probe = _Probe(work, batch)
        arms: dict[str, Callable[[], object]] = {
            "dense": lambda: next(steps),
            "score": probe.score,
            **{f"train {rows}": probe.train(rows) for rows in sorted(probe.sizes(made))},
            **{f"choose {label}": probe.choose(p) for label, p in made.items() if probe.chooses(p)},
        }
        wait = synchronizer(work.device)
        first = interleaved(arms, rounds=2, warmup=1, synchronize=wait)
        once = sum(map(first.median, arms))
        rounds = max(5, min(ROUNDS, int(SECONDS / max(once, 1e-9))))
        timed = interleaved(arms, rounds=rounds, warmup=0, synchronize=wait)
        done = work.position.step
        cost = work.costs.of(batch, work.train.check_labels)
    finally:
        steps.close()
    parts = {name: work.ledger.phases.get(name, 0.0) / done for name in _PHASES}
    seconds = {**parts, "dense": timed.median("dense"), "score": timed.median("score")}
    share = cost.forward / cost.training if cost.training else 1 / 3
    found = [
        _predict(label, policy, batch.rows, timed.seconds, seconds["load"], share)
        for label, policy in made.items()
        if policy is not None
    ]
    known = 0.0 if cost.uncounted else cost.training
    return Pilot(batch.rows, work.train.num_samples or 0, seconds, known, tuple(found))


_PHASES = ("load", "forward", "backward", "optimizer")


class _Probe:
    """Parts of a training step on one batch, to be timed."""

    def __init__(self, work: Trainer, batch: Batch) -> None:
        self.work, self.batch = work, batch

    def sizes(self, policies: Mapping[str, Policy | None]) -> set[int]:
        """Numbers of rows to train on: the whole batch, and those of the policies that choose."""
        rows = {_rows(each, self.batch.rows) for each in policies.values() if _choosing(each)}
        return {self.batch.rows, *rows}

    def score(self) -> object:
        return self.work.learner.scored(self.batch).losses

    def train(self, rows: int) -> Callable[[], object]:
        learner, part = self.work.learner, self.batch.take(slice(0, rows))
        return lambda: learner.train(part.x, part.y, ledger=Ledger())

    def choose(self, policy: Policy | None) -> Callable[[], object]:
        assert policy is not None
        return lambda: policy.choose(self.work.learner.scored(self.batch))

    def chooses(self, policy: Policy | None) -> bool:
        """Whether ``choose`` can be called without ``prepare`` and ``plan``, and selects rows."""
        if not _choosing(policy) or overrides(policy, "plan") or overrides(policy, "prepare"):
            return False
        assert policy is not None
        copy.deepcopy(policy).choose(self.work.learner.scored(self.batch))  # raises if it cannot
        return True


def _choosing(policy: Policy | None) -> bool:
    return policy is not None and overrides(policy, "choose")


def _rate(policy: Policy, samples: int) -> float:
    if _choosing(policy):
        return float(getattr(policy, "target_rate", getattr(policy, "rate", 1.0)))
    return min(1.0, policy.expected_rows(samples) / samples)


def _rows(policy: Policy | None, rows: int) -> int:
    assert policy is not None
    return min(rows, max(2, round(_rate(policy, rows) * rows)))


def _predict(
    label: str,
    policy: Policy,
    rows: int,
    timed: Mapping[str, tuple[float, ...]],
    load: float,
    forward: float,
) -> Prediction:
    """The prediction; ``forward``: share of the forward pass in the FLOPs of training."""
    dense, score, whole = timed["dense"], timed["score"], timed[f"train {rows}"]
    rate, cost = _rate(policy, 1_000_000), policy.cost
    extra = cost.forwards + cost.helpers
    flops = rate + extra * forward
    if not _choosing(policy):
        only = [cost.forwards * (load + s) / d for d, s in zip(dense, score, strict=True)]
        shares = [rate + each for each in only]
        free = statistics.median(only)
        assumed = "" if rate < 1 else "its rate depends on the data, and may be lower"
        ceiling = 1 / free if free else None
        return _summary(label, rate, shares, flops, ceiling, 1 - free, assumed)
    n = _rows(policy, rows)
    part = timed[f"train {n}"]
    chosen = timed.get(f"choose {label}") or tuple(extra * each for each in score)
    shares = [1 + (c + p - w) / d for d, c, p, w in zip(dense, chosen, part, whole, strict=True)]
    d, c, w = map(statistics.median, (dense, chosen, whole))
    saved = w - statistics.median(part)
    slope = saved / (1 - n / rows) if n < rows else w  # seconds per batch at rate 1
    assumed = "assumed in every batch" if overrides(policy, "plan") else ""
    ceiling = d / max(d + c - slope, 1e-12)
    break_even = max(0.0, 1 - c / slope) if slope > 0 else 0.0
    return _summary(label, rate, shares, flops, ceiling, break_even, assumed)


def _summary(
    label: str,
    rate: float,
    shares: list[float],
    flops: float,
    ceiling: float | None,
    break_even: float,
    assumed: str,
) -> Prediction:
    low, high = bootstrap_interval(shares)
    middle = statistics.median(shares)
    return Prediction(label, rate, middle, low, high, flops, ceiling, break_even, assumed)
