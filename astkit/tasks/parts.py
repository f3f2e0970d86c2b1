"""Parts that tasks share: data sets of columns, splits, a block of a transformer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from astkit.datasets import stratified
from astkit.trainers import Budget, TrainConfig

Arguments = dict[str, Any]
PARTS = ("train", "validation", "test")
HELD = 0.15  # share of the validation rows, and of the test rows, if the data have no such part
HEADS = 4  # of attention


class Labelled(TensorDataset):
    """Rows ``(x, y)``; policies read the classes of integer targets ``y`` from ``labels``."""

    @property
    def labels(self) -> Tensor:
        """The last tensor."""
        return self.tensors[-1]

    def take(self, rows: Tensor) -> Self:
        """The selected ``rows``, int64."""
        taken = copy.copy(self)
        taken.tensors = tuple(each[rows] for each in self.tensors)
        return taken


class Columns(Labelled):
    """Rows as mappings from names of ``columns`` to values; the last column holds the labels."""

    def __init__(self, **columns: Tensor) -> None:
        super().__init__(*columns.values())
        self.names = tuple(columns)

    def __getitem__(self, row: int) -> dict[str, Tensor]:  # type: ignore[override]
        return dict(zip(self.names, super().__getitem__(row), strict=True))


def split_rows(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the three `PARTS`, int64; the validation rows are a share of what test rows leave."""
    tested, rest = stratified(labels, HELD, 0, "test")
    held, train = stratified(labels[rest], HELD, 0, "validation")
    return rest[train], rest[held], tested


def small_task(
    data: Labelled,
    rows: Iterable[Tensor],
    make_model: Callable[[], nn.Module],
    epochs: int,
    batch_size: int = 32,
) -> Arguments:
    """The three `PARTS` of ``data`` by their ``rows``, a small model, and how it is trained."""
    return {
        **{part: data.take(index) for part, index in zip(PARTS, rows, strict=True)},
        "make_model": make_model,
        "config": TrainConfig(lr=3e-3),
        "batch_size": batch_size,
        "budget": Budget(epochs=epochs),
    }


class Block(nn.Module):
    """A pre-norm transformer block: self-attention (torch's SDPA) and a feed-forward layer.

    Source: Vaswani et al., "Attention is all you need", 2017; pre-norm as in GPT-2.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``x [rows, length, width]``; ``mask`` bool ``[rows, length]``: causal without it."""
        rows, length, width = x.shape
        split = self.attend(self.before(x)).view(rows, length, 3, HEADS, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        seen = None if mask is None else mask[:, None, None, :]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=mask is None)
        x = x + self.merge(attended.transpose(1, 2).reshape(rows, length, width))
        added: Tensor = x + self.feed(self.between(x))
        return added
