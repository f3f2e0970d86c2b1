"""The surface where flows move and land: reflecting walls, and a bilinear deposit."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = 1e-6


def fold(value: Tensor, extent: Tensor) -> Tensor:
    """``value`` reflected at the walls 0 and m = ``extent``: ``v mod 2m``, beyond m ``2m - v``."""
    return extent - (value.remainder(2 * extent) - extent).abs()


class Landing(NamedTuple):
    """Flows that reached the surface: sample int64 ``[n]``, place ``[n, 4]``, age ``[n]``."""

    sample: Tensor
    place: Tensor
    age: Tensor


def deposit(landings: list[Landing], batch: int, width: int, height: int) -> Tensor:
    """The surface ``[batch, height * width]``: per cell, the weighted mean energy of what landed.

    A flow is split among the four cells around it in bilinear proportion, so the surface is
    differentiable in the landing position. Its weight is the original's, ``(|energy| + 1e-6)
    (1 + 0.1 age)``, detached. An empty cell holds 0.
    """
    sample, place, age = (torch.cat(parts) for parts in zip(*landings, strict=True))
    xy, energy = place[:, :2], place[:, 3]
    weight = (energy.detach().abs() + EPSILON) * (1 + 0.1 * age)
    corner = xy.detach().floor()
    fraction = xy - corner
    near = corner.long().T
    corners = torch.stack([near, near + 1])  # [2, xy, n]
    # beyond the wall the share is 0; a NaN stays in bounds, and shows on the surface
    x, y = corners[:, 0].clamp(0, width - 1), corners[:, 1].clamp(0, height - 1)
    cell = (sample * height + y[:, None]) * width + x[None]  # [2 in y, 2 in x, n]
    share_x, share_y = (torch.stack([1 - part, part]) for part in fraction.T)
    amount = share_y[:, None] * share_x[None] * weight
    empty = amount.new_zeros(batch * height * width)
    held = empty.index_add(0, cell.flatten(), (amount * energy).flatten())
    total = empty.index_add(0, cell.flatten(), amount.flatten())
    return (held / (total + EPSILON)).view(batch, -1)
