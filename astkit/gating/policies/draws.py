"""Draws of rows in proportion to weights, with and without replacement."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_weighted(weight: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Draw ``count`` positions, one after the other, in proportion to ``weight [n]``; sorted.

    None comes twice. Weights are clamped to at least 1e-30. Source: Efraimidis and Spirakis,
    "Weighted random sampling with a reservoir" (2006).
    """
    keys = torch.empty(len(weight), dtype=torch.float64).exponential_(generator=random)
    keys /= weight.double().clamp_min(1e-30)
    first = keys.topk(min(count, len(keys)), largest=False, sorted=False).indices
    drawn = torch.zeros(len(keys), dtype=torch.bool)
    drawn[first] = True
    return drawn.nonzero().squeeze(1)


def draw_systematic(weights: Tensor, count: int, random: torch.Generator) -> Tensor:
    """``count`` rows in random order, in proportion to ``weights [n]``: int64 ``[count]``.

    A row comes its expected number of times, rounded up or down; the order in which the rows lie
    is shuffled first. Source: Madow, "On the theory of systematic sampling, II", 1949.
    """
    order = torch.randperm(len(weights), generator=random)
    start = float(torch.rand(1, dtype=torch.float64, generator=random))
    # where all weights sum to count, a row is drawn once for each of the points start, start + 1,
    # ... between the sums of weights before it and up to it; float32 cannot tell large ones apart
    reached = weights[order].cumsum(0, dtype=torch.float64)
    reached /= reached[-1].clone()  # the last one is 1 now, also where the last weights are 0
    reached *= count
    counts = reached.sub_(start).ceil_().diff(prepend=reached.new_zeros(1)).long()
    return order.repeat_interleave(counts)[torch.randperm(count, generator=random)]
