"""Data whose target follows another law, other inputs, or none of these."""

import torch
from torch.utils.data import TensorDataset

from astkit import Table, joined
from tests import build


def both_tables(old: int, target: int, law: float) -> Table:
    """Old rows of a ``law``, joined with those of a target of the law 1."""
    first = Table(build.table(old, 0, law), label="y")
    both: Table = joined(first, Table(build.table(target, 1), like=first))
    return both


def points(rows: int, seed: int, swapped: bool, kind: str) -> TensorDataset:
    """Images or vectors of four classes, which are other ones where they are ``swapped``."""
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (rows,), generator=random)
    x = torch.randn(rows, 4, generator=random) + 3 * torch.eye(4)[y]
    if kind == "images":
        x = x.view(rows, 1, 2, 2).repeat_interleave(4, 2).repeat_interleave(4, 3)
    return TensorDataset(x, (3 - y) if swapped else y)
