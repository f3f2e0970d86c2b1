"""A gate that never waits for the accelerator: its threshold and its counters stay there.

`Gate` reads numbers off its tensors for every batch, and on a GPU each of these waits for all the
work that was queued. Here nothing is read until it is asked for, and shapes follow from batch
sizes alone. Rows that are chosen beyond the wanted ones have weight 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from astkit.gating.cards import Card
from astkit.gating.controllers import Controller, ScaleFree, TopK, checked
from astkit.gating.gate import Gate
from astkit.gating.losses import Criterion, cross_entropy_rows
from astkit.gating.scored import Scored
from astkit.gating.selection import Selection
from astkit.gating.significance import ContextScore, Score

COUNTERS = ("seen", "active", "fallback_rows", "nonfinite", "overflow", "negative")


class Ranked(NamedTuple):
    """A batch of scores in descending order."""

    best: Tensor  # [batch], -inf where the score was not finite
    rows: Tensor  # int64 [batch], where each was; of equal ones the earlier row comes first
    finite: Tensor  # int64 0-dim, how many were finite


def rank(scores: Tensor) -> Ranked:
    """``scores [batch]`` from the best to the worst."""
    scores = scores.detach() if scores.is_floating_point() else scores.double()
    finite = scores.isfinite()
    best, rows = scores.masked_fill(~finite, -math.inf).sort(descending=True, stable=True)
    return Ranked(best, rows, finite.sum())


def quantile(ranked: Ranked, target_rate: float) -> Tensor:
    """The quantile of the finite scores at ``1 - target_rate``, float64 0-dim; as torch's own."""
    last = (ranked.finite - 1).clamp(min=0)
    place = (1 - target_rate) * last.double()
    around = torch.stack([place.floor().long(), place.ceil().long()])
    values = ranked.best.double()[last - around]
    return torch.lerp(values[0], values[1], place - around[0])


class DeviceLogIntegral(Controller):
    """`LogIntegral` for scores that are never negative, its threshold a 0-dim tensor.

    The law, its start and its limits are the same. Rows with negative scores are never active.

    Args:
        gain: step size, > 0; "auto" is not supported here.
    """

    held = False
    gains = ("gain",)
    state = ("value",)
    gain: float = checked("above 0", "0.5 suits most scores")
    card = Card(
        law="log t += gain * (rate - target), on the device",
        good_for="a GPU, where reading a number waits for all the work that is queued",
        stability="as log_integral: stable iff gain * f < 2, f = density of log-scores at t",
        source="multiplicative Robbins-Monro (1951) quantile tracking; arXiv 2307.16895, P control",
    )

    def __init__(self, target_rate: float, gain: float = 0.5) -> None:
        super().__init__(target_rate)
        self.gain = gain
        self.level = torch.full((), math.nan, dtype=torch.float64)  # NaN before the first batch

    @property
    def value(self) -> float | None:
        """The threshold, ``None`` before the first batch. Reading it waits for the device."""
        level = float(self.level)
        return None if math.isnan(level) else level

    @value.setter
    def value(self, value: float | None) -> None:
        self.level = torch.full_like(self.level, math.nan if value is None else value)

    def start(self, ranked: Ranked) -> Tensor:
        """The threshold for this batch, float64 0-dim; see `ScaleFree.threshold`."""
        best, smallest = ranked.best, ScaleFree.smallest
        level = self.level.to(best.device, non_blocking=True)
        found, least = quantile(ranked, self.target_rate), best.where(best > 0, math.inf).amin()
        scaled = least < math.inf
        found = torch.where((found == 0) & scaled, least.double(), found).clamp(min=smallest)
        fresh = level.isnan() | ((level == smallest) & scaled)
        self.level = torch.where(fresh, found, level)  # found is NaN where no score is finite
        return self.level

    def follow(self, rate: Tensor, ranked: Ranked) -> None:
        """Move the threshold, which ``rate`` (0-dim) of the batch exceeded."""
        level, smallest, positive = self.level, ScaleFree.smallest, ranked.best > 0
        step = self.gain * (rate - self.target_rate)
        # the cases of `ScaleFree.stuck`
        falls = (positive & (ranked.best <= level)).any()
        free = torch.where(step > 0, (level > smallest) | positive.any(), falls)
        self.level = torch.where(free, (level * step.exp()).clamp(smallest, 1 / smallest), level)

    def threshold(self, scores: Tensor, quota: int) -> float:
        """The threshold for this batch, read off the device: for the ordinary gate."""
        return float(self.start(rank(scores)))

    def update(self, rate: float, scores: Tensor) -> None:
        """Move the threshold, which ``rate`` of the batch exceeded: for the ordinary gate."""
        self.follow(self.level.new_full((), rate), rank(scores))


