"""The batches that come next: in the order of the loader, or as a policy plans."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
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

_NONE = torch.empty(0, dtype=torch.int64)


class Feed:
    """Gives the training batches one by one, from wherever a position says that the run is.

    An epoch is made of rounds; `plan` opens the next one, and `next` gives its batches. Rows that
    do not fill a batch at the end of a round come first in the next round of the same epoch.

    Args:
        source: where batches come from.
        policy: plans rounds; every row in the loader's order by default.
        device, seed: of the loaders that draw from torch's default generator.

    Attributes:
        lr_factor: of the present round's plan.
        prefetch: whether a thread makes the next batches.
        share: rows of the present round's plan over its candidates.
        score_only: rows that are to be scored when the present round is over, int64.

    Raises ``ValueError`` for a policy that plans over data whose rows cannot be chosen.
    """

    def __init__(
        self, source: BatchSource, policy: Policy | None, device: torch.device, seed: int
    ) -> None:
        self.source = source
        self.policy = policy if policy is not None and overrides(policy, "plan") else None
        self.prefetch = False
        self._key = (device, seed)
        self._batches: Iterator[Batch] | None = None
        self._drawn: Tensor | None = None  # state of the loader's own generator before the pass
        self._labels: Tensor | None = None
        self._rows: Tensor | None = None  # of the present round; None in the loader's own order
        self._scale, self._left_scale, self._left = torch.empty(0), torch.empty(0), _NONE
        self.score_only, self.lr_factor, self.share = _NONE, 1.0, 1.0
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
        if not position.round or (self._rows is not None and not len(self._rows)):
            return None
        # a loader that draws from the default RNG draws its order at the first batch that it gives,
        # so that one is keyed to the pass: taken up in the middle, a pass has the same order
        (device, seed), epoch = self._key, position.epoch
        number = 0 if self._batches is None else position.batch
        with rng.isolated(device, seed, "load", epoch, number):
            if self._batches is None:
                self._rewind_generator()
                self._batches = self._begun(epoch, position.taken)
            return next(self._batches, None)

    def _begun(self, epoch: int, taken: int) -> Iterator[Batch]:
        batches = self.source.batches(epoch, self._rows, taken)
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
        """Whether the epoch has no round left.

        Raises ``ValueError`` for an epoch without a batch.
        """
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
        return position.round >= self.rounds and position.taken >= self._batches_in_round()

    def plan(self, position: Position) -> int:
        """Open the next round; how many of its candidates are left out before loading."""
        number, position.round, position.taken = position.round, position.round + 1, 0
        self._batches = None
        if self.policy is None:
            return 0
        order: Tensor = self.source.order(position.epoch)  # type: ignore[attr-defined]
        chosen = plan_round(
            self.policy,
            order,
            self.source.num_samples or len(order),
            epoch=position.epoch,
            number=number,
            progress=position.spent,
            labels=self._labels,
        )
        candidates = len(order) * (number + 1) // self.rounds - len(order) * number // self.rounds
        self._open(chosen, last=position.round == self.rounds)
        self.lr_factor, self.share = chosen.lr_factor, len(chosen) / max(1, candidates)
        self.score_only = _NONE if chosen.score_only is None else chosen.score_only
        return max(0, candidates - len(chosen))

    def _open(self, chosen: Selection, last: bool) -> None:
        rows = torch.cat([self._left, chosen.index])
        scale = torch.cat([self._left_scale, chosen.scale.float()])
        size = getattr(self.source, "batch_size", None)
        whole = len(rows) if last or not size else len(rows) // size * size
        self._rows, self._left = rows[:whole], rows[whole:]
        self._scale, self._left_scale = scale[:whole], scale[whole:]

    def peek(self) -> Batch:
        """A batch as they will come, taken without the policy, which would count it."""
        before = self._generator_state()
        position = Position(round=1)
        first = Feed(self.source, None, *self._key).next(position)
        if self._generator is not None and before is not None:
            self._generator.set_state(before)
        if first is None:
            raise ValueError("the training data gave no batch: lower batch_size or add rows")
        return first

    def weight(self, position: Position, batch: Batch) -> Tensor | None:
        """What scales the loss of each row of ``batch``, float32 ``[rows]``; ``None`` for 1."""
        if self._rows is None:
            return None
        first = position.taken * (getattr(self.source, "batch_size", None) or batch.rows)
        return self._scale[first : first + batch.rows]

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
        """The epoch is over: the next one has another order and other plans."""
        self._batches = self._drawn = None
        self._forget()

    def _forget(self) -> None:
        self._rows = None
        self._scale, self._left_scale = torch.empty(0), torch.empty(0)
        self._left, self.score_only = _NONE, _NONE
        self.lr_factor, self.share = 1.0, 1.0

    def _batches_in_round(self) -> float:
        """Batches in the present round; infinity while a foreign loader cannot tell."""
        if self._rows is None:
            try:
                return len(self.source)
            except TypeError:
                return math.inf
        size = getattr(self.source, "batch_size", None) or max(1, len(self._rows))
        if getattr(self.source, "drop_last", False):
            return len(self._rows) // size
        return -(-len(self._rows) // size)

    def _rewind_generator(self) -> None:
        """Set a generator that an ordinary loader brings along as it was before the pass."""
        if self._generator is None:
            return
        if self._drawn is None:
            self._drawn = self._generator.get_state()
        self._generator.set_state(self._drawn)

    def _generator_state(self) -> Tensor | None:
        if self._drawn is not None or self._generator is None:
            return self._drawn
        return self._generator.get_state()

    @property
    def _generator(self) -> torch.Generator | None:
        return getattr(getattr(self.source, "loader", None), "generator", None)

    def state_dict(self) -> dict[str, Any]:
        """The rows of the present round, and what a loader's own order was drawn from."""
        return {
            "rows": self._rows,
            "scale": self._scale,
            "left": self._left,
            "left_scale": self._left_scale,
            "score_only": self.score_only,
            "lr_factor": self.lr_factor,
            "share": self.share,
            "generator": self._generator_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in a round that was planned."""
        self.end_epoch()
        self._rows, self._left = state["rows"], state["left"]
        self._scale, self._left_scale = state["scale"], state["left_scale"]
        self.score_only, self._drawn = state["score_only"], state["generator"]
        self.lr_factor, self.share = state["lr_factor"], state["share"]
