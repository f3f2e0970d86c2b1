"""Scores with per-sample state: one number per sample of the data set.

Samples are identified by their data set index, which a `Loader` or a DataLoader of `indexed` data
provides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

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


class PerSample:
    """One number per sample, initially 0; grows to the largest index seen."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        # float64 on the CPU: the same accuracy of long sums for every device
        self.values = torch.tensor(list(values), dtype=torch.float64)

    def at(self, index: Tensor) -> Tensor:
        """Values of the samples ``index [n]``, float64 ``[n]``."""
        missing = int(index.max()) + 1 - len(self.values) if len(index) else 0
        self.values = torch.cat([self.values, self.values.new_zeros(max(0, missing))])
        return self.values[index]

    def add(self, index: Tensor, amounts: Tensor) -> None:
        """Add ``amounts [n]`` at ``index [n]``; repeated indices accumulate."""
        self.at(index)
        self.values.index_add_(0, index, amounts.cpu().double())


class EL2N(ContextScore):
    """Error norm ``||softmax(z) - y||``, averaged over all scorings of a sample so far.

    The first scoring of a sample equals `gradient_norm`. Non-finite values are returned unchanged
    and excluded from the average. Source: Paul, Ganguli and Dziugaite, "Deep Learning on a Data
    Diet" (NeurIPS 2021), who average over networks early in training; here the average is over the
    scorings within one run.
    """

    needs_index = True

    def __init__(self) -> None:
        self.norms, self.visits = PerSample(), PerSample()

    def score(self, batch: Scored) -> Tensor:
        norms = gradient_norm(batch.outputs, batch.targets, batch.inputs)
        index = sample_index(self, batch.index, len(norms))
        finite = norms.isfinite()
        known = index[finite.cpu()]
        self.norms.add(known, norms[finite])
        self.visits.add(known, torch.ones(len(known)))
        mean = self.norms.at(index) / self.visits.at(index)
        return torch.where(finite, mean.to(norms), norms)

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self.norms.values.tolist(), "visits": self.visits.values.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norms, self.visits = PerSample(state["norms"]), PerSample(state["visits"])
