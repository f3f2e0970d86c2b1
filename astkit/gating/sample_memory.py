"""Scores that remember earlier visits: one number for each sample of the data set.

A sample is identified by its index in the data set, which a `Loader` or a DataLoader of `indexed`
data provides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from astkit.gating.losses import Criterion, cross_entropy_rows, row_losses, whole_numbers
from astkit.gating.scored import Scored
from astkit.gating.significance import ContextScore
from astkit.gating.uncertainty import gradient_norm


def sample_index(score: object, index: Tensor | None, rows: int) -> Tensor:
    """``index`` of ``rows`` samples on the CPU, int64 ``[rows]``.

    Raises ``ValueError`` where it is missing, of another shape, or negative.
    """
    name = type(score).__name__
    if index is None:
        raise ValueError(
            f"{name} remembers each sample by its index in the data set, but got none: let a"
            " DataLoader load indexed(data), and in a loop of your own pass index=... to the gate"
        )
    index = index.detach().cpu()
    if not whole_numbers(index) or index.shape != (rows,) or bool((index < 0).any()):
        lowest = f", down to {index.min().item()}" if index.numel() else ""
        raise ValueError(
            f"index is {index.dtype} of shape {list(index.shape)}{lowest}, but {name} needs one"
            " whole number of 0 or more for each row: the sample's place in the data set"
        )
    return index.long()


class PerSample:
    """One number for each sample of a data set, 0 at first; as long as the largest index seen."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        # float64 on the CPU, so that long sums are equally exact on every device
        self.values = torch.tensor(list(values), dtype=torch.float64)

    def at(self, index: Tensor) -> Tensor:
        """The numbers of the samples ``index [n]``, float64 ``[n]``."""
        missing = int(index.max()) + 1 - len(self.values) if len(index) else 0
        self.values = torch.cat([self.values, self.values.new_zeros(max(0, missing))])
        return self.values[index]

    def add(self, index: Tensor, amounts: Tensor) -> None:
        """Add ``amounts [n]`` to the samples ``index [n]``; a repeated one gets each amount."""
        self.at(index)
        self.values.index_add_(0, index, amounts.cpu().double())


class EL2N(ContextScore):
    """Norm of the error, ``||softmax(z) - y||``, averaged over the visits of each sample so far.

    The first visit gives the present value, as `gradient_norm` does; each scoring is a visit. A
    visit without a finite value gives no score and is not averaged. Source: Paul, Ganguli and
    Dziugaite, "Deep Learning on a Data Diet" (NeurIPS 2021), who average over networks early in
    training; here the average runs over the visits of one run.
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


class LossAge(ContextScore):
    """``loss + bonus * age``: every sample is chosen again in time, however low its loss.

    The age of a sample is the number of visits since it was last chosen, fallback rows included.
    Source: ageing in priority queues, Silberschatz, Galvin and Gagne, "Operating System Concepts",
    on priority scheduling.

    Args:
        criterion: loss of each row.
        bonus: added for each visit without being chosen, in units of the loss; 0 or more.

    Raises ``ValueError`` for a negative ``bonus``.
    """

    needs_index = True

    def __init__(self, criterion: Criterion = cross_entropy_rows, bonus: float = 0.1) -> None:
        if not bonus >= 0:
            raise ValueError(
                f"bonus is {bonus}, but waiting must not lower a score: give 0 or more, such as 0.1"
            )
        self.criterion, self.bonus = criterion, bonus
        self.age = PerSample()

    def score(self, batch: Scored) -> Tensor:
        losses = row_losses(self.criterion, batch.outputs, batch.targets)
        age = self.age.at(sample_index(self, batch.index, len(losses)))
        return losses + self.bonus * age.to(losses)

    def settled(self, index: Tensor | None, chosen: Tensor) -> None:
        index = sample_index(self, index, 0 if index is None else len(index))
        self.age.add(index, torch.ones(len(index)))
        self.age.values[index[chosen.cpu()]] = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"age": self.age.values.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.age = PerSample(state["age"])
