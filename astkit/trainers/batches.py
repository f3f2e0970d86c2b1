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
from astkit.datasets.foreign import divide, name_of
from astkit.gating.epoch import Epoch
from astkit.gating.policy import Policy
from astkit.progress import warn


class RowsByNumber:
    """Training data whose rows are loaded in any order, from any place in it."""

    def __init__(self, source: Any, epoch: Epoch) -> None:
        self.source: Any = divide(source)
        self.epoch = epoch

    def begin(self, batch: int, taken: int) -> Iterator[Batch]:
        """The batches from number ``batch`` of the epoch on; ``taken`` of the round are done."""
        number = self.epoch.number
        if self.epoch.planner is None:
            return self.source.batches(number, None, taken)
        planned = slice(0, self.part(batch - taken).stop)
        again = self.epoch.occurrences(planned)
        options = {} if again is None else {"occurrence": again}
        return self.source.batches(number, self.epoch.rows[planned], batch, **options)

    def next(self, loading: Iterator[Batch], place: tuple[int, int]) -> Batch | None:
        """The next batch; the source seeds what it draws."""
        return next(loading, None)

    def part(self, first_batch: int) -> slice:
        """The planned rows of a round that begins with a batch; the rest waits for the next one."""
        size = self.source.batch_size
        first = first_batch * size
        rows = len(self.epoch.rows) - first
        rows = distributed.shared_evenly(rows) if self.epoch.complete else rows // size * size
        return slice(first, first + rows)

    def rows(self, batch: Batch | None, number: int, taken: int) -> int:
        """Rows of a batch in all processes together."""
        size = self.source.batch_size
        part = slice(0, distributed.shared_evenly(self.epoch.draws))
        if self.epoch.planner is not None:
            part = self.part(number - taken)
        return min(part.stop - part.start - taken * size, size)

    def batches_in_round(self, first_batch: int, taken: int) -> float:
        """Batches in a round that begins with a batch."""
        if self.epoch.planner is None:
            return len(self.source)
        part, size = self.part(first_batch), self.source.batch_size
        rows = part.stop - part.start
        return rows // size if getattr(self.source, "drop_last", False) else -(-rows // size)


class RowsInOrder:
    """Training data that are read in their own order, from the beginning, in each pass."""

    def __init__(self, source: Any, epoch: Epoch, device: torch.device, seed: int) -> None:
        self.source: Any = divide(source)
        self.epoch = epoch
        self.device, self.seed = device, seed

    def begin(self, batch: int, taken: int) -> Iterator[Batch]:
        """A new pass, also in the middle of an epoch, of which a warning tells."""
        if taken:
            warn(
                f"the run goes on in the middle of epoch {self.epoch.number}, for which a"
                f" {name_of(self.source)} starts a new pass: some rows of this epoch may come twice"
                " or not at all; pass the data set itself, with batch_size=..., to continue with"
                " the row that is next"
            )
        return self.source.batches(self.epoch.number)

    def next(self, loading: Iterator[Batch], place: tuple[int, int]) -> Batch | None:
        """The next batch; what it draws from the default generators depends on its place."""
        with rng.restored(self.device, self.seed, "load", *place, *distributed.key()):
            return next(loading, None)

    def rows(self, batch: Batch | None, number: int, taken: int) -> int:
        """Rows of a batch in all processes together; ``RuntimeError`` if one has none."""
        rows = 0 if batch is None else batch.rows
        rows, with_batch = map(int, distributed.total(rows, batch is not None))
        if 0 < with_batch < distributed.world():
            raise RuntimeError(
                f"{with_batch} of {distributed.world()} processes have a batch {number} in epoch"
                f" {self.epoch.number}: let the DataLoader yield equally many in each, such as with"
                " sampler=DistributedSampler(data)"
            )
        return rows

    def batches_in_round(self, first_batch: int, taken: int) -> float:
        """Until the loader ends; in an epoch that goes on, as many as there were left."""
        return length(self.source) if taken else math.inf


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
        self.undivided = source
        planner = policy if policy.plans else None
        if planner is not None:
            _check_selectable(planner, source)
        data = getattr(source, "data", None)
        validated = getattr(validation, "data", getattr(validation, "loader", None))
        self.epoch = Epoch(planner, source.num_samples or 0, data, validated)
        self.device, self.seed = device, seed
        self.batch = self.taken = self.rows = 0
        self.processes, self.process = distributed.world(), distributed.key()
        self._in_round = math.inf  # batches in the current round
        self.reader: RowsByNumber | RowsInOrder
        if hasattr(source, "order"):
            self.reader = RowsByNumber(source, self.epoch)
        else:
            self.reader = RowsInOrder(source, self.epoch, device, seed)
        self.source: Any = self.reader.source
        self._loading: Iterator[Batch] | None = None

    def plan(self, progress: float) -> int:
        """Start the next round; returns the number of candidates that need not be loaded."""
        self.taken, self._loading = 0, None
        unloaded = 0
        if self.epoch.planner is None:
            self.epoch.planned = 1
        else:
            unloaded = self.epoch.plan(self.source.order(self.epoch.number), progress)
        self._in_round = self.reader.batches_in_round(self.batch, 0)
        return unloaded

    def next(self) -> Batch | None:
        """The next batch; ``None`` if the round is over or none is planned."""
        if not self.epoch.planned or self.taken >= self._in_round:
            return None
        if self._loading is None:
            self._loading = self.reader.begin(self.batch, self.taken)
        batch = self.reader.next(self._loading, (self.epoch.number, self.batch))
        if self.processes == 1:
            self.rows = 0 if batch is None else batch.rows
        else:
            self.rows = self.reader.rows(batch, self.batch, self.taken)
        if batch is None:
            self._in_round = self.taken  # the end of a loader
        return batch

    def weight(self) -> Tensor | None:
        """Loss factor of each row of the latest batch, float32 ``[rows]``; ``None`` means 1."""
        if self.epoch.planner is None:
            return None
        size = self.source.batch_size
        scale = self.epoch.scale[self.batch * size :][: self.rows]
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
            first = self.batch - self.taken
            self._in_round = self.reader.batches_in_round(first, self.taken)


def length(source: Any) -> float:
    """How many batches a source says to have, 1 at least; infinity if it does not say."""
    try:
        return max(1, len(source))
    except TypeError:
        return math.inf


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
