"""The training batches of a run, one by one, from any position in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from astkit import distributed, rng
from astkit.datasets import BatchSource, Loader
from astkit.datasets.batch import Batch
from astkit.datasets.foreign import divide, name_of
from astkit.gating.epoch import Epoch
from astkit.gating.policy import Policy
from astkit.progress import warn


class Batches:
    """Batches of ``source`` in the order that a policy plans, or in the loader's.

    A stopped run goes on with the next batch, or, with a loader that is read in order, with a new
    pass of it. Rows that do not fill a batch at the end of a round come first in the next round of
    the same epoch. With several processes, each loads its share of the same batches; a DataLoader
    has to yield different rows in each process.

    Args:
        source: the training data.
        policy: plans the rows if it overrides ``plan``.
        validation: likewise; the policy may look at its data.
        device, seed: of a loader that draws from torch's default generators.

    Attributes:
        epoch: the plan of the current epoch.
        batch: batches loaded in this epoch; ``taken`` of them since the latest plan.
        rows: rows of the current batch in all processes.
        undivided: the training data of all ``processes``; ``process``: key of this one's draws.

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
    ) -> None:
        self.undivided, self.source = source, cast(Any, divide(source))
        self.by_number = hasattr(source, "order")
        planner = policy if policy.plans else None
        if planner is not None and not (self.by_number and source.num_samples):
            loader = f"a {name_of(source)} loads all rows"
            remedy = "pass the data set instead, with batch_size=..., or an astkit Loader"
            if getattr(source, "streamed", False):
                loader = "a stream can only be read in order"
                remedy = "use a policy that selects after scoring, such as Gate"
            raise ValueError(
                f"{type(policy).__name__} selects rows before loading, but {loader}: {remedy}"
            )
        data = getattr(source, "data", None)
        validated = getattr(validation, "data", getattr(validation, "loader", None))
        self.epoch = Epoch(planner, source.num_samples or 0, data, validated)
        self.device, self.seed = device, seed
        self.batch = self.taken = self.rows = 0
        self.processes, self.process = distributed.world(), distributed.key()
        self._in_round = math.inf  # batches in the current round
        self._loading: Iterator[Batch] | None = None

    def plan(self, progress: float) -> int:
        """Start the next round; returns the number of candidates that need not be loaded."""
        self.taken, self._loading = 0, None
        unloaded = 0
        if self.epoch.planner is None:
            self.epoch.planned = 1
        else:
            unloaded = self.epoch.plan(self.source.order(self.epoch.number), progress)
        self._in_round = self._batches_in_round(self.batch)
        return unloaded

    def next(self) -> Batch | None:
        """The next batch; ``None`` if the round is over or none is planned."""
        if not self.epoch.planned or self.taken >= self._in_round:
            return None
        if self._loading is None:
            self._loading = self._load()
        if self.by_number:
            batch = next(self._loading, None)  # the source seeds what it draws
        else:  # what it draws from the default generators depends on its place
            place = (self.epoch.number, self.batch, *self.process)
            with rng.restored(self.device, self.seed, "load", *place):
                batch = next(self._loading, None)
        self.rows = self._rows_of(batch)
        if batch is None:
            self._in_round = self.taken  # the end of a loader
        return batch

    def _load(self) -> Iterator[Batch]:
        """The batches from the current one on, or a new pass of a loader that is read in order."""
        number = self.epoch.number
        if self.by_number and self.epoch.planner is None:
            return self.source.batches(number, None, self.taken)
        if self.by_number:
            planned = slice(0, self._part(self.batch - self.taken).stop)
            rows, again = self.epoch.rows[planned], self.epoch.occurrences(planned)
            return self.source.batches(number, rows, self.batch, again)
        if self.taken:
            warn(
                f"the run goes on in the middle of epoch {number}, for which a"
                f" {name_of(self.source)} starts a new pass: some rows of this epoch may come twice"
                " or not at all; pass the data set itself, with batch_size=..., to continue with"
                " the row that is next"
            )
        return self.source.batches(number)

    def _part(self, first_batch: int) -> slice:
        """The rows of a round that begins with a batch; planned ones left wait for the next one."""
        if self.epoch.planner is None:
            return slice(0, distributed.shared_evenly(self.epoch.draws))
        size = self.source.batch_size
        first = first_batch * size
        rows = len(self.epoch.rows) - first
        rows = distributed.shared_evenly(rows) if self.epoch.complete else rows // size * size
        return slice(first, first + rows)

    def _rows_of(self, batch: Batch | None) -> int:
        """Rows of ``batch`` in all processes together; ``RuntimeError`` if one alone has none."""
        rows = 0 if batch is None else batch.rows
        if self.processes == 1:
            return rows
        if self.by_number:
            part, size = self._part(self.batch - self.taken), self.source.batch_size
            return min(part.stop - part.start - self.taken * size, size)
        rows, with_batch = map(int, distributed.total(rows, batch is not None))
        if 0 < with_batch < self.processes:
            raise RuntimeError(
                f"{with_batch} of {self.processes} processes have a batch {self.batch} in epoch"
                f" {self.epoch.number}: let the DataLoader yield equally many in each, such as with"
                " sampler=DistributedSampler(data)"
            )
        return rows

    def _batches_in_round(self, first_batch: int) -> float:
        """Batches in a round that begins with a batch; of a loader, until it ends."""
        if not self.by_number:  # a new pass in the middle of an epoch is as long as the rest of it
            return length(self.source) if self.taken else math.inf
        part, size = self._part(first_batch), self.source.batch_size
        rows = part.stop - part.start
        return rows // size if self.source.drop_last else -(-rows // size)

    def weight(self) -> Tensor | None:
        """Loss factor of each row of the latest batch, float32 ``[rows]``; ``None`` means 1."""
        if self.epoch.planner is None:
            return None
        scale = self.epoch.scale[self.batch * self.source.batch_size :][: self.rows]
        if bool((scale == 1).all()):
            return None
        return scale[distributed.share(len(scale))].to(self.device)

    def count_trained(self) -> None:
        """Count a batch as trained on."""
        self.batch += 1
        self.taken += 1

    @property
    def of_epoch(self) -> float:
        """Completed fraction of the current epoch, in [0, 1]; 0 if unknown."""
        epoch = self.epoch
        if not epoch.planned:
            return 0.0
        if epoch.planner and len(epoch.rows) == epoch.draws * epoch.planned // epoch.rounds:
            return min(1.0, self.batch / len(self.source))  # as dense training, to the bit
        of_round = 1.0
        if self.taken < self._in_round:  # a loader may have more batches than its length says
            expected = self._in_round if self._in_round < math.inf else length(self.source)
            of_round = min(self.taken / expected, 1 - 1e-9)
        return (epoch.planned - 1 + of_round) / epoch.rounds

    def end_epoch(self) -> None:
        """Release the iterator; the next epoch follows if all of this one was trained on."""
        if not self.batch:
            raise ValueError(
                f"the training data gave no batch in epoch {self.epoch.number}: lower batch_size or"
                " disable drop_last, and let the policy select at least one row"
            )
        self._loading = None
        if self.epoch.complete and self.taken >= self._in_round:
            self.batch = self.taken = 0
            self.epoch.start(self.epoch.number + 1)

    def stop(self) -> None:
        """Release the iterator; the next batch is loaded again from its position."""
        self._loading = None

    def peek(self) -> Batch:
        """A first batch, the same at any time in a run and, of a data set, in any process.

        Changes nothing between two epochs.
        """
        with rng.restored(self.device, self.seed, "load", 0, 0):
            first: Batch | None = next(iter(self.undivided.batches(0)), None)
        if first is None:
            raise ValueError("the training data gave no batch: lower batch_size or add rows")
        return first

    def few(self, count: int) -> Batch:
        """The first ``count`` rows as they are; a first batch of a loader with its own order."""
        if not isinstance(self.undivided, Loader):
            return self.peek()
        source = self.undivided.plain()
        source.num_workers = 0  # which would take longer to start
        rows = torch.arange(min(count, source.num_samples))
        with rng.restored(self.device, self.seed, "load", 0, 0):
            return next(source.batches(0, rows))

    def state_dict(self) -> dict[str, Any]:
        """Position and plan."""
        return {
            "batch": self.batch,
            "taken": self.taken,
            "plan": self.epoch.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state``."""
        self._loading = None
        self.batch, self.taken = int(state["batch"]), int(state["taken"])
        self.epoch.load_state_dict(state["plan"])
        if self.epoch.planned:
            self._in_round = self._batches_in_round(self.batch - self.taken)


def gives_new_tensors(source: Any) -> bool:
    """Whether no other pass gives the same tensors again, as one of a list of batches does."""
    loader = getattr(source, "loader", source)
    others = getattr(type(loader), "__iter__", DataLoader.__iter__) is not DataLoader.__iter__
    stacked = getattr(loader, "collate_fn", loader) in (None, default_collate)
    return not others and (stacked or getattr(loader, "num_workers", 0) > 0)


def length(source: Any) -> float:
    """How many batches a source says to have, 1 at least; infinity if it does not say."""
    with suppress(TypeError):
        return max(1, len(source))
    return math.inf
