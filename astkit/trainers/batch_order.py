"""Order of the training batches: that of the loader, or as planned by a policy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from astkit import distributed, rng
from astkit.batch import Batch
from astkit.datasets import BatchSource, Loader, prefetched
from astkit.datasets.foreign import divided, name_of, parts_of
from astkit.gating import Policy
from astkit.gating.data_facts import data_facts
from astkit.gating.policy import overrides
from astkit.gating.sampler import plan_round
from astkit.trainers.state import Position

LOADER = "pass the data set instead, with batch_size=..., or an astkit Loader"
STREAM = "use a policy that selects after scoring, such as Gate, or a data set with a length"


@dataclass
class Round:
    """A round as planned by a policy; by default in the order of the loader.

    Attributes:
        rows: planned rows, int64; ``None`` for the loader's order.
        scale: factor on the loss of each row, float32; ``None`` if all are 1.
        left, left_scale: rows that did not fill a batch; they come first in the next round.
        score_only: rows to score at the end of the round, int64.
        lr_factor: learning rate factor.
        share: fraction of the ``candidates`` that was planned.
    """

    rows: Tensor | None = None
    scale: Tensor | None = None
    left: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    left_scale: Tensor = field(default_factory=lambda: torch.empty(0))
    score_only: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    lr_factor: float = 1.0
    share: float = 1.0
    candidates: int = 0


class Feed:
    """Provides the training batches one by one, from any position of a run.

    An epoch consists of rounds; `plan` starts the next one, and `next` returns its batches. Rows
    that do not fill a batch at the end of a round come first in the next round of the same epoch.
    ``device`` and ``seed`` apply to loaders that draw from torch's default generator; with
    ``prefetch``, a thread loads the next batches. With several processes, each one is given its
    share of the same batches; a DataLoader has to yield different rows in each process.

    Raises ``ValueError`` if the policy plans but rows of the data cannot be selected or have no
    ``batch_size``, or if all processes would train on the same rows.
    """

    def __init__(
        self,
        source: BatchSource,
        policy: Policy | None,
        device: torch.device,
        seed: int,
        validation: BatchSource | None = None,
    ) -> None:
        self.source: Any = divided(source)
        self.policy = policy if policy is not None and overrides(policy, "plan") else None
        self.prefetch, self.round, self.rows = False, Round(), 0
        self._key = (device, seed)
        self._batches: Iterator[Batch] | None = None
        parts = parts_of(getattr(source, "loader", None))  # of a torch DataLoader: its samplers too
        own = dict.fromkeys(getattr(part, "generator", None) for part in parts)
        self._generators = [each for each in own if isinstance(each, torch.Generator)]
        self._drawn: list[Tensor] | None = None  # their states before the epoch
        self._facts: dict[str, Any] = {}
        if self.policy is not None:
            if not hasattr(source, "order") or not source.num_samples:
                loader, remedy = f"a {name_of(source)} loads all rows", LOADER
                if getattr(source, "streamed", False):
                    loader, remedy = "a stream can only be read in order", STREAM
                raise ValueError(
                    f"{type(self.policy).__name__} selects rows before loading, but {loader}:"
                    f" {remedy}"
                )
            if not getattr(source, "batch_size", None):
                raise ValueError(
                    f"{type(self.policy).__name__} plans whole batches, but a {name_of(source)} has"
                    " no batch_size: give it this attribute, the rows of its full batches"
                )
            data = getattr(source, "data", None)
            held = getattr(validation, "data", getattr(validation, "loader", None))
            self._facts = data_facts(self.policy, data, source.num_samples, held)

    @property
    def rounds(self) -> int:
        """Rounds per epoch."""
        return 1 if self.policy is None else self.policy.rounds

    def next(self, position: Position) -> Batch | None:
        """The batch at ``position``; ``None`` if its round is over or not started."""
        rows = self.round.rows
        if not position.round or (rows is not None and not len(rows)):
            return None
        # so seeded, data that draw from the default RNG do the same in a resumed epoch
        (device, seed), epoch, batch = self._key, position.epoch, None
        again = self._batches is None and not hasattr(self.source, "order")
        for number in range(position.batch - again * position.taken, position.batch + 1):
            with rng.isolated(device, seed, "load", epoch, number, *distributed.key()):
                if self._batches is None:
                    self._drawn = self._generator_states()
                    self._set_generators(self._drawn)
                    self._batches = self._begun(epoch, 0 if again else position.taken)
                batch = next(self._batches, None)
        self.rows = self._rows_of(batch, position)
        return batch

    @property
    def repeating(self) -> bool:
        """Whether the rows of the latest batch only repeat those of another process."""
        return isinstance(self.source, Loader) and distributed.repeats(self.rows)

    def _rows_of(self, batch: Batch | None, position: Position) -> int:
        """Rows of a batch in all processes together."""
        own = 0 if batch is None else batch.rows
        if distributed.world() == 1:
            return own
        if isinstance(self.source, Loader):
            size, planned = self.source.batch_size, self.round.rows
            rows = self.source.num_samples if planned is None else len(planned)
            return min(rows - position.taken * size, size)
        rows, with_batch = map(int, distributed.total(own, batch is not None))
        if 0 < with_batch < distributed.world():
            raise RuntimeError(
                f"{with_batch} of {distributed.world()} processes have a batch {position.batch} in"
                f" epoch {position.epoch}: let the DataLoader yield equally many in each, such as"
                " with sampler=DistributedSampler(data)"
            )
        return rows

    def _begun(self, epoch: int, taken: int) -> Iterator[Batch]:
        batches: Iterator[Batch] = self.source.batches(epoch, self.round.rows, taken)
        if not self.prefetch:
            return batches
        if getattr(self.source, "keyed", False):
            return prefetched(batches, self._key[0])
        warnings.warn(
            f"The {name_of(self.source)} may draw from torch's default generators, so no"
            " thread prefetches its batches; pass its data set in a Loader(num_workers=1 or more),"
            " whose workers prefetch instead.",
            stacklevel=2,
        )
        return batches

    def over(self, position: Position) -> bool:
        """Whether the epoch is complete; raises ``ValueError`` if it had no batch."""
        if position.round < self.rounds:
            return False
        if position.batch == 0:
            raise ValueError(
                f"the training data gave no batch in epoch {position.epoch}: lower batch_size or"
                " disable drop_last, and let the policy select at least one row"
            )
        return True

    def finished(self, position: Position) -> bool:
        """Whether the last batch of the epoch was returned."""
        return position.round >= self.rounds and self.round_over(position)

    def round_over(self, position: Position) -> bool:
        """Whether the last batch of the round was returned."""
        return position.taken >= self._batches_in_round()

    def plan(self, position: Position, dense: bool = False) -> int:
        """Start the next round; returns the number of candidates skipped before loading.

        With ``dense`` the policy is not called, and no candidate is skipped.
        """
        position.round, position.taken = position.round + 1, 0
        self._batches = None
        return 0 if self.policy is None else self._plan(position, dense)

    def replan(self, position: Position, dense: bool) -> int:
        """Plan the rest of the round again, with the policy or ``dense``.

        Returns the number of candidates that are skipped in addition to the plan before.
        """
        if self.policy is None or not position.round or self.round_over(position):
            return 0
        done, before = position.taken / self._batches_in_round(), self.round.share
        self._batches, self.round = None, Round()
        self._plan(position, dense)
        position.taken = int(done * self._batches_in_round() + 1e-9)
        more = min(1.0, before) - min(1.0, self.round.share)
        return round((1 - done) * self.round.candidates * more)

    def _plan(self, position: Position, dense: bool) -> int:
        """Plan the round that ``position`` is in; returns the number of candidates skipped."""
        assert self.policy is not None
        if dense and self.rounds == 1:  # such a run costs what one without a policy costs
            self.round = Round(candidates=self.source.num_samples)
            return 0
        number, order = position.round - 1, self.source.order(position.epoch)
        chosen = plan_round(
            self.policy,
            order,
            self._facts,
            epoch=position.epoch,
            number=number,
            progress=position.spent,
            dense=dense,
        )
        candidates = len(order) * (number + 1) // self.rounds - len(order) * number // self.rounds
        rows = torch.cat([self.round.left, chosen.index])
        scale = torch.cat([self.round.left_scale, chosen.scale.float()])
        size, last = self.source.batch_size, position.round == self.rounds
        whole = len(rows) if last else len(rows) // size * size
        self.round = Round(
            rows[:whole],
            scale[:whole] if bool((scale != 1).any()) else None,
            rows[whole:],
            scale[whole:],
            rows[:0] if chosen.score_only is None else chosen.score_only,
            chosen.lr_factor,
            len(chosen) / max(1, candidates) or 1.0,  # of rows left by the plan before
            candidates,
        )
        return max(0, candidates - len(chosen) - len(self.round.score_only))

    def peek(self) -> Batch:
        """A batch of the training data, loaded without calling the policy."""
        before = [generator.get_state() for generator in self._generators]
        first = Feed(self.source, None, *self._key).next(Position(round=1))
        self._set_generators(before)
        if first is None:
            raise ValueError("the training data gave no batch: lower batch_size or add rows")
        return first

    def weight(self, position: Position, batch: Batch) -> Tensor | None:
        """Loss factor of each row of ``batch``, float32 ``[rows]``; ``None`` means 1."""
        if self.repeating:
            return torch.zeros(batch.rows, device=self._key[0])
        if self.round.scale is None:
            return None
        size = self.source.batch_size
        scale = self.round.scale[position.taken * size :][:size]
        return scale[distributed.share(len(scale))].to(self._key[0])

    def of_epoch(self, position: Position) -> float:
        """Completed fraction of the current epoch, in [0, 1]; 0 if unknown."""
        if not position.round:
            return 0.0
        batches = self._batches_in_round()
        share = min(1.0, position.taken / batches) if batches else 1.0
        return (position.round - 1 + share) / self.rounds

    def stop(self) -> None:
        """Release the iterator; the next batch is loaded again from its position."""
        self._batches = None

    def end_epoch(self) -> None:
        """Reset order and round for the next epoch."""
        self._batches = self._drawn = None
        self.round = Round()

    def _batches_in_round(self) -> float:
        """Batches in the current round; infinity for a loader without a length."""
        if self.round.rows is None:
            try:
                return len(self.source)
            except TypeError:
                return math.inf
        rows, size = len(self.round.rows), self.source.batch_size
        return rows // size if getattr(self.source, "drop_last", False) else -(-rows // size)

    def _generator_states(self) -> list[Tensor]:
        return self._drawn or [generator.get_state() for generator in self._generators]

    def _set_generators(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=False):
            generator.set_state(state)

    def state_dict(self) -> dict[str, Any]:
        """The current round, and the states of the generators at the start of the epoch."""
        return {"round": dict(vars(self.round)), "generator": self._generator_states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a planned round."""
        drawn = state["generator"]  # of earlier versions: the state of the DataLoader's, or None
        self._batches, self._drawn = None, [drawn] if isinstance(drawn, Tensor) else drawn
        numbers = {name: float(state["round"][name]) for name in ("lr_factor", "share")}
        self.round = Round(**{**state["round"], **numbers})