class Counter:
    """A whole number of a `DeviceGate`, kept on the device; reading it waits for the work."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, gate: Any, owner: type | None = None) -> int:
        return gate.counters()[self.name]

    def __set__(self, gate: Any, value: int) -> None:
        gate.counts[COUNTERS.index(self.name)] = value


class DeviceGate(Gate):
    """A `Gate` whose decisions never wait for the accelerator; it runs on the CPU just the same.

    ``rule="fixed_k"`` takes the best rows of every batch, as many as the target rate grants: the
    decisions of ``Gate(controller="top_k")``, so the exact rate, and no weight is 0.

    ``rule="capacity"`` holds a threshold, moved as by `LogIntegral`, and takes the best ``ceil(p B
    + headroom sqrt(B p (1 - p)))`` rows of a batch of ``B`` at target rate ``p``. Those above the
    threshold have weight 1, the others are padding of weight 0. The gradient of the weighted mean
    is that of the active rows alone, except under BatchNorm in training mode, whose statistics
    include the padding: there it is another algorithm. Active rows beyond the capacity are not
    trained on; they count in the rate and in ``overflow``.

    Three things differ from `Gate`. Among ties the first rows are taken, and those that tie with a
    held threshold are not active. The fallback takes the best rows. A batch without any finite
    score gives a loss of NaN instead of an error. Scores must not be negative under "capacity";
    rows where they are count in ``negative``, and reading a counter warns of them.

    ``rate``, ``threshold`` and ``fallback`` of a selection are 0-dim tensors; ``float`` reads them,
    and waits: keep them, and read many at once. Of the registered scores "loss", "contrast",
    "confidence", "entropy" and "margin" do not wait either. The threshold is float64, which MPS
    lacks.

    Args:
        target_rate: wanted share of active samples, in (0, 1].
        rule: "fixed_k" or "capacity".
        score, criterion, fallback, min_active, seed: as for `Gate`.
        gain: of "capacity"; see `DeviceLogIntegral`.
        headroom: of "capacity"; spare rows, in standard deviations of a binomial count, 0 or more.

    Raises:
        ValueError: for an impossible rate, an unknown name, a negative ``headroom``, or a
            ``fallback`` of 0 under "capacity", which cannot skip a step.
    """

    seen, active, fallback_rows, nonfinite = Counter(), Counter(), Counter(), Counter()
    overflow, negative = Counter(), Counter()

    def __init__(
        self,
        target_rate: float = 0.1,
        rule: Literal["fixed_k", "capacity"] = "fixed_k",
        score: str | Score = "loss",
        *,
        gain: float = 0.5,
        headroom: float = 3.0,
        criterion: Criterion | None = None,
        fallback: int = 2,
        min_active: int = 1,
        seed: int = 0,
    ) -> None:
        if rule not in ("fixed_k", "capacity"):
            raise ValueError(f"rule is {rule!r}: choose 'fixed_k' or 'capacity'")
        if not 0 <= headroom < math.inf:
            raise ValueError(f"headroom is {headroom}: give 0 or more deviations, such as 3")
        if rule == "capacity" and fallback < 1:
            raise ValueError(
                f"fallback is {fallback}, but a step of fixed size is taken whether or not a row is"
                " active: give 1 or more, or rule='fixed_k'"
            )
        self.rule, self.headroom = rule, headroom
        self.counts = torch.zeros(len(COUNTERS), dtype=torch.int64)
        law = TopK(target_rate) if rule == "fixed_k" else DeviceLogIntegral(target_rate, gain)
        options: dict[str, Any] = {"fallback": fallback, "min_active": min_active, "seed": seed}
        super().__init__(target_rate, score, law, criterion=criterion, **options)

    def steer(self, name: str, value: Any) -> None:
        """Change ``target_rate`` or, under "capacity", ``gain``.

        Raises ``ValueError`` for another name or an impossible value.
        """
        if name == "controller":
            raise ValueError(
                f"controller cannot become {value!r}: a DeviceGate keeps the law of its rule"
                f" {self.rule!r}; use a Gate to change controllers while training"
            )
        super().steer(name, value)

    def __call__(
        self, model: nn.Module, x: Any, y: Any = None, index: Tensor | None = None
    ) -> Selection:
        """Choose from a loaded batch: ``x`` and ``y``, or ``x`` alone if it is a whole batch."""
        # without the check of `Policy`, which reads the selection
        criterion = self.criterion or cross_entropy_rows
        targets = x if y is None else y
        return self.choose(Scored(None, targets, x, index, model, criterion=criterion))

    def select(self, scores: Tensor, index: Tensor | None = None) -> Selection:
        """Select rows by ``scores [batch]``; controller and score learn from the outcome.

        Raises ``ValueError`` unless there is one score a row.
        """
        if scores.ndim != 1 or not len(scores):
            raise ValueError(
                f"scores has shape {list(scores.shape)}: give one score a row, as a tensor of shape"
                " [batch] with at least one row"
            )
        ranked = rank(scores)
        best, rows, finite = ranked
        size, count, threshold = self._decide_on(ranked)
        missing = (finite.clamp(max=self.fallback) - count).clamp(min=0)
        added = torch.where(count < self.min_active, missing, 0)
        overflow, nonfinite = (count - size).clamp(min=0), len(best) - finite
        negative = (best < 0).sum() - nonfinite
        counts = torch.stack((finite, count, added, nonfinite, overflow, negative))
        self.counts = self.counts.to(scores.device, non_blocking=True) + counts
        self.batches += 1
        places = torch.arange(size, device=scores.device)
        chosen = Selection(
            # a loss of NaN would spoil the sum whatever its weight: the best row takes its place
            index=torch.where(places < finite, rows[:size], rows[:1]),
            weight=(places < count + added).float(),
            candidates=len(scores),
            rate=cast(Any, count.double() / finite),
            threshold=cast(Any, threshold),
            fallback=cast(Any, added > 0),
            target_rate=self.target_rate,
            active=places < count,
        )
        return self._told(chosen, index)

    def _decide_on(self, ranked: Ranked) -> tuple[int, Tensor, Tensor]:
        """How many rows are taken; how many are active, and the threshold, both 0-dim."""
        rows, rate, law = len(ranked.best), self.target_rate, self.controller
        least = min(self.fallback, rows)
        if isinstance(law, DeviceLogIntegral) and rate < 1:
            spread = math.sqrt(rows * rate * (1 - rate))
            size = math.ceil(rate * rows + self.headroom * spread - 1e-9)
            threshold = law.start(ranked)
            count = (ranked.best > threshold).sum()
            law.follow(count.double() / ranked.finite, ranked)
            return min(max(size, least, 1), rows), count, threshold
        quota = self._grant(rows)
        held = -math.inf if rate == 1 else math.inf  # where no row's score is the threshold
        lowest = ranked.best[quota - 1] if quota and rate < 1 else ranked.best.new_full((), held)
        size = quota if quota >= self.min_active else max(quota, least)
        return size, ranked.finite.clamp(max=quota), lowest.double()

    def _told(self, chosen: Selection, index: Tensor | None) -> Selection:
        score = self.significance
        if isinstance(score, ContextScore) and type(score).settled is not ContextScore.settled:
            score.settled(index, chosen.index[chosen.weight > 0])  # waits, as such a score does
        return chosen

    def counters(self) -> dict[str, int]:
        """The counters by name; waits for the device. Warns, once, of negative scores."""
        found = dict(zip(COUNTERS, self.counts.tolist(), strict=True))
        if self.rule == "capacity" and found["negative"]:
            self._warn(
                "negative",
                f"{found['negative']} scores were negative, so their rows are never active:"
                " rule='capacity' moves the logarithm of its threshold; use rule='fixed_k'",
            )
        return found

    def config(self) -> dict[str, Any]:
        """As `Gate.config`, with this gate's own arguments."""
        return {**super().config(), "rule": self.rule, "headroom": self.headroom}

    def state_dict(self) -> dict[str, Any]:
        """As `Gate.state_dict`, with this gate's counters; waits for the device."""
        return {**super().state_dict(), **self.counters()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``; ``KeyError`` if it lacks an entry."""
        super().load_state_dict(state)
        self.overflow, self.negative = state["overflow"], state["negative"]
