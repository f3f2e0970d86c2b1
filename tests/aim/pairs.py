"""Pairs of training rows and target that tests share."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from astkit.aim.features import Rows
from astkit.aim.pair import Pair


def pair(train: torch.Tensor, target: torch.Tensor, *labels: torch.Tensor) -> Pair:
    parts = ((train, *labels[:1]), (target, *labels[1:]))
    return Pair(*(Rows(TensorDataset(*part)) for part in parts))


def labelled(train: torch.Tensor, target: torch.Tensor, groups: int = 0) -> Pair:
    """Rows with these labels; in ``groups`` of equally many consecutive rows, if any."""
    parts = [TensorDataset(torch.zeros(len(each), 1), each) for each in (train, target)]
    for part in parts if groups else ():
        part.groups = torch.arange(len(part)) * groups // len(part)  # type: ignore[attr-defined]
    return Pair(*(Rows(part, classes=True) for part in parts))
