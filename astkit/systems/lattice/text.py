"""Text encoder and decoder of the lattice.

Both are trained with the lattice: one encoding, one pass through the lattice and one decoding per
step, for any number of texts. The encoder learns to predict the task's embedding of a text; the
decoder is conditioned on the output surface and trained with cross-entropy on the target's words
(teacher forcing: Williams and Zipser, Neural Computation 1(2), 1989).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from astkit import rng
from astkit.checks import check_count
from astkit.datasets.pairs import words

LENGTH, WIDTH = 24, 96
"""Tokens of a text; size of word vectors and of the decoder's state."""

PAD, BEGIN, END, UNKNOWN = range(4)
MARKS = ("<pad>", "<begin>", "<end>", "<unknown>")


class Vocabulary:
    """The most frequent words of the training texts, numbered from 4; 0 to 3 are special tokens.

    ``size``: maximum number of tokens, including special tokens; ``ValueError`` for less than 5.
    """

    def __init__(self, texts: Sequence[str], size: int = 2000) -> None:
        check_count("size", size, len(MARKS) + 1)
        counts = Counter(word for text in texts for word in words(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self.tokens = (*MARKS, *ranked[: size - len(MARKS)])
        self._number = {token: number for number, token in enumerate(self.tokens)}

    def encode(self, texts: Sequence[str], length: int = LENGTH) -> Tensor:
        """Token indices, int64 ``[len(texts), length]``: words, an end token, padding.

        Longer texts are truncated, without an end token.
        """
        encoded = torch.full((len(texts), length), PAD)
        for row, text in zip(encoded, texts, strict=True):
            numbers = [self._number.get(word, UNKNOWN) for word in words(text)] + [END]
            row[: len(numbers)] = torch.tensor(numbers[:length])
        return encoded

    def decode(self, tokens: Tensor) -> list[str]:
        """The words of ``tokens [B, length]`` up to the first end token."""
        texts = []
        for row in tokens.tolist():
            end = row.index(END) if END in row else len(row)
            texts.append(" ".join(self.tokens[number] for number in row[:end] if number != PAD))
        return texts


class TextDecoder(nn.Module):
    """A GRU language model over tokens, with its initial state from a surface ``[B, cells]``."""

    def __init__(self, size: int, cells: int) -> None:
        super().__init__()
        self.start = nn.Sequential(nn.LayerNorm(cells), nn.Linear(cells, WIDTH), nn.Tanh())
        self.words = nn.Embedding(size, WIDTH, padding_idx=PAD)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, size)

    def forward(self, surface: Tensor, tokens: Tensor) -> Tensor:
        """Logits ``[B, length, vocabulary]`` of each of ``tokens [B, length]``, given the
        preceding ones."""
        begin = torch.full_like(tokens[:, :1], BEGIN)
        preceding = self.words(torch.cat([begin, tokens[:, :-1]], 1))
        outputs, _ = self.gru(preceding, self.start(surface)[None].contiguous())
        return self.out(outputs)

    @torch.no_grad()
    def greedy(self, surface: Tensor, length: int) -> Tensor:
        """Greedy decoding of the batch, int64 ``[B, length]``; padding after an end token."""
        state = self.start(surface)[None].contiguous()
        tokens = [torch.full((len(surface), 1), BEGIN, device=surface.device)]
        ended = torch.zeros_like(tokens[0], dtype=torch.bool)
        for _ in range(length):
            outputs, state = self.gru(self.words(tokens[-1]), state)
            logits = self.out(outputs)
            logits[..., [PAD, BEGIN, UNKNOWN]] = -torch.inf
            tokens.append(logits.argmax(-1).masked_fill(ended, PAD))
            ended = ended | (tokens[-1] == END)
        return torch.cat(tokens[1:], 1)


class TextBridge(nn.Module):
    """Encoder and decoder for a lattice with ``cells`` surface cells and embeddings of ``dim``.

    The encoder, an MLP on the mean word vector, maps tokens int64 ``[B, length]`` to ``[B, dim]``.
    Texts are truncated to `LENGTH` tokens; ``seed`` determines the weights.
    """

    def __init__(self, vocabulary: Vocabulary, dim: int, cells: int, seed: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        with rng.isolated("cpu", seed, "text"):
            self.encoder = nn.Sequential(
                nn.EmbeddingBag(len(vocabulary.tokens), WIDTH, mode="mean", padding_idx=PAD),
                *(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, dim)),
            )
            self.decoder = TextDecoder(len(vocabulary.tokens), cells)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Unit embeddings ``[len(texts), dim]``."""
        tokens = self.vocabulary.encode(texts).to(next(self.parameters()).device)
        return F.normalize(self.encoder(tokens))

    def decode(self, surface: Tensor) -> list[str]:
        """The texts of ``surface [B, cells]``, decoded greedily."""
        return self.vocabulary.decode(self.decoder.greedy(surface, LENGTH))

    def word_losses(self, surface: Tensor, tokens: Tensor) -> Tensor:
        """Mean cross-entropy per row, ``[B]`` in nats, without padding."""
        logits = self.decoder(surface, tokens)
        losses = F.cross_entropy(logits.transpose(1, 2), tokens, ignore_index=PAD, reduction="none")
        return losses.sum(1) / (tokens != PAD).sum(1).clamp(min=1)
