"""Scores with state of each sample, which its index in the data set identifies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from astkit.gating.losses import whole_numbers
from astkit.gating.scored import Scored
from astkit.gating.significance import ContextScore
from astkit.gating.uncertainty import gradient_norm


def sample_index(score: object, index: Tensor | None, rows: int) -> Tensor:
    """``index`` of ``rows`` samples on the CPU, int64 ``[rows]``.

    Raises ``ValueError`` if it is missing, negative or has the wrong shape.
    """
    name = type(score).__name__
    if index is None:
        raise ValueError(
            f"{name} keeps per-sample state, but got no index: use a DataLoader of indexed(data),"
            " and in a custom training loop pass index=... to the gate"
        )
    index = index.detach().cpu()
    if not whole_numbers(index) or index.shape != (rows,) or bool((index < 0).any()):
        lowest = f", down to {index.min().item()}" if index.numel() else ""
        raise ValueError(
            f"index is {index.dtype} of shape {list(index.shape)}{lowest}, but {name} needs one"
            " non-negative integer per row: the position of the sample in the data set"
        )
    return index.long()


class EL2N(ContextScore):
    """Error norm ``||softmax(z) - y||``, averaged over all scorings of a sample so far.

    The first scoring of a sample equals `gradient_norm`. Non-finite values are returned unchanged
    and excluded from the average. Source: Paul, Ganguli and Dziugaite, "Deep Learning on a Data
    Diet" (NeurIPS 2021), who average over networks early in training; here the average is over the
    scorings within one run.
    """

    needs_index = True

    def __init__(self) -> None:
        # of norms, and visits; float64 on the CPU: the same accuracy of long sums for every device
        self.sums = torch.zeros(2, 0, dtype=torch.float64)

    def score(self, batch: Scored) -> Tensor:
        norms = gradient_norm(batch.outputs, batch.targets, batch.inputs)
        index = sample_index(self, batch.index, len(norms))
        missing = int(index.max()) + 1 - self.sums.shape[1] if len(index) else 0
        if missing > 0:
            self.sums = F.pad(self.sums, (0, missing))
        finite = norms.isfinite()
        kept = finite.cpu()
        known = norms.detach().cpu().double()[kept]
        self.sums.index_add_(1, index[kept], torch.stack([known, torch.ones_like(known)]))
        total, visits = self.sums[:, index]
        return torch.where(finite, (total / visits).to(norms), norms)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = state["sums"].clone()
