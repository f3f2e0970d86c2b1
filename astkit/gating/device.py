"""A gate that never waits for the accelerator: its threshold and its counters stay there.

`Gate` reads numbers off its tensors for every batch, and on a GPU each of these waits for all the
work that was queued. Here nothing is read until somebody asks, and shapes follow from batch sizes
alone, so that a step can be compiled or captured. Rows that are chosen beyond the wanted ones
weigh nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor

from astkit.gating.controllers import TopK
from astkit.gating.gate import Gate
from astkit.gating.ranked import (
    COLUMNS,
    COUNTERS,
    Decision,
    DeviceLogIntegral,
    capacity,
    fixed_k,
)
from astkit.gating.selection import Selection
from astkit.gating.significance import ContextScore, Criterion, Score, cross_entropy_rows


class Counter:
    """A whole number of a `DeviceGate` that lives on the device; reading it waits for the work."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.place = COUNTERS.index(name)

    def __get__(self, gate: Any, owner: type | None = None) -> int:
        return int(gate.counts[self.place])

    def __set__(self, gate: Any, value: int) -> None:
        gate.counts[self.place] = value


class Reading:
    """Counters and latest steps of a gate, on their way to the host; asking waits for the copy.

    Attributes:
        missed: steps since the reading before that the log no longer held.
    """

    def __init__(self, gate: DeviceGate, steps: range, missed: int) -> None:
        self._counts, self._log = fetch(gate.counts), fetch(gate.log)
        self._gate, self._steps, self.missed = gate, steps, missed

    @property
    def counters(self) -> dict[str, int]:
        """The gate's counters by name."""
        found = dict(zip(COUNTERS, self._counts(), strict=True))
        self._gate.heed(found)
        return found

    @property
    def steps(self) -> list[dict[str, float]]:
        """Step (from 1), rate, threshold and overflow of each batch since the reading before."""
        log = self._log()
        rows = ((step, log[(step - 1) % len(log)]) for step in self._steps)
        return [{"step": step, **dict(zip(COLUMNS, row, strict=True))} for step, row in rows]


