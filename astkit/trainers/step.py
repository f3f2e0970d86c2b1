"""What a training step did, and the visits that the policy is told of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from astkit.datasets.batch import Batch
from astkit.gating.selection import Predictions, Scored, Selection, predictions
from astkit.gating.visits import Visit


class StepResult(NamedTuple):
    """What a training step did: rows trained on, their losses, and the selection."""

    losses: Tensor  # [n], before the update
    selection: Selection | None = None  # of rows of the batch; None: all of them
    seen: Scored | None = None  # the batch as the policy saw it
    predictions: Predictions = Predictions()  # for the rows, if they are watched

    @property
    def rows(self) -> Tensor:
        """Rows of the batch that were trained on, including rows of weight 0: int64 ``[n]``."""
        trained = len(self.losses)  # none of them, if BatchNorm refused a single row
        return torch.arange(trained) if self.selection is None else self.selection.index[:trained]

    def visits(self, batch: Batch, watching: bool, ignores: bool = False) -> list[Visit]:
        """Visits to the rows trained on, without padding, and to those that were only scored.

        ``watching``: whether to tell predictions; ``ignores``: whether rows may have no label,
        of which nothing is told.
        """
        rows, losses, known = self.rows, self.losses, self.predictions
        real = ~losses.isnan() if ignores else None
        if self.selection is not None and self.selection.padding is not None:
            real = self.selection.weight[: len(rows)] > 0
        if real is not None:
            rows, losses, known = rows[real], losses[real], known.take(real)
        visits = [Visit(_index(batch.index, rows), losses, *known[:3])]
        seen = self.seen
        if seen is not None and seen.known_losses is not None:
            rest = torch.ones(batch.rows, dtype=torch.bool, device=seen.losses.device)
            rest[rows.to(rest.device)] = False
            rest = rest if seen.places is None else rest[seen.places]
            if len(rest) and seen.labelled is not None:
                rest &= seen.labelled
            rows, known = rest.nonzero().squeeze(1), Predictions()
            if watching:
                known = predictions(seen.outputs, seen.targets).take(rows)
            losses = seen.losses[rows]
            visits.append(Visit(_index(seen.index, rows), losses, *known[:3], trained=False))
        return [visit for visit in visits if len(visit.losses)]


def _index(index: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if index is None else index[rows.to(index.device)]
