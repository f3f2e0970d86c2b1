"""Old rows beside a target, which tests share."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit.aim.rows import Rows
from astkit.aim.sides import Sides


def sides_of_data(
    old: Any, target: Any, *, seed: int = 0, in_order: bool | None = False, **options: Any
) -> Sides:
    """Both sides of two data sets, whose units are found."""
    both = Sides(Rows(old, **options), Rows(target, **options), seed)
    both.find_units(in_order)
    return both


def sides(old: Tensor, target: Tensor, *targets: Tensor, **options: Any) -> Sides:
    """Both sides of inputs and, if given, of the targets of either."""
    parts = TensorDataset(old, *targets[:1]), TensorDataset(target, *targets[1:])
    return sides_of_data(*parts, **options)


def labelled(old: Tensor, target: Tensor, groups: int = 0) -> Sides:
    """Rows with these labels; in ``groups`` of equally many consecutive rows, if any."""
    parts = [TensorDataset(torch.zeros(len(each), 1), each) for each in (old, target)]
    for part in parts if groups else ():
        part.groups = torch.arange(len(part)) * groups // len(part)  # type: ignore[attr-defined]
    return sides_of_data(*parts, classes=True)
