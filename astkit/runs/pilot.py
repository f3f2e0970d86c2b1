"""Pilot of a comparison: what each policy can save on this machine, before anything is trained.

Seconds of an offered batch of B rows are measured in interleaved rounds on copies of the model:
dense training D (loading, forward, backward, optimizer and the loop), a scoring forward pass S,
and training T(n) on n rows; where one thread does all, CPU seconds, which other processes disturb
less. A policy that chooses after scoring then takes

    D - T(B) + S' + T(rate * B)

a batch, where S' is S, or the mean seconds of the policy's own ``choose`` if it takes longer. The
line through T(rate * B) and T(B) gives the rate at which this equals D. A policy that plans before
loading takes fewer batches, which cost D less what T(B) grows with the rows, and each row of them;
rows that it only scores are loaded and cost S.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from astkit import rng
from astkit.batch import Batch
from astkit.gating import Policy
from astkit.gating.policy import overrides
from astkit.profiling import Timings, bootstrap_interval, interleaved
from astkit.profiling.ledger import Ledger, synchronizer
from astkit.runs.comparison_arm import POINTS
from astkit.runs.comparison_task import Arm, Chosen, Task
from astkit.trainers import Budget, Trainer, choose_device

SHARE, ROUNDS = 0.01, 16  # of the comparison's time, for 5 to `ROUNDS` rounds
PHASES = ("load", "forward", "backward", "optimizer")


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
        config: settings of training, with "auto" resolved; see `settled`.
    """

    batch: int
    rows: int
    seconds: dict[str, float]
    flops: float
    predictions: tuple[Prediction, ...]
    config: dict[str, Any] = field(default_factory=dict)

    def of(self, label: str) -> Prediction | None:
        """The prediction for a policy; ``None`` for dense and random controls."""
        return next((each for each in self.predictions if each.policy == label), None)

    def settled(self, task: Task) -> Task:
        """``task`` with `config`: arms that resolved "auto" by themselves might differ."""
        return replace(task, config=replace(task.config, **self.config))

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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Pilot:
        """The pilot of which ``dataclasses.asdict`` gave ``values``."""
        made = tuple(Prediction(**each) for each in values["predictions"])
        return cls(**{**values, "predictions": made})


def held_rows(task: Task) -> int:
    """Rows that each arm evaluates."""
    sizes = [task.held(part).num_samples or 0 for part in ("validation", "test")]
    return POINTS * sizes[0] + sizes[1]


def measure(
    task: Task, policies: Mapping[str, Chosen], seed: int = 0, steps: float = math.inf
) -> Pilot:
    """Measure a few dozen batches, and predict the cost of each of ``policies`` (by label).

    ``steps``: number of batches of the comparison, which limits the number of rounds.
    Models are built for it, and the global RNG is left alone. Raises ``ValueError`` for data,
    models and criteria that do not fit together.
    """
    with rng.isolated(choose_device(task.device), seed, "pilot"):
        begin = time.perf_counter()
        work = task.trainer(None, seed, Budget(epochs=1e9))
        with closing(work.steps()) as dense:
            next(dense)  # resolves "auto" settings, counts FLOPs
            parts = {"start": time.perf_counter() - begin}
            made = {label: Arm(label, each, seed).fresh() for label, each in policies.items()}
            chosen = {label: policy for label, policy in made.items() if policy is not None}
            batch = work.learner.prepare(work.feed.peek())
            cost = work.costs.of(batch, work.train.check_labels)
            times = _timed(work, dense, batch, chosen, steps)
        parts |= {name: times.median(name) for name in ("dense", "score")}
        parts |= {name: work.ledger.phases.get(name, 0.0) / work.position.step for name in PHASES}
        samples = work.train.num_samples or batch.rows
        forward = cost.forward / cost.training if cost.training else 1 / 3
        found = _Times(times, batch.rows, samples, parts["load"], forward)
        predictions = tuple(found.prediction(label, policy) for label, policy in chosen.items())
        flops = 0.0 if cost.uncounted else cost.training
        config = work.setting_up.config.to_dict()
        return Pilot(batch.rows, samples, parts, flops, predictions, config)


