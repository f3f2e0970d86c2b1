"""Result of a selection: rows, their weights, and the normaliser of the weighted loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from astkit import distributed
from astkit.batch import count_rows, take_rows, tensors


@dataclass(frozen=True)
class Selection:
    """Rows to train on, with the loss ``sum(weight * loss) / normaliser``.

    With several processes, a gate that selects no row of its share selects one with weight 0, since
    every process has to take part in the forward and backward pass.

    Attributes:
        index: int64 ``[n]``: rows of the data set (``plan``) or batch (``choose``); may repeat.
        weight: float ``[n]``, 0 or more; default 1. ``[n, ...]`` for weights per token.
        normaliser: divisor of the weighted sum; by default the sum of the weights. With the number
            of rows instead, weights such as 1 / (1 - r) give an unbiased gradient. In a plan it
            refers to all n rows: a batch of b of them divides by normaliser * b / n.
        score_only: plans only, int64 ``[m]``: rows to score without training at the end of the
            round; the results are passed to ``observe``.
        lr_factor: plans only: learning rate factor during the round.
        candidates: number of candidate rows.
        rate: fraction of active candidates, fallback rows excluded.
        threshold: threshold of the scores; ``None`` without scoring.
        fallback: whether rows were added because too few were active.
        target_rate: target rate of the gate, or ``None``.
        active: bool ``[n]``: false for rows added by fallback or padding; ``None``: all active.
    """

    index: Tensor
    weight: Tensor = None  # type: ignore[assignment]
    normaliser: float | Tensor | None = None
    score_only: Tensor | None = None
    lr_factor: float = 1.0
    candidates: int | None = None
    rate: float | None = None
    threshold: float | None = None
    fallback: bool = False
    target_rate: float | None = None
    active: Tensor | None = None

    def __post_init__(self) -> None:
        if self.weight is None:
            weight = torch.ones(len(self.index), device=self.index.device)
            object.__setattr__(self, "weight", weight)
        if not len(self) and self.threshold is not None and distributed.world() > 1:
            for name, value in vars(self.padded()).items():
                object.__setattr__(self, name, value)

    def padded(self) -> Selection:
        """The first row of the batch with weight 0, in place of an empty selection."""
        index, weight = self.index.new_zeros(1), self.weight.new_zeros(1, *self.weight.shape[1:])
        return replace(self, index=index, weight=weight, active=torch.zeros_like(index).bool())

    def __len__(self) -> int:
        return len(self.index)

    @property
    def total(self) -> float | Tensor:
        """The normaliser if given, else the sum of the weights."""
        return self.weight.sum() if self.normaliser is None else self.normaliser

    @property
    def scale(self) -> Tensor:
        """Weights ``[n, ...]`` for a loss that is averaged over the rows."""
        return self.weight * (len(self) / self.total)

    def mean(self, losses: Tensor) -> Tensor:
        """``sum(weight * loss) / normaliser``, 0-dim; ``losses`` has one entry per selected row.

        An empty selection gives zero with zero gradients. With several processes, each must call
        this once per batch: the normalisers are averaged, so that the average of the gradients over
        the processes is that of one process which trains on all selected rows.

        Raises ``ValueError`` unless ``losses`` has the shape of the weights.
        """
        if losses.shape != self.weight.shape:
            raise ValueError(
                f"losses has shape {list(losses.shape)}, but {len(self)} rows were selected: pass"
                " one loss per selected row, from a criterion built with reduction='none'"
            )
        total = (losses * self.weight).sum()
        if distributed.world() > 1:
            shared = distributed.total(float(self.total))[0] / distributed.world()
            return total / max(shared, 1e-30)  # 0 if no process selected a row
        return total / self.total if len(self) else total

    def take(self, batch: Any) -> Any:
        """Selected rows of every tensor in ``batch``, a nested structure of tensors.

        Other objects are passed through. Raises ``ValueError`` for a tensor whose
        first dimension is not the number of candidates.
        """
        for tensor in tensors(batch):
            if self.candidates is not None and tensor.shape[:1] != (self.candidates,):
                raise ValueError(
                    f"batch holds a tensor of shape {list(tensor.shape)}, but the selection was"
                    f" made from {self.candidates} rows: pass the batch that was scored"
                )
        rows = count_rows(batch) if self.candidates is None else self.candidates
        return take_rows(batch, self.index, rows)

    def check(self, rows: int, policy: object) -> Selection:
        """Return this selection if it is valid for ``rows`` rows.

        Raises ``ValueError``, naming ``policy``, for rows out of range and invalid weights or
        normaliser.
        """
        name = type(policy).__name__
        for what, index in (("index", self.index), ("score_only", self.score_only)):
            if index is not None:
                _check_index(name, what, index, rows)
        weight = self.weight
        if len(weight) != len(self) or not bool((weight >= 0).all() & weight.isfinite().all()):
            raise ValueError(
                f"{name} gave weights of shape {list(weight.shape)} that are not all finite and 0"
                f" or more to {len(self)} rows: give one such weight per row"
            )
        if self.normaliser is not None and not 0 < float(self.normaliser) < float("inf"):
            raise ValueError(
                f"{name} gave the normaliser {float(self.normaliser)}: give a number above 0, or"
                " None for the sum of the weights"
            )
        return self


def _check_index(name: str, what: str, index: Tensor, rows: int) -> None:
    if index.dtype != torch.int64 or index.ndim != 1:
        raise ValueError(
            f"{name} gave {what} as {index.dtype} of shape {list(index.shape)}: give int64 rows of"
            " shape [n]"
        )
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= rows):
        raise ValueError(
            f"{name} selected rows {int(index.min())} to {int(index.max())} of {rows}, some of"
            f" which do not exist: select from 0 to {rows - 1}"
        )