class DeviceGate(Gate):
    """A `Gate` whose decisions never wait for the accelerator; it runs on the CPU just the same.

    ``rule="fixed_k"`` takes the best rows of every batch, as many as the target rate grants: the
    decisions of ``Gate(controller="top_k")``, so the exact rate, and no weight is 0.

    ``rule="capacity"`` holds a threshold, moved as by `LogIntegral`, and takes the best ``ceil(p B
    + headroom sqrt(B p (1 - p)))`` rows of a batch of ``B`` at target rate ``p``, of which those
    above the threshold weigh 1 and the padding 0. The gradient of the weighted mean is that of the
    active rows alone, except under BatchNorm in training mode, whose statistics the padding enters:
    there it is another algorithm. Active rows that find no place are not trained on; they count in
    the rate and in ``overflow``.

    Three things differ from `Gate`. Ties go to the rows that stand first, and those that tie with a
    held threshold are not active. The fallback takes the best rows. A batch without any finite
    score gives a loss of NaN instead of an error. Scores must not be negative under "capacity";
    rows where they are count in ``negative`` and bring a warning when the counters are read.

    ``rate`` and ``threshold`` of a selection are 0-dim tensors; ``float`` reads them, and waits.
    `read` brings the numbers of many steps at once. Of the registered scores "loss", "contrast",
    "confidence", "entropy" and "margin" do not wait either. Threshold and log are float64, which
    MPS lacks.

    Args:
        target_rate: wanted share of active samples, in (0, 1].
        rule: "fixed_k" or "capacity".
        score, criterion, fallback, min_active, seed: as for `Gate`.
        gain: of "capacity"; see `DeviceLogIntegral`.
        headroom: of "capacity"; spare rows, in standard deviations of a binomial count, 0 or more.
        log_steps: of how many steps `read` finds the numbers.
        compile: let torch.compile fuse the many small kernels of a decision.

    Raises:
        ValueError: for an impossible rate, an unknown name, a negative ``headroom``, fewer than 1
            of ``log_steps``, or a ``fallback`` of 0 under "capacity", which cannot skip a step.
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
        log_steps: int = 50,
        compile: bool = False,
        criterion: Criterion = cross_entropy_rows,
        fallback: int = 2,
        min_active: int = 1,
        seed: int = 0,
    ) -> None:
        _check(rule, headroom, log_steps, fallback)
        self.rule, self.headroom = rule, headroom
        self.counts = torch.zeros(len(COUNTERS), dtype=torch.int64)
        self.log = torch.zeros(log_steps, len(COLUMNS), dtype=torch.float64)
        self._read = 0  # steps that were read
        self._fixed_k = torch.compile(fixed_k) if compile else fixed_k
        self._capacity = torch.compile(capacity) if compile else capacity
        options = {"criterion": criterion, "fallback": fallback, "min_active": min_active}
        law = TopK(target_rate) if rule == "fixed_k" else DeviceLogIntegral(target_rate, gain)
        super().__init__(target_rate, score, law, seed=seed, **options)  # type: ignore[arg-type]

    def steer(self, name: str, value: Any) -> None:
        """Change ``target_rate`` or, under "capacity", ``gain``.

        Raises ``ValueError`` for another name or an impossible value.
        """
        if name == "controller":
            raise ValueError(
                f"controller cannot become {value!r}: a DeviceGate keeps the law of its rule"
                f" {self.rule!r}; take a Gate to change controllers while it runs"
            )
        super().steer(name, value)

    def select(self, scores: Tensor, index: Tensor | None = None) -> Selection:
        """Select rows by ``scores [batch]``; controller and score learn from the outcome.

        Raises ``ValueError`` unless there is one score a row.
        """
        if scores.ndim != 1 or not len(scores):
            raise ValueError(
                f"scores has shape {list(scores.shape)}: give one score a row, as a tensor of shape"
                " [batch] with at least one row"
            )
        self.counts = self.counts.to(scores.device, non_blocking=True)
        self.log = self.log.to(scores.device, non_blocking=True)
        made = self._decide_on(scores.detach())
        self.counts += made.counts
        self.log[self.batches % len(self.log)] = made.log
        self.batches += 1
        rate, threshold, _ = made.log.unbind()
        # tensors in the place of numbers: whoever needs the number waits for it with float()
        values = (len(scores), rate, threshold, made.fallback, self.target_rate)
        return self._told(Selection(made.rows, made.weight, *cast(Any, values)), index)

    def _decide_on(self, scores: Tensor) -> Decision:
        rows, rate, law = len(scores), self.target_rate, self.controller
        least = min(self.fallback, rows)
        rest = (self.fallback, self.min_active)
        if isinstance(law, DeviceLogIntegral) and rate < 1:
            spread = math.sqrt(rows * rate * (1 - rate))
            size = math.ceil(rate * rows + self.headroom * spread - 1e-9)
            law.level = law.level.to(scores.device, non_blocking=True)
            size = min(max(size, least, 1), rows)
            made = self._capacity(scores, law.level, rate, law.gain, size, *rest)
            law.level.copy_(made.level)
            return made
        quota = self._grant(rows)
        size = quota if quota >= self.min_active else max(quota, least)
        held = -math.inf if rate == 1 else None if quota else math.inf
        return self._fixed_k(scores, quota, size, *rest, held)

    def _told(self, chosen: Selection, index: Tensor | None) -> Selection:
        score = self.significance
        if isinstance(score, ContextScore) and type(score).settled is not ContextScore.settled:
            score.settled(index, chosen.index[chosen.weight > 0])  # waits, as such a score does
        return chosen

    def read(self) -> Reading:
        """Start to copy counters and latest steps to the host, without waiting for them.

        To wait for nothing at all, read every ``log_steps`` steps and look at a reading when the
        next one is made.
        """
        first = max(self._read, self.batches - len(self.log))
        steps, missed = range(first + 1, self.batches + 1), first - self._read
        self._read = self.batches
        return Reading(self, steps, missed)

    def heed(self, counters: dict[str, int]) -> None:
        """Warn, once, of what a decision on the device could not complain about."""
        if self.rule == "capacity" and counters["negative"]:
            self._warn(
                "negative",
                f"{counters['negative']} scores were negative, so their rows are never active:"
                " rule='capacity' moves the logarithm of its threshold; take rule='fixed_k'",
            )

    def state_dict(self) -> dict[str, Any]:
        """As `Gate.state_dict`, with this gate's counters; waits for the device."""
        return {**super().state_dict(), "overflow": self.overflow, "negative": self.negative}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; ``KeyError`` if it lacks an entry."""
        super().load_state_dict(state)
        self.overflow, self.negative = state["overflow"], state["negative"]
        self._read = self.batches


def fetch(tensor: Tensor) -> Callable[[], list[Any]]:
    """Start to copy ``tensor`` to the host; the function returned waits and gives it as a list."""
    if tensor.device.type != "cuda":
        copy = tensor.clone()
        return lambda: copy.tolist()
    host = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
    copied = torch.cuda.current_stream(tensor.device).record_event()

    def wait() -> list[Any]:
        copied.synchronize()
        return host.tolist()

    return wait


def _check(rule: str, headroom: float, log_steps: int, fallback: int) -> None:
    if rule not in ("fixed_k", "capacity"):
        raise ValueError(f"rule is {rule!r}: choose 'fixed_k' or 'capacity'")
    if not 0 <= headroom < math.inf:
        raise ValueError(f"headroom is {headroom}: give 0 or more standard deviations, such as 3")
    if log_steps < 1:
        raise ValueError(f"log_steps is {log_steps}: give the steps to remember, 1 or more")
    if rule == "capacity" and fallback < 1:
        raise ValueError(
            f"fallback is {fallback}, but a step of fixed size is taken whether or not a row is"
            " active: give 1 or more, or rule='fixed_k'"
        )
