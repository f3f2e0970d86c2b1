"""Surfaces: reflection at the walls, and bilinear deposit of landing flows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = 1e-6


def fold(value: Tensor, extent: Tensor) -> Tensor:
    """``value`` reflected at 0 and m = ``extent``: ``v mod 2m``, and ``2m - v`` above m."""
    return extent - (value.remainder(2 * extent) - extent).abs()


class Landing(NamedTuple):
    """Flows that reached the surface: sample int64 ``[n]``, place ``[n, 4]``, age ``[n]``."""

    sample: Tensor
    place: Tensor
    age: Tensor


def deposit(landings: list[Landing], batch: int, width: int, height: int) -> Tensor:
    """The surface ``[batch, height * width]``: per cell, the weighted mean energy of landings.

    A flow is distributed bilinearly to the four nearest cells, so the surface is
    differentiable in the landing position. Weights are the original's, ``(|energy| + 1e-6)
    (1 + 0.1 age)``, detached. Empty cells are 0.
    """
    sample, place, age = (torch.cat(parts) for parts in zip(*landings, strict=True))
    xy, energy = place[:, :2], place[:, 3]
    weight = (energy.detach().abs() + EPSILON) * (1 + 0.1 * age)
    corner = xy.detach().floor()
    fraction = xy - corner
    near = corner.long().T
    corners = torch.stack([near, near + 1])  # [2, xy, n]
    # the share is 0 outside; NaNs stay in bounds, and propagate to the surface
    x, y = corners[:, 0].clamp(0, width - 1), corners[:, 1].clamp(0, height - 1)
    cell = (sample * height + y[:, None]) * width + x[None]  # [2 in y, 2 in x, n]
    share_x, share_y = (torch.stack([1 - part, part]) for part in fraction.T)
    amount = share_y[:, None] * share_x[None] * weight
    empty = amount.new_zeros(batch * height * width)
    held = empty.index_add(0, cell.flatten(), (amount * energy).flatten())
    total = empty.index_add(0, cell.flatten(), amount.flatten())
    return (held / (total + EPSILON)).view(batch, -1)