def _timed(
    work: Trainer,
    dense: Iterator[object],
    batch: Batch,
    policies: Mapping[str, Policy],
    steps: float,
) -> Timings:
    """Seconds of each part in each round."""
    learner = work.learner

    def train(rows: int) -> Callable[[], object]:
        part = batch.take(slice(0, rows))
        return lambda: learner.train(part.x, part.y, ledger=Ledger())

    def choose(policy: Policy) -> Callable[[], object]:
        return lambda: policy.choose(learner.scored(batch))

    choosing = {label: each for label, each in policies.items() if overrides(each, "choose")}
    alone = {  # the others choose only after their plan, or with their helper models
        label: each
        for label, each in choosing.items()
        if not overrides(each, "plan") and not overrides(each, "prepare")
    }
    shares = {1.0, 0.25, *map(_rate, choosing.values())}
    arms: dict[str, Callable[[], object]] = {
        "dense": lambda: next(dense),
        "score": lambda: learner.scored(batch).losses,
        **{f"train {rows}": train(rows) for rows in {_part(each, batch.rows) for each in shares}},
        **{f"choose {label}": choose(policy) for label, policy in alone.items()},
    }
    wait = synchronizer(work.device)
    workers = getattr(getattr(work.train, "settings", None), "num_workers", 1)
    one_thread = wait is None and torch.get_num_threads() == 1 and workers == 0
    clock = time.process_time if one_thread else time.perf_counter
    first = interleaved(arms, rounds=2, warmup=1, clock=clock, synchronize=wait)
    allowed = SHARE * steps * first.median("dense") / max(sum(map(first.median, arms)), 1e-9)
    rounds = max(3, int(min(ROUNDS, allowed)) - 2)
    rest = interleaved(arms, rounds=rounds, warmup=0, clock=clock, synchronize=wait)
    return Timings({name: first.seconds[name] + rest.seconds[name] for name in arms}, "dense")


class _Times(NamedTuple):
    """What turns seconds into predictions.

    ``rows`` of a batch; ``samples`` of the data; seconds to ``load`` a batch; ``forward``: share of
    the forward pass in the FLOPs of training.
    """

    times: Timings
    rows: int
    samples: int
    load: float
    forward: float

    def prediction(self, label: str, policy: Policy) -> Prediction:
        rate, cost = _rate(policy), policy.cost
        scored, ceiling, break_even = cost.forwards + cost.helpers, None, 1.0
        if overrides(policy, "choose"):
            shares, ceiling, break_even, always = self._choosing(label, rate, scored)
            assumed = "" if always and not overrides(policy, "plan") else "assumed for every batch"
        else:
            shares = self._planning(rate, scored)
            assumed = "assumed: it depends on the data" if rate == 1 or scored else ""
        low, high = bootstrap_interval(shares)
        flops, middle = rate + scored * self.forward, statistics.median(shares)
        return Prediction(label, rate, middle, low, high, flops, ceiling, break_even, assumed)

    def _planning(self, rate: float, scored: float) -> list[float]:
        """Seconds of a pass over dense's: steps of whole batches, and rows that are only scored."""
        slope = self._slope(0.25) / self.rows
        rows = max(1, round(rate * self.samples))
        steps, every = (math.ceil(each / self.rows) for each in (rows, self.samples))
        seconds, shares = self.times.seconds, []
        for dense, score in zip(seconds["dense"], seconds["score"], strict=True):
            step = max(0.0, dense - slope * self.rows)  # what does not depend on the rows
            only = scored * self.samples * (self.load + score) / self.rows
            total = every * step + slope * self.samples
            shares.append((steps * step + slope * rows + only) / total)
        return shares

    def _choosing(
        self, label: str, rate: float, scored: float
    ) -> tuple[list[float], float, float, bool]:
        """Seconds of a batch over dense's, ceiling, break-even rate; whether it always scores."""
        seconds, part = self.times.seconds, _part(rate, self.rows)
        dense, expected = self.times.median("dense"), scored * self.times.median("score")
        # the mean, since helper models are not trained in every batch
        own = statistics.mean(seconds.get(f"choose {label}", (expected,)))
        c = max(own, expected)
        pairs = (seconds["dense"], seconds[f"train {part}"], seconds[f"train {self.rows}"])
        shares = [1 + (c + t - w) / d for d, t, w in zip(*pairs, strict=True)]
        slope = self._slope(rate)
        ceiling = dense / max(dense + c - slope, 1e-12)
        break_even = max(0.0, 1 - c / slope) if slope > 0 else 0.0
        return shares, ceiling, break_even, own > expected / 2

    def _slope(self, rate: float) -> float:
        """Seconds of training on a whole batch that are in proportion to its rows."""
        parts = [_part(each, self.rows) for each in (rate, 0.25)]
        part = next((part for part in parts if part < self.rows), 0)
        less = self.times.median(f"train {part}") if part else 0.0
        return (self.times.median(f"train {self.rows}") - less) / (1 - part / self.rows)


def _part(rate: float, rows: int) -> int:
    """Rows of a batch that are trained on; at least 2, for batch normalisation."""
    return min(rows, max(2, round(rate * rows)))


def _rate(policy: Policy) -> float:
    """Share of the rows that is trained on, as far as known without the data."""
    if overrides(policy, "choose"):
        return float(getattr(policy, "target_rate", getattr(policy, "rate", 1.0)))
    many = 1_000_000
    return min(1.0, policy.expected_rows(many) / many, 1 - policy.cost.forwards)
