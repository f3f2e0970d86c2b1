"""Visits: reports per-sample results of training and scoring to the policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from astkit import distributed
from astkit.batch import Batch
from astkit.datasets import BatchSource
from astkit.gating import Policy, Scored
from astkit.gating.policy import overrides
from astkit.gating.scored import correctness
from astkit.gating.visits import Exchange, Visit, visit_of
from astkit.trainers.learner import Learner
from astkit.trainers.steps import StepResult, per_row

Known = tuple[Tensor | None, Tensor | None]  # correctness and largest probability of rows


class Visits:
    """Calls ``Policy.observe`` for the rows that were trained on or scored.

    With several processes, this is done in `exchange`, for the rows of all of them.
    """

    def __init__(self, policies: Iterable[Policy | None], learner: Learner) -> None:
        self.policies = [each for each in dict.fromkeys(policies) if each is not None]
        self.learner, self._observing = learner, self.overriding("observe")
        self.watching = any(policy.needs_outputs for policy in self._observing)
        learner.watching = self.watching
        self._exchange = Exchange()

    def overriding(self, method: str) -> list[Policy]:
        """The policies that override ``method``."""
        return [policy for policy in self.policies if overrides(policy, method)]

    def check(self, batch: Batch) -> None:
        """Raise ``ValueError`` if a policy keeps per-sample state and the batch has no index."""
        for policy in self.policies:
            if policy.needs_index and batch.index is None:
                raise ValueError(
                    f"{type(policy).__name__} keeps per-sample state, but the training data provide"
                    " no indices: pass the data set itself with batch_size=..., or use a DataLoader"
                    " of indexed(data)"
                )

    def trained(self, batch: Batch, result: StepResult, repeating: bool = False) -> None:
        """Report a step on ``batch``, unless its rows only repeat those of another process."""
        if not self._observing:
            return
        if repeating:
            return self._tell([])
        watched = self.learner.take_watched()
        rows, losses = result.rows, result.losses
        chosen = result.selection
        if result.padded is not None and chosen is not None:  # drop padding rows
            kept = per_row(chosen.weight) > 0
            rows, losses, watched = rows[kept], losses[kept], _of(watched, kept)
        visits = [self._visit(batch.index, rows, losses, watched, trained=True)]
        seen = result.seen
        if seen is not None and seen.known_losses is not None:
            rest = torch.ones(batch.rows, dtype=torch.bool)
            rest[rows.cpu()] = False
            only = rest.nonzero().squeeze(1).to(seen.known_losses.device)
            known = self._known(seen, only)
            visits.append(self._visit(batch.index, only, seen.known_losses[only], known, False))
        self._tell(visits)

    def scored(self, seen: Scored) -> None:
        """Report rows that are scored without training."""
        rows = torch.arange(seen.rows, device=seen.losses.device)
        self._tell([self._visit(seen.index, rows, seen.losses, self._known(seen, rows), False)])

    def exchange(self) -> None:
        """Report the visits of all processes since the last call; every process must call it."""
        for visit in self._exchange.take():
            self._report(visit)

    def _known(self, seen: Scored, rows: Tensor) -> Known:
        if not self.watching or not self.learner.classifying:
            return None, None
        return _of(correctness(seen.outputs, seen.targets), rows)

    def _visit(
        self, index: Tensor | None, rows: Tensor, losses: Tensor, known: Known, trained: bool
    ) -> Visit:
        samples = None if index is None else index[rows.to(index.device)]
        return visit_of(samples, losses, known, trained)

    def _tell(self, visits: list[Visit]) -> None:
        visits = [visit for visit in visits if len(visit.losses)]
        if distributed.world() > 1:
            self._exchange.put(*visits)
            return
        for visit in visits:
            self._report(visit)

    def _report(self, visit: Visit) -> None:
        for policy in self._observing:
            policy.observe(visit)


def _of(known: Known, rows: Tensor) -> Known:
    correct, confidence = (None if part is None else part[rows] for part in known)
    return correct, confidence


class TrainingData:
    """Training data as `Scored` batches, for ``Policy.prepare``; costs are counted on use.

    Every iteration has a different order.
    """

    def __init__(self, source: BatchSource, learner: Learner) -> None:
        self.source, self.learner, self._passes = source, learner, 0

    def __iter__(self) -> Iterator[Scored]:
        passes, self._passes = self._passes, self._passes + 1
        for batch in self.source.batches(passes):
            scored = self.learner.scored(self.learner.prepare(batch))
            scored.apart = True
            yield scored

    @property
    def samples(self) -> int | None:
        """Number of rows of the data set; ``None`` if unknown."""
        return self.source.num_samples
