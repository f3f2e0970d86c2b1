"""The training batches of a run, one by one, from any position in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from astkit import distributed, rng
from astkit.datasets import BatchSource, Loader
from astkit.datasets.batch import Batch
from astkit.datasets.foreign import divided, drawn_alike, generators_of, name_of
from astkit.gating.epoch import Epoch, Features
from astkit.gating.policy import Policy, overrides


class Batches:
    """Batches of ``source`` in the order that a policy plans, or in the loader's.

    Rows that do not fill a batch at the end of a round come first in the next round of the same
    epoch. With several processes, each loads its share of the same batches; a DataLoader has to
    yield different rows in each process.

    Args:
        source: the training data.
        policy: plans the rows if it overrides ``plan``.
        validation: likewise; the policy may look at its data.
        device, seed: of a loader that draws from torch's default generators.
        features, budget: see `RunInfo`.

    Attributes:
        epoch: the plan of the current epoch.
        batch: batches loaded in this epoch; ``taken`` of them since the latest plan.
        rows: rows of the current batch in all processes.

    Raises ``ValueError`` if the policy plans but rows of the data cannot be selected, or if all
    processes would train on the same rows.
    """

    def __init__(
        self,
        source: BatchSource,
        policy: Policy,
        validation: BatchSource | None,
        device: torch.device,
        seed: int,
        features: Features,
        budget: float | None,
    ) -> None:
        self.source: Any = divided(source)
        self._undivided = source
        planner = policy if overrides(policy, "plan") else None
        if planner is not None:
            _check_selectable(planner, source)
        data = getattr(source, "data", None)
        target = getattr(validation, "data", getattr(validation, "loader", None))
        known = features if hasattr(validation, "order") else None
        self.epoch = Epoch(planner, source.num_samples or 0, data, target, known, budget)
        self.device, self.seed = device, seed
        self.batch = self.taken = self.rows = 0
        self._alone = distributed.world() == 1
        self._in_round = math.inf  # batches in the current round
        self.selects = hasattr(source, "order")  # rows can be loaded in any order
        self._loading: Iterator[Batch] | None = None
        self._generators = generators_of(source)
        self._drawn: list[Tensor] | None = None  # their states before the epoch

    def plan(self, progress: float) -> int:
        """Start the next round; returns the number of candidates that need not be loaded."""
        self.taken, self._loading = 0, None
        unloaded = 0
        if self.epoch.planner is None:
            self.epoch.planned = 1
        else:
            unloaded = self.epoch.plan(self.source.order(self.epoch.number), progress)
        self._in_round = self._batches_in_round()
        return unloaded

    def next(self) -> Batch | None:
        """The next batch; ``None`` if the round is over or none is planned."""
        if not self.epoch.planned or self.taken >= self._in_round:
            return None
        first = self.batch
        if self._loading is None:
            self._loading = self._begun()
            # a loader with its own order is read again from the start of the epoch
            first -= 0 if self.selects else self.taken
        batch = None
        for number in range(first, self.batch + 1):
            # so seeded, data that draw from the default generators do the same when resumed
            if isinstance(self.source, Loader):  # which seeds them itself
                batch = next(self._loading, None)
                continue
            place = ("load", self.epoch.number, number)
            with rng.restored(self.device, self.seed, *place, *distributed.key()):
                batch = next(self._loading, None)
        self.rows = self._rows_of(batch)
        if batch is None:
            self._in_round = self.taken  # the end of a loader
        return batch

    def _begun(self) -> Iterator[Batch]:
        number = self.epoch.number
        if not self.selects:
            self._drawn = self._generator_states()
            for generator, state in zip(self._generators, self._drawn, strict=False):
                generator.set_state(state)
            return self.source.batches(number)
        if self.epoch.planner is None:
            return self.source.batches(number, None, self.taken)
        planned = slice(0, self._part().stop)
        again = self.epoch.occurrences(planned)
        options = {} if again is None else {"occurrence": again}
        return self.source.batches(number, self.epoch.rows[planned], self.batch, **options)

    def _part(self) -> slice:
        """The planned rows that this round trains on; the rest waits for the next one."""
        size, planned = self.source.batch_size, len(self.epoch.rows)
        first = (self.batch - self.taken) * size
        rows = planned - first
        rows = distributed.shared_evenly(rows) if self.epoch.complete else rows // size * size
        return slice(first, first + rows)

    def _rows_of(self, batch: Batch | None) -> int:
        """Rows of a batch in all processes together."""
        own = 0 if batch is None else batch.rows
        if self._alone:
            return own
        if isinstance(self.source, Loader):
            size = self.source.batch_size
            part = slice(0, distributed.shared_evenly(self.source.num_samples))
            if self.epoch.planner is not None:
                part = self._part()
            return min(part.stop - part.start - self.taken * size, size)
        rows, with_batch = map(int, distributed.total(own, batch is not None))
        if 0 < with_batch < distributed.world():
            raise RuntimeError(
                f"{with_batch} of {distributed.world()} processes have a batch {self.batch} in"
                f" epoch {self.epoch.number}: let the DataLoader yield equally many in each, such"
                " as with sampler=DistributedSampler(data)"
            )
        return rows

    def weight(self, batch: Batch) -> Tensor | None:
        """Loss factor of each row of the latest batch, float32 ``[rows]``; ``None`` means 1."""
        if self.epoch.planner is None:
            return None
        size = self.source.batch_size
        scale = self.epoch.scale[self.batch * size :][: self.rows]
        if bool((scale == 1).all()):
            return None
        return scale[distributed.share(len(scale))].to(self.device)

    def trained(self) -> None:
        """Count a batch as trained on."""
        self.batch += 1
        self.taken += 1

    def _batches_in_round(self) -> float:
        """Batches in the current round; infinity for a loader, which is read until it ends."""
        if not self.selects:
            return math.inf
        if self.epoch.planner is None:
            return len(self.source)
        part, size = self._part(), self.source.batch_size
        rows = part.stop - part.start
        return rows // size if getattr(self.source, "drop_last", False) else -(-rows // size)

    @property
    def over(self) -> bool:
        """Whether the last batch of the epoch was trained on."""
        return self.epoch.complete and self.taken >= self._in_round

    @property
    def of_epoch(self) -> float:
        """Completed fraction of the current epoch, in [0, 1]; 0 if unknown."""
        epoch = self.epoch
        if not epoch.planned:
            return 0.0
        if epoch.planner and len(epoch.rows) == epoch.samples * epoch.planned // epoch.rounds:
            return min(1.0, self.batch / len(self.source))  # as if planned in one round
        return (epoch.planned - 1 + self._of_round()) / epoch.rounds

    def _of_round(self) -> float:
        """Completed fraction of the current round; that of a loader is below 1 until it ends."""
        if self._in_round < math.inf:
            return min(1.0, self.taken / self._in_round) if self._in_round else 1.0
        try:  # a stream in workers has more batches than its length, a wrong length any number
            return min(self.taken / len(self.source), 1 - 1e-9)
        except (TypeError, ZeroDivisionError):
            return 0.0

    def end_epoch(self) -> None:
        """Release the iterator; the next epoch follows if this one is `over`."""
        if not self.batch:
            raise ValueError(
                f"the training data gave no batch in epoch {self.epoch.number}: lower batch_size or"
                " disable drop_last, and let the policy select at least one row"
            )
        over, self._loading, self._drawn = self.over, None, None
        if over:
            self.batch = self.taken = 0
            self.epoch.start(self.epoch.number + 1)

    def stop(self) -> None:
        """Release the iterator; the next batch is loaded again from its position."""
        self._loading = None

    def peek(self, rows: Tensor | None = None) -> Batch:
        """A first batch, the same at any time in a run and, of a data set, in any process.

        Changes nothing between two epochs. ``rows``: those to load, by default the first ones.
        """
        alike = drawn_alike(self._undivided)
        with alike, rng.restored(self.device, self.seed, "load", 0, 0):
            first: Batch | None = next(iter(self._undivided.batches(0, rows)), None)
        if first is None:
            raise ValueError("the training data gave no batch: lower batch_size or add rows")
        return first

    def few(self, count: int) -> Batch:
        """The first ``count`` rows as they are; a first batch of a loader with its own order."""
        if not isinstance(self._undivided, Loader):
            return self.peek()
        source = self._undivided.plain()
        source.num_workers = 0  # which would take longer to start
        rows = torch.arange(min(count, source.num_samples))
        with rng.restored(self.device, self.seed, "load", 0, 0):
            return next(source.batches(0, rows))

    def _generator_states(self) -> list[Tensor]:
        return self._drawn or [generator.get_state() for generator in self._generators]

    def state_dict(self) -> dict[str, Any]:
        """Position, plan, and the states of the generators at the start of the epoch."""
        return {
            "batch": self.batch,
            "taken": self.taken,
            "plan": self.epoch.state_dict(),
            "generators": self._generator_states(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state``."""
        self._loading, self._drawn = None, state["generators"]
        self.batch, self.taken = int(state["batch"]), int(state["taken"])
        self.epoch.load_state_dict(state["plan"])
        if self.epoch.planned:
            self._in_round = self._batches_in_round()


def _check_selectable(policy: Policy, source: Any) -> None:
    if not hasattr(source, "order") or not source.num_samples:
        loader = f"a {name_of(source)} loads all rows"
        remedy = "pass the data set instead, with batch_size=..., or an astkit Loader"
        if getattr(source, "streamed", False):
            loader = "a stream can only be read in order"
            remedy = "use a policy that selects after scoring, such as Gate"
        raise ValueError(
            f"{type(policy).__name__} selects rows before loading, but {loader}: {remedy}"
        )
