"""Helpers for policies that train their own models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.gating.selection import Scored


def isolated(*key: int | str) -> AbstractContextManager[None]:
    """`rng.isolated` on the CPU and, if available, the accelerator."""
    return rng.isolated(torch.accelerator.current_accelerator(check_available=True) or "cpu", *key)


def train_models(
    models: list[nn.Module],
    data: Iterable[Scored],
    epochs: int,
    lr: float,
    rows_of: Callable[[Scored, int], Tensor] | None = None,
) -> None:
    """Train ``models`` with AdamW; model k on the rows ``rows_of(batch, k)`` of each batch."""
    optimizers = [torch.optim.AdamW(model.parameters(), lr) for model in models]
    for _ in range(epochs):
        for batch in data:
            for k, model in enumerate(models):
                part = batch if rows_of is None else batch.take(rows_of(batch, k))
                if part.rows > 1:
                    part.train(model, optimizers[k])


def by_sample(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Per-sample sum and count of values, from pairs of index ``[n]`` and values ``[n]``."""
    index = torch.cat([each.cpu() for each, _ in parts])
    values = torch.cat([each.detach().cpu().double() for _, each in parts])
    return index.bincount(values), index.bincount()
