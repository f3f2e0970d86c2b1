"""Gate: selects samples by comparing scores with an adaptive threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from astkit import distributed, rng
from astkit.checks import check_count, check_number
from astkit.datasets.batch import tensors
from astkit.gating.controllers import Controller
from astkit.gating.losses import Criterion, shown
from astkit.gating.policy import Policy, PolicyCard, Scored, Selection
from astkit.gating.scores import ContextScore, Score, named_score, score_rows
from astkit.gating.selection import evaluating
from astkit.names import registered, resolve
from astkit.progress import warn

_COUNTERS = ("batches", "seen", "active", "fallback_rows", "nonfinite")


class Gate(Policy):
    """Selects the rows of a batch whose score exceeds a threshold adapted to ``rate``.

    In a custom training loop::

        gate = Gate(rate=0.25)
        chosen = gate(model, x, y)
        loss = chosen.mean(criterion(model(x[chosen.index]), y[chosen.index]))

    Such rows are active. Rows whose score equals the threshold (or all rows, if their scores are
    equal) are drawn at random up to the quota of the target rate. If fewer than ``min_active`` rows
    are active, random rows are added up to ``fallback``, which count in ``trained_share``, not in
    ``measured_rate``; batches that need them often raise a warning. A row without a label, or with
    a NaN or infinite score, is not trained on, does not steer the controller, and is counted in
    ``nonfinite``; a loss of NaN stops a `Trainer` of a regression. Decisions are made on the CPU,
    with one copy from the device per batch.

    With ``controller="top_k"`` nothing is copied: all shapes depend on the batch size alone, and
    ``measured_rate``, ``threshold`` and what is counted are 0-dim tensors. Ties are then broken by
    row order, the fallback takes the highest scores, a row with a non-finite score is replaced by
    the best one with weight 0, and a batch without finite scores gives a NaN loss.

    Args:
        rate: fraction of active samples, in (0, 1].
        score: name, or callable ``(outputs, targets, inputs) -> [batch]``; higher means more
            important.
        controller: name or `Controller`; the target rate of an instance takes precedence.
        criterion: returns one loss per row, for scores given by name; by default the trainer's,
            and cross-entropy in a custom training loop.
        fallback: rows to train on if too few are active, at least ``min_active``; 0 allows an empty
            selection.
        min_active: smallest number of active rows without a fallback; use 2 with BatchNorm1d.
        seed: random seed for tie-breaking and fallback.
    """

    card = PolicyCard(
        source="this package; selective backpropagation (Jiang et al., 2019) with feedback control",
        cost="one forward pass per candidate row: speed-up over dense training at most 3",
        bias="towards high scores; not corrected",
        avoid="with noisy labels (mislabelled samples score high); if forward is 1/3 of a step",
    )

    def __init__(
        self,
        rate: float = 0.1,
        score: str | Score = "loss",
        controller: str | Controller = "log_integral",
        *,
        criterion: Criterion | None = None,
        fallback: int = 2,
        min_active: int = 1,
        seed: int = 0,
    ) -> None:
        check_number("rate", rate)
        if isinstance(controller, str):
            controller = resolve("controller", controller)(rate)
        if not isinstance(controller, Controller):
            raise ValueError(
                f"controller is {controller!r}: give a name, such as 'log_integral', or an instance"
                " of a Controller"
            )
        if isinstance(score, type) or not (callable(score) or isinstance(score, str)):
            raise ValueError(
                f"score is {score!r}: give a name, such as 'loss', or a function (outputs, targets,"
                " inputs) -> [batch]"
            )
        self.controller: Controller = controller
        self._given = controller  # another one may be set during training
        self.score, self.criterion = score, criterion
        self.significance = named_score(score) if isinstance(score, str) else score
        self.fallback = check_count("fallback", fallback, least=0)
        self.min_active = check_count("min_active", min_active, least=0)
        if 0 < fallback < min_active:
            raise ValueError(
                f"min_active is {min_active}, but the fallback trains on {fallback} rows: give a"
                " fallback of min_active or more, or 0"
            )
        self.seed = seed
        self.batches = 0
        # numbers, or 0-dim tensors on the device of the scores
        self.seen: int | Tensor = 0
        self.active: int | Tensor = 0
        self.fallback_rows: int | Tensor = 0
        self.nonfinite: int | Tensor = 0
        self.carry = 0.0  # fractional quota carried over from earlier batches

    @property
    def rate(self) -> float:
        """Set point; may be changed during training."""
        return self.controller.rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self.controller.rate = rate

    def steer(self, name: str, value: Any) -> None:
        """Change ``rate``, a gain of the controller, or the ``controller`` (by name).

        A new controller starts from its initial threshold. Raises ``ValueError`` for another name
        or an invalid value.
        """
        gains = self.controller.gains
        if name == "controller":
            self.controller = resolve("controller", value)(self.rate)
        elif name in ("rate", *gains):
            setattr(self.controller, name, value)
        else:
            raise ValueError(
                f"there is no setting {name!r} to steer: choose one of"
                f" {', '.join(('rate', 'controller', *gains))}"
            )

    @property
    def measured_rate(self) -> float:
        """Fraction of all samples so far that were active, fallback rows excluded."""
        return float(self.active / self.seen) if self.seen else math.nan

    @property
    def trained_share(self) -> float:
        """Fraction of all samples so far that were trained on, fallback rows included."""
        return float((self.active + self.fallback_rows) / self.seen) if self.seen else math.nan

    def __repr__(self) -> str:
        said = f"Gate(rate={self.rate:g})"
        if not self.seen:
            return said
        shares = f"{self.measured_rate:.3g} active, {self.trained_share:.3g} trained on"
        return f"{said}: {shares}, of {int(self.seen):,} rows"

    def choose(self, batch: Scored) -> Selection:
        """Score the batch and select rows."""
        scores = self.scores(batch)
        labelled = batch.labelled if batch.ignores else None
        if self.controller.by_rank:
            return self._best(scores, labelled)
        if labelled is not None and not bool(labelled.any()):
            return batch.select(torch.arange(0))
        return self.select(scores)

    def choose_from(self, batch: Scored) -> Selection:
        """As of any policy, without a check, which waits for the device, of a gate's own choice."""
        own = type(self).choose is Gate.choose
        return self.choose(batch) if own else super().choose_from(batch)

    def scores(self, batch: Scored) -> Tensor:
        """Scores ``[batch]``, without side effects on the model; ``ValueError`` for others.

        NaN for rows without a label.
        """
        with evaluating(batch.model, batch.device):
            scores = score_rows(self.significance, batch)
        first = next(tensors(batch.inputs), None)  # targets may be anything to a score
        check_scores(scores, None if first is None else len(first))
        labelled = batch.labelled if batch.ignores else None
        return scores if labelled is None else scores.float().masked_fill(~labelled, math.nan)

    def select(self, scores: Tensor) -> Selection:
        """Select rows by ``scores [batch]``; updates the controller.

        Raises ``ValueError`` unless there is one score per row and at least one is finite.
        """
        if self.controller.by_rank:
            return self._best(scores)
        usable, rows = self.usable(scores)
        quota = self._grant(len(usable))
        if self.controller.rate == 1:
            every = torch.ones_like(usable, dtype=torch.bool)
            return self._settle(scores, usable, rows, every, -math.inf)
        threshold = self.controller.threshold(usable, quota)
        active, reached = usable > threshold, usable >= threshold
        count = int(active.count_nonzero())
        if count in (0, len(usable)) and len(usable) > 1 and bool((usable == usable[0]).all()):
            warn(
                "all scores of a batch are equal, so choosing by score means nothing: rows are"
                " drawn at random at the target rate; check that the score depends on the sample"
            )
            active = self._draw(torch.ones_like(active), quota)
        elif not torch.equal(active, reached):  # ties at the threshold
            active = active | self._draw(reached ^ active, quota - count)
        return self._settle(scores, usable, rows, active, threshold)

    def _best(self, scores: Tensor, labelled: Tensor | None = None) -> Selection:
        """Select the highest ``scores [batch]`` without synchronising with the device.

        ``labelled``: rows of which the rate is a share, bool ``[batch]``; by default all.
        """
        check_scores(scores)
        scores = scores.detach() if scores.is_floating_point() else scores.float()
        if not self.batches:
            self._check_fallback(len(scores))
        batch, quota = len(scores), self._grant(len(scores))
        # room for the fallback rows: the size must not depend on the scores
        most = quota if quota >= self.min_active else max(quota, min(self.fallback, batch))
        size = max(most, int(distributed.world() > 1))  # every process takes part in each step
        usable = scores.nan_to_num(-math.inf, -math.inf, -math.inf)
        best, rows = usable.sort(descending=True, stable=True)
        finite = (best > -math.inf).sum()
        count = finite.clamp(max=quota)
        if labelled is not None:
            count = count.clamp(max=(labelled.sum() * self.rate).ceil().long())
        added = finite.clamp(max=most) - count if most > quota else 0
        self._count(1, finite, count, added, batch - finite)
        threshold = best[quota - 1] if quota else best.new_full((), math.inf)
        places = torch.arange(size, device=scores.device)
        # weight 0 does not mask a NaN loss, so such a row is replaced by the best one
        index, order = torch.where(places < finite, rows[:size], rows[:1]).sort(stable=True)
        active = order < count
        return Selection(
            index=index,
            weight=(order < count + added if most > quota else active).float(),
            candidates=batch,
            measured_rate=count / finite,
            threshold=threshold if self.rate < 1 else best.new_full((), -math.inf),
            rate=self.rate,
            active=active,
            scores=scores,
        )

    def settle(self, scores: Tensor, active: Tensor) -> Selection:
        """Record a batch decided row by row; updates the controller.

        ``scores [batch]``; ``active``: bool ``[batch]``, false for non-finite scores.
        """
        usable, rows = self.usable(scores)
        threshold = self.controller.threshold(usable, 0)
        return self._settle(scores, usable, rows, active.cpu()[rows], threshold)

    def usable(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Finite entries of ``scores [batch]`` and their rows, int64, on the CPU.

        Raises ``ValueError`` unless there is one score per row and at least one is finite.
        """
        check_scores(scores)
        scores = scores.detach().cpu()
        rows = scores.isfinite().nonzero().squeeze(1)
        if not len(rows):
            raise ValueError(
                f"all {len(scores)} scores of batch {self.batches} are NaN or infinite: the model"
                " has diverged (lower the learning rate) or the score divides by zero"
            )
        return scores[rows], rows

    def _settle(
        self,
        scores: Tensor,
        usable: Tensor,
        rows: Tensor,
        active: Tensor,
        threshold: float,
    ) -> Selection:
        chosen = active.nonzero().squeeze(1)
        if not self.batches:
            self._check_fallback(len(scores))
        count, size, target = len(chosen), len(usable), self.controller.rate
        measured, decided = count / size, None
        if target < 1:  # at rate 1 there is no threshold
            self.controller.update(measured, usable)
        missing = min(self.fallback, size) - count if count < self.min_active else 0
        if missing > 0:
            both = active | self._draw(~active, missing)
            chosen, decided = both.nonzero().squeeze(1), active[both].to(scores.device)
        self._count(1, size, count, max(0, missing), len(scores) - size)
        selection = Selection(
            rows[chosen].to(scores.device),
            candidates=len(scores),
            measured_rate=measured,
            threshold=threshold,
            rate=target,
            active=decided,
            scores=scores.detach(),
        )
        if len(selection) or distributed.world() == 1:
            return selection
        return selection.padded(int(rows[0]))  # weight 0 does not mask a NaN loss

    def _count(self, *more: int | Tensor) -> None:
        """Add ``more`` to the counters, in their order."""
        for name, added in zip(_COUNTERS, more, strict=True):
            setattr(self, name, getattr(self, name) + added)

    def _check_fallback(self, rows: int) -> None:
        """Warn if the fallback matters in batches of ``rows`` rows."""
        expected = self.rate * rows
        # the number of active rows varies, but for the best of each batch
        least = self.min_active if self.controller.by_rank else self.fallback
        if self.rate == 1 or not self.min_active * self.fallback:
            return
        if expected < least:
            warn(
                f"a batch of {rows} {'row' if rows == 1 else 'rows'} has {expected:.2g} active rows"
                f" on average at the rate {self.rate:g}, and the fallback trains on"
                f" {self.fallback} where there are fewer than {self.min_active}: the share trained"
                " on exceeds the rate, see trained_share; use batches of"
                f" {math.ceil(least / self.rate)} rows or more, or fallback=0"
            )

    def _grant(self, rows: int) -> int:
        exact = self.controller.rate * rows + self.carry
        quota = min(rows, int(exact + 1e-9))
        self.carry = exact - quota
        return quota

    def _draw(self, among: Tensor, count: int) -> Tensor:
        """Mask of ``count`` random rows among the marked ones (all, if fewer), bool."""
        if count >= int(among.sum()):
            return among
        chosen = torch.zeros_like(among)
        if count > 0:
            keys = rng.uniform(torch.arange(len(among)), self._seed, "gate", self.batches)
            chosen[keys.masked_fill(~among, 2.0).topk(count, largest=False).indices] = True
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """Controller, counters and seed as plain numbers, plus the state of a `ContextScore`."""
        score, given = self.significance, self.controller is self._given
        return {
            "controller": self.controller.state_dict(),
            "seed": self.seed,
            "carry": self.carry,
            **{name: int(getattr(self, name)) for name in _COUNTERS},
            "steered_to": None if given else registered("controller", type(self.controller)),
            "score": score.state_dict() if isinstance(score, ContextScore) else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``; raises ``KeyError`` for a missing entry."""
        self.controller = self._given
        if state["steered_to"]:
            self.steer("controller", state["steered_to"])
        self.controller.load_state_dict(state["controller"])
        for name in ("seed", "carry", *_COUNTERS):
            setattr(self, name, state[name])
        if isinstance(self.significance, ContextScore):
            self.significance.load_state_dict(state["score"])


def check_scores(scores: Tensor, rows: int | None = None) -> None:
    """Raise ``ValueError`` unless ``scores`` contains one score per row, of ``rows`` if given."""
    right = isinstance(scores, Tensor) and scores.ndim == 1 and len(scores) > 0
    if not right or rows not in (None, len(scores)):
        batch = "" if rows is None else f" for a batch of {rows}"
        raise ValueError(
            f"scores has {shown(scores)}{batch}: give one score a row, and at least one row"
        )
