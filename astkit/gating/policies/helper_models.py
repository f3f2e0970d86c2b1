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


def by_sample(parts: list[tuple[Tensor, Tensor]], lr: float) -> Tensor:
    """Mean of each sample's values, float32 ``[samples]``, from pairs of index and values ``[n]``.

    NaN for samples without values. Raises ``ValueError`` if there are no parts, or if the helper
    models, trained with ``lr``, gave no finite value.
    """
    if not parts:
        raise ValueError(
            "the data gave no batch to score after the helper models were trained: pass data that"
            " can be iterated repeatedly, such as ScoredBatches of a DataLoader"
        )
    index = torch.cat([each.cpu() for each, _ in parts])
    values = torch.cat([each.detach().cpu().double() for _, each in parts])
    means = (index.bincount(values) / index.bincount()).float()
    check_finite(means, lr)
    return means


def check_finite(values: Tensor, lr: float) -> None:
    """Raise ``ValueError`` if a helper model trained with ``lr`` gave no finite value."""
    if not bool(values.isfinite().any()):
        raise ValueError(
            f"a helper model has diverged: none of its losses or scores is finite, so lower lr={lr}"
        )
