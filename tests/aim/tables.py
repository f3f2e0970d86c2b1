"""Data whose target follows another law, other inputs, or none of these."""

import numpy as np
import pandas as pd
import torch
from torch.utils.data import TensorDataset

from astkit import Table, joined


def made(rows: int, seed: int, law: float = 1.0, shift: float = 0.0) -> pd.DataFrame:
    """Rows of which ``y`` is ``law * size``, plus what the place adds, plus noise."""
    draw = np.random.default_rng(seed)
    size = draw.normal(shift, 1, rows)
    place = draw.choice(["town", "field", "coast"], rows, p=[0.5, 0.3, 0.2])
    y = law * size + 0.5 * (place == "town") + 0.3 * draw.normal(size=rows)
    return pd.DataFrame({"size": size, "place": place, "noise": draw.normal(size=rows), "y": y})


def both_tables(old: int, target: int, law: float) -> Table:
    """Old rows of a ``law``, joined with those of a target of the law 1."""
    first = Table(made(old, 0, law), label="y")
    both: Table = joined(first, Table(made(target, 1), like=first))
    return both


def points(rows: int, seed: int, swapped: bool, kind: str) -> TensorDataset:
    """Images or vectors of four classes, which are other ones where they are ``swapped``."""
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (rows,), generator=random)
    x = torch.randn(rows, 4, generator=random) + 3 * torch.eye(4)[y]
    if kind == "images":
        x = x.view(rows, 1, 2, 2).repeat_interleave(4, 2).repeat_interleave(4, 3)
    return TensorDataset(x, (3 - y) if swapped else y)
