"""What was chosen: rows and their weights, whether chosen before loading or after scoring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """The rows to train on.

    Attributes:
        index: int64 ``[chosen]``: rows of the batch (a gate) or of the data set (a sampler).
        weight: float32 ``[chosen]``: what each row counts for in ``mean``; 1 unless a policy
            corrects for its own bias.
        candidates: how many rows were chosen from.
        rate: share of the candidates that the decision made active; fallback rows do not count.
        threshold: the score that a row had to exceed; ``None`` where nothing was scored.
        fallback: whether rows were added at random because too few were active.
        target_rate: the rate that was wanted; ``None`` where nobody steered by one.
    """

    index: Tensor
    weight: Tensor
    candidates: int
    rate: float
    threshold: float | None = None
    fallback: bool = False
    target_rate: float | None = None

    def __len__(self) -> int:
        return len(self.index)

    def mean(self, losses: Tensor) -> Tensor:
        """Weighted mean of one loss a chosen row: ``sum(weight * loss) / sum(weight)``, 0-dim.

        Zero, with zero gradients, where nothing was chosen.

        Raises ``ValueError`` unless ``losses`` is ``[chosen]``.
        """
        if losses.shape != self.weight.shape:
            raise ValueError(
                f"losses has shape {list(losses.shape)}, but {len(self)} rows were chosen: pass one"
                " loss a chosen row, from a criterion built with reduction='none'"
            )
        total = (losses * self.weight).sum()
        return total / self.weight.sum() if len(self) else total

    def take(self, batch: Any) -> Any:
        """The chosen rows of every tensor in ``batch``: a tensor, tuple, list or mapping of such.

        Anything that is not a tensor is passed through. Raises ``ValueError`` for a tensor whose
        first dimension is not the number of candidates.
        """
        if isinstance(batch, Tensor):
            return self._rows(batch)
        if isinstance(batch, Mapping):
            return {key: self.take(value) for key, value in batch.items()}
        if isinstance(batch, tuple | list):
            parts = [self.take(value) for value in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        return batch

    def _rows(self, tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or tensor.shape[0] != self.candidates:
            raise ValueError(
                f"batch holds a tensor of shape {list(tensor.shape)}, but the selection was made"
                f" from {self.candidates} rows: pass the batch that was scored"
            )
        return tensor.index_select(0, self.index.to(tensor.device))


def everything(index: Tensor, rate: float = 1.0, candidates: int | None = None) -> Selection:
    """A selection of ``index`` with weight 1 each."""
    weight = torch.ones(len(index), device=index.device)
    return Selection(index, weight, len(index) if candidates is None else candidates, rate)
