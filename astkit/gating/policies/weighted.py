"""Draws by given weights: an epoch has as many rows as the data, in proportion to the weights."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from astkit import rng
from astkit.checks import FROM_0, check_number
from astkit.gating.policies.draws import draw_systematic
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection


class Weighted(Policy):
    """Draws as many rows as the data have, each as often as its weight says, to within one draw.

    Example::

        weights = torch.ones(256)
        weights[:100] = 4.0  # drawn four times as often
        Trainer(model, train, policy=Weighted(weights, cost=0.0), epochs=4).run()

    In an epoch of N rows, a row of weight w is expected ``N * w / sum(weights)`` times, and drawn
    that often rounded down or up (systematic resampling); the rows are shuffled before the draw
    and after it. ``torch.utils.data.WeightedRandomSampler`` draws independently, which leaves out
    more of the rows and takes at most 2**24 of them. Of N old and M target rows, see
    `astkit.joined`, an epoch has N draws, and there are N + M weights. Weights may be replaced
    between two epochs, ``policy.weights = ...``, in all processes alike; they are part of a
    checkpoint.

    Args:
        weights: ``[samples]``, 0 or more, not all 0; of any scale.
        cost: FLOPs that computing the weights took; without it, a comparison gives no verdict.
    """

    card = PolicyCard(
        source="systematic resampling: Carpenter, Clifford and Fearnhead, 1999",
        cost="that of the weights; rows that are not drawn are not loaded",
        bias="towards rows of high weight, as asked for; not corrected",
        avoid="if every row is to be seen in each epoch",
    )
    draws_target = True
    state: ClassVar[tuple[str, ...]] = ("weights",)

    def __init__(self, weights: Any, cost: float | None = None, seed: int = 0) -> None:
        self.weights = weights
        self.given = self.weights
        self.cost = None if cost is None else check_number("cost", cost, FROM_0)
        self.seed = seed

    @property
    def weights(self) -> Tensor:
        """One weight a row, ``[samples]``, on the CPU."""
        return self._weights

    @weights.setter
    def weights(self, weights: Any) -> None:
        try:
            values = torch.as_tensor(weights).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            kind = type(weights).__name__
            raise ValueError(f"weights is a {kind}: give one number a row") from error
        if values.ndim != 1 or not len(values) or values.is_complex():
            raise ValueError(
                f"weights has shape {list(values.shape)} and type {values.dtype}: give one number a"
                " row, of shape [samples]"
            )
        values = values if values.is_floating_point() else values.float()
        wrong = (~(values.isfinite() & (values >= 0))).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"weights of row {row} is {float(values[row])}: give a finite number of 0 or more"
                " for each row"
            )
        total = float(values.sum(dtype=torch.float64))
        if not 0 < total < torch.inf:
            raise ValueError(f"weights have the sum {total:g}: give at least one above 0")
        self._weights = values

    def config(self) -> dict[str, Any]:
        """Constructor arguments; the weights are those of the start."""
        return {**super().config(), "weights": self.given}

    def plan(self, run: RunInfo) -> Selection:
        if len(self._weights) != run.samples:
            raise ValueError(
                f"weights has {len(self._weights)} numbers, but the data set has {run.samples}"
                " rows: give one a row, in the order of the data set"
            )
        random = rng.generator(run.seed, "weighted", run.epoch)
        rows = draw_systematic(self._weights, run.draws, random)
        return Selection(rows, normaliser=len(rows))
