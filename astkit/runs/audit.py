"""Audit of a run on data with known wrong labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Audit:
    """How well the last losses find wrong labels, and how much training was spent on them.

    Attributes:
        flagged: number of rows flagged, those with the highest last loss: as many as are wrong.
        found: number of wrong labels among them.
        wrong: number of wrong labels among all ``rows``.
        average_precision: mean of the precision at the rank of each wrong label, by last loss.
        training_share: share of the training that was spent on rows with a wrong label.
    """

    flagged: int
    found: int
    wrong: int
    rows: int
    average_precision: float
    training_share: float

    @property
    def precision(self) -> float:
        """Share of the flagged rows whose label is wrong, and of the wrong labels flagged."""
        return self.found / self.flagged

    @property
    def chance(self) -> float:
        """Share of wrong labels: the precision expected of a random order."""
        return self.wrong / self.rows

    def __str__(self) -> str:
        return (
            f"{self.flagged:,} of {self.rows:,} rows flagged: precision {self.precision:.1%}"
            f" (chance {self.chance:.1%}), average precision {self.average_precision:.1%};"
            f" {self.training_share:.1%} of the training was spent on wrong labels"
        )


def audit(trained: Tensor, losses: Tensor, wrong: Tensor) -> Audit:
    """How well the highest last losses find the rows with a wrong label.

    Networks fit consistent samples first, so mislabelled samples keep a high loss (Arpit et al.,
    "A Closer Look at Memorization in Deep Networks", 2017). With cross-entropy this order is that
    of the self-confidence of Northcutt et al., "Confident Learning", 2021. Rows without a loss
    rank last.

    Args:
        trained: int ``[parts, N]``: how often each row was trained on in each part of the budget.
        losses: float ``[N]``: the last loss of each row, NaN for rows without one.
        wrong: bool ``[N]``: the rows whose label is known to be wrong.

    Raises ``ValueError`` for arrays of other shapes, and without a wrong label.
    """
    check_visits(trained, losses)
    rows = len(losses)
    wrong = wrong.cpu()
    if wrong.shape != losses.shape or wrong.dtype != torch.bool or not wrong.any():
        raise ValueError(
            f"wrong is {wrong.dtype} of shape {list(wrong.shape)} and marks"
            f" {int(wrong.count_nonzero())} rows: pass a bool tensor of shape [{rows}] that marks"
            " at least one"
        )
    number = int(wrong.sum())
    hits = wrong[by_loss(losses)].double()
    precision = hits.cumsum(0) / torch.arange(1, rows + 1)
    total = trained.cpu().double().sum(0)
    return Audit(
        flagged=number,
        found=int(hits[:number].sum()),
        wrong=number,
        rows=rows,
        average_precision=float((precision * hits).sum() / number),
        training_share=float(total[wrong].sum() / total.sum().clamp_min(1)),
    )


def by_loss(losses: Tensor) -> Tensor:
    """Rows by falling loss, int64 ``[N]`` on the CPU; rows without a loss (NaN) are last."""
    return losses.cpu().nan_to_num(-torch.inf, torch.inf).argsort(descending=True, stable=True)


def check_visits(trained: Tensor, losses: Tensor) -> None:
    """Raise ``ValueError`` unless ``trained`` is ``[parts, N]`` and ``losses`` is ``[N]``."""
    if trained.ndim != 2 or losses.shape != trained.shape[1:] or not losses.numel():
        raise ValueError(
            f"trained has shape {list(trained.shape)} and losses {list(losses.shape)}: pass the"
            " counts as [parts, N] and one loss for each of the N rows"
        )
