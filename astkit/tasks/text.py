"""Text classification: which package a paragraph documents, from padded batches with a mask."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from astkit.datasets.pairs import docs_pairs
from astkit.tasks.parts import Arguments, Block, Columns, small_task, split_rows

WORDS, LENGTH = 8192, 32  # hashed words; words of a text
WIDTH = 32


class Encoder(nn.Module):
    """A block of a transformer over words, and a linear layer on their mean."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.block = Block(WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Logits ``[rows, classes]``; ``mask`` bool ``[rows, LENGTH]`` is false for padding."""
        x = self.block(self.words(tokens) + self.places.weight, mask)
        kept = mask.unsqueeze(2)
        mean = (self.norm(x) * kept).sum(1) / kept.sum(1).clamp_min(1)
        logits: Tensor = self.head(mean)
        return logits


def text() -> Arguments:
    """Paragraphs of the documentation of Python, torch and numpy; the class is the package.

    Batches are mappings with ``tokens``, ``mask`` and ``labels``. The data: data/README.md.
    """
    labelled = {pair.source: pair.origin.partition(" ")[0] for pair in docs_pairs()}
    names = sorted(set(labelled.values()))
    labels = torch.tensor([names.index(name) for name in labelled.values()])
    tokens = hash_words(labelled)
    data = Columns(tokens=tokens, mask=tokens > 0, labels=labels)
    return small_task(data, split_rows(labels), partial(Encoder, len(names)), epochs=3)


def hash_words(texts: Iterable[str]) -> Tensor:
    """Words as int64 ``[texts, LENGTH]``, hashed to 1..WORDS - 1; 0 is padding."""
    rows = [
        [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in each.lower().split()[:LENGTH]]
        for each in texts
    ]
    return torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows], dtype=torch.int64)
