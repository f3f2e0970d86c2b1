"""Language: the next character of a text, by a causal transformer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from astkit.datasets.pairs import docs_pairs
from astkit.datasets.texts import encoded, read_text
from astkit.gating import cross_entropy_rows, row_losses
from astkit.rng import permutation
from astkit.tasks.parts import Arguments, Block, Columns, small_task
from astkit.trainers import Metric

LENGTH, WIDTH, DEPTH = 64, 64, 4  # characters of a sequence; sizes of the transformer
SEQUENCES = 480  # sequences of the embedded text


class GPT(nn.Module):
    """A causal transformer: tokens int64 ``[rows, length]`` to logits ``[rows, length, size]``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, size)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def language(path: str | Path | None = None) -> Arguments:
    """The next character of the text file ``path``, or of `SEQUENCES` parts of documentation.

    The text is cut into sequences of `LENGTH` characters, which are divided at random. The metric
    is the cross-entropy in nats per character. Raises the errors of `sequences`.
    """
    x, y, size = sequences(path)
    rows = torch.arange(len(x) if path else SEQUENCES)
    held, test = len(rows) // 10, len(rows) // 5
    parts = rows[held + test :], rows[:held], rows[held : held + test]
    data, model = Columns(tokens=x, labels=y), partial(GPT, size)
    metric = Metric("nats per character", character_loss, higher_is_better=False)
    return {**small_task(data, parts, model, epochs=3, batch_size=8), "metrics": metric}


def sequences(path: str | Path | None = None) -> tuple[Tensor, Tensor, int]:
    """Characters and next characters, int64 ``[N, LENGTH]`` in random order, and their number.

    Without ``path``, of the documentation of Python, torch and numpy (data/README.md). Raises
    ``ValueError`` for a text that is not UTF-8 or has fewer than 100 sequences,
    ``FileNotFoundError`` for a missing file.
    """
    if path is None:
        text = "\n\n".join(dict.fromkeys(pair.source for pair in docs_pairs()))
    else:
        text = read_text(path)
    (tokens,), size = encoded(text)
    count = (len(tokens) - 1) // LENGTH
    if count < 100:
        raise ValueError(
            f"{path} has {len(tokens)} characters, {count} sequences of {LENGTH}: give a text with"
            f" {100 * LENGTH + 1} or more"
        )
    x, y = (tokens[first : first + count * LENGTH].view(count, LENGTH) for first in (0, 1))
    order = permutation(count, 0, "language")
    return x[order], y[order], size


def character_loss(outputs: Any, targets: Any) -> Tensor:
    """Mean cross-entropy of the characters of each sequence in nats, ``[rows]``."""
    return row_losses(cross_entropy_rows, outputs, targets)
