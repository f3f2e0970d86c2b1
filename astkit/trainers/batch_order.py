"""The batches that come next: in the order of the loader, or as a policy plans."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from astkit import rng
from astkit.batch import Batch
from astkit.datasets import BatchSource, prefetched
from astkit.gating import Policy, Selection
from astkit.gating.policy import overrides
from astkit.gating.sampler import class_labels, plan_round
from astkit.trainers.state import Position


def _none() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass
class Round:
    """A policy's plan, as far as batches are made of it; by default the loader's own order.

    Attributes:
        rows: in whole batches, int64; ``None`` in the loader's own order.
        scale: of each row's loss, float32.
        left, left_scale: rows that did not fill a batch, which come first in the next round.
        score_only: rows that are to be scored when the round is over, int64.
        lr_factor: for the learning rate.
        share: of the ``candidates`` that were planned.
    """

    rows: Tensor | None = None
    scale: Tensor = field(default_factory=lambda: torch.empty(0))
    left: Tensor = field(default_factory=_none)
    left_scale: Tensor = field(default_factory=lambda: torch.empty(0))
    score_only: Tensor = field(default_factory=_none)
    lr_factor: float = 1.0
    share: float = 1.0
    candidates: int = 0


class Feed:
    """Gives the training batches one by one, from any position of a run.

    An epoch is made of rounds; `plan` opens the next one, and `next` gives its batches. Rows that
    do not fill a batch at the end of a round come first in the next round of the same epoch.
    ``device`` and ``seed`` are for loaders that draw from torch's default generator; with
    ``prefetch`` a thread makes the next batches.

    Raises ``ValueError`` for a policy that plans over data whose rows cannot be chosen.
    """

    def __init__(
        self, source: BatchSource, policy: Policy | None, device: torch.device, seed: int
    ) -> None:
        self.source: Any = source
        self.policy = policy if policy is not None and overrides(policy, "plan") else None
        self.prefetch, self.round = False, Round()
        self._key = (device, seed)
        self._batches: Iterator[Batch] | None = None
        self._drawn: Tensor | None = None  # state of the loader's own generator before the epoch
        self._labels: Tensor | None = None
        if self.policy is not None:
            if not hasattr(source, "order") or not source.num_samples:
                raise ValueError(
                    f"{type(self.policy).__name__} chooses rows before loading, but a"
                    f" {type(source).__name__} loads every row itself: pass the data set instead,"
                    " with batch_size=..., or an astkit Loader"
                )
            self._labels = class_labels(getattr(source, "data", None), source.num_samples)

    @property
    def rounds(self) -> int:
        """Plans an epoch."""
        return 1 if self.policy is None else self.policy.rounds

    def next(self, position: Position) -> Batch | None:
        """The batch at ``position``; ``None`` where its round is over, or none has begun."""
        rows = self.round.rows
        if not position.round or (rows is not None and not len(rows)):
            return None
        # a loader that draws from the default RNG draws its order at the first batch that it gives,
        # so that one is keyed to the epoch: resumed in the middle, an epoch has the same order
        (device, seed), epoch = self._key, position.epoch
        number = 0 if self._batches is None else position.batch
        with rng.isolated(device, seed, "load", epoch, number):
            if self._batches is None:
                self._rewind_generator()
                self._batches = self._begun(epoch, position.taken)
            return next(self._batches, None)

    def _begun(self, epoch: int, taken: int) -> Iterator[Batch]:
        batches: Iterator[Batch] = self.source.batches(epoch, self.round.rows, taken)
        if not self.prefetch:
            return batches
        if getattr(self.source, "keyed", False):
            return prefetched(batches, self._key[0])
        warnings.warn(
            f"The {type(self.source).__name__} may draw from torch's default generators, so no"
            " thread prefetches its batches; pass its data set in a Loader(num_workers=1 or more),"
            " whose workers prefetch instead.",
            stacklevel=2,
        )
        return batches

    def over(self, position: Position) -> bool:
        """Whether the epoch has no round left; ``ValueError`` for an epoch without a batch."""
        if position.round < self.rounds:
            return False
        if position.batch == 0:
            raise ValueError(
                f"the training data gave no batch in epoch {position.epoch}: lower batch_size or"
                " leave drop_last out, and let the policy select at least one row"
            )
        return True

    def finished(self, position: Position) -> bool:
        """Whether the last batch of the epoch was taken."""
        return position.round >= self.rounds and self.round_over(position)

    def round_over(self, position: Position) -> bool:
        """Whether the last batch of the round was taken."""
        return position.taken >= self._batches_in_round()

    def plan(self, position: Position, dense: bool = False) -> int:
        """Open the next round; how many of its candidates are left out before loading.

        With ``dense`` the policy is not asked, and none is left out.
        """
        position.round, position.taken = position.round + 1, 0
        self._batches = None
        if self.policy is None:
            return 0
        chosen, candidates = self._chosen(position, dense)
        self.round = self._opened(chosen, candidates, last=position.round == self.rounds)
        return max(0, candidates - len(chosen))

    def replan(self, position: Position, dense: bool) -> int:
        """Continue the present round, from the same share of it, with a new plan.

        How many more of its candidates are left out than by the plan before.
        """
        if self.policy is None or not position.round or self.round_over(position):
            return 0
        done, before = position.taken / self._batches_in_round(), self.round.share
        self._batches, self.round = None, Round()
        chosen, candidates = self._chosen(position, dense)
        self.round = self._opened(chosen, candidates, last=position.round == self.rounds)
        position.taken = int(done * self._batches_in_round() + 1e-9)
        more = min(1.0, before) - min(1.0, self.round.share)
        return round((1 - done) * candidates * more)

    def _chosen(self, position: Position, dense: bool) -> tuple[Selection, int]:
        """The plan of the round that ``position`` is in, and the number of its candidates."""
        assert self.policy is not None
        number, order = position.round - 1, self.source.order(position.epoch)
        chosen = plan_round(
            self.policy,
            order,
            self.source.num_samples or len(order),
            epoch=position.epoch,
            number=number,
            progress=position.spent,
            labels=self._labels,
            dense=dense,
        )
        candidates = len(order) * (number + 1) // self.rounds - len(order) * number // self.rounds
        return chosen, candidates

    def _opened(self, chosen: Selection, candidates: int, last: bool) -> Round:
        rows = torch.cat([self.round.left, chosen.index])
        scale = torch.cat([self.round.left_scale, chosen.scale.float()])
        size = getattr(self.source, "batch_size", None)
        whole = len(rows) if last or not size else len(rows) // size * size
        return Round(
            rows[:whole],
            scale[:whole],
            rows[whole:],
            scale[whole:],
            _none() if chosen.score_only is None else chosen.score_only,
            chosen.lr_factor,
            len(chosen) / max(1, candidates) or 1.0,  # of rows left by the plan before
            candidates,
        )

    def peek(self) -> Batch:
        """A batch of the training data, taken without the policy, which would count it."""
        before = self._generator_state()
        first = Feed(self.source, None, *self._key).next(Position(round=1))
        if self._generator is not None and before is not None:
            self._generator.set_state(before)
        if first is None:
            raise ValueError("the training data gave no batch: lower batch_size or add rows")
        return first

    def weight(self, position: Position, batch: Batch) -> Tensor | None:
        """What scales the loss of each row of ``batch``, float32 ``[rows]``; ``None`` for 1."""
        if self.round.rows is None:
            return None
        first = position.taken * (getattr(self.source, "batch_size", None) or batch.rows)
        return self.round.scale[first : first + batch.rows]

    def of_epoch(self, position: Position) -> float:
        """Share of the present epoch that is over, in [0, 1]; 0 while it is unknown."""
        if not position.round:
            return 0.0
        batches = self._batches_in_round()
        share = min(1.0, position.taken / batches) if batches else 1.0
        return (position.round - 1 + share) / self.rounds

    def stop(self) -> None:
        """Release the iterator; the next batch is loaded again from its position."""
        self._batches = None

    def end_epoch(self) -> None:
        """Prepare for the order and the plans of the next epoch."""
        self._batches = self._drawn = None
        self.round = Round()

    def _batches_in_round(self) -> float:
        """Batches in the present round; infinity while a foreign loader cannot tell."""
        if self.round.rows is None:
            try:
                return len(self.source)
            except TypeError:
                return math.inf
        rows = len(self.round.rows)
        size = getattr(self.source, "batch_size", None) or max(1, rows)
        return rows // size if getattr(self.source, "drop_last", False) else -(-rows // size)

    @property
    def _generator(self) -> torch.Generator | None:
        """The generator that an ordinary loader may hold."""
        return getattr(getattr(self.source, "loader", None), "generator", None)

    def _rewind_generator(self) -> None:
        """Set the loader's generator as it was before the epoch."""
        if self._generator is not None:
            self._drawn = self._generator_state()
            self._generator.set_state(self._drawn)

    def _generator_state(self) -> Any:
        if self._drawn is not None or self._generator is None:
            return self._drawn
        return self._generator.get_state()

    def state_dict(self) -> dict[str, Any]:
        """The present round, and the state that a loader's own order was drawn from."""
        return {"round": dict(vars(self.round)), "generator": self._generator_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in a round that was planned."""
        self._batches, self._drawn = None, state["generator"]
        self.round = Round(**state["round"])
