"""Selection of tokens (Rho-1) as a criterion; `tests.benchmarks.tasks` measures it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from astkit.gating import cross_entropy_rows
from astkit.tasks.parts import Columns


class TokenSelection:
    """Criterion that trains the fraction ``share`` of a batch's tokens with the largest excess.

    Excess is the loss minus that of a reference model, the batch's column ``reference``, see
    `with_reference`. The forward and backward passes still compute all tokens, since the tokens of
    a sequence depend on each other: only the logits' gradient is sparse. Source: Lin et al.,
    "Rho-1: Not All Tokens Are What You Need", NeurIPS 2024.

    Raises ``ValueError`` for a share outside (0, 1], and for a batch without references.
    """

    def __init__(self, share: float = 0.6) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share is {share}: give a number above 0 and at most 1")
        self.share = share

    def __call__(self, outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """Losses and selection, ``[rows, length]``."""
        if "reference" not in batch:
            raise ValueError("the batch has no column 'reference': call with_reference on the data")
        losses, mask = cross_entropy_rows(outputs, batch)
        excess = (losses.detach() - batch["reference"]).masked_fill(~mask, -torch.inf)
        count = max(1, round(self.share * int(mask.sum())))
        chosen = torch.zeros_like(mask).flatten()
        chosen[excess.flatten().topk(count).indices] = True
        # row means are averaged, so that each selected token needs the weight 1 / count
        weight = len(losses) * chosen.view_as(mask).sum(1, keepdim=True) / count
        return losses * weight, chosen.view_as(mask)


@torch.no_grad()
def with_reference(data: Columns, model: nn.Module, rows: int = 256) -> Columns:
    """``data`` with a column ``reference``: the losses of ``model`` per token, ``[N, length]``."""
    columns = dict(zip(data.names, data.tensors, strict=True))
    parts = [
        cross_entropy_rows(model(tokens), {"labels": labels})[0]
        for tokens, labels in zip(
            columns["tokens"].split(rows), columns["labels"].split(rows), strict=True
        )
    ]
    return Columns(tokens=columns["tokens"], reference=torch.cat(parts), labels=columns["labels"])
