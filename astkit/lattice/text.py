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
from astkit.lattice.pairs import words

PAD, BEGIN, END, UNKNOWN = range(4)
MARKS = ("<pad>", "<begin>", "<end>", "<unknown>")


class Vocabulary:
    """The most frequent words of the training texts, numbered from 4; 0 to 3 are special tokens.

    ``size``: maximum number of tokens, including special tokens. Raises ``ValueError`` if no word
    is left.
    """

    def __init__(self, texts: Sequence[str], size: int = 2000) -> None:
        counts = Counter(word for text in texts for word in words(text))
        if size <= len(MARKS) or not counts:
            raise ValueError(
                f"a vocabulary of size {size} for {len(counts)} different words has none: give a"
                f" size above {len(MARKS)} and texts with words"
            )
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self.tokens = (*MARKS, *ranked[: size - len(MARKS)])
        self._number = {token: number for number, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
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


class TextEncoder(nn.Module):
    """Tokens int64 ``[B, length]`` to embeddings ``[B, dim]``: an MLP on the mean word vector."""

    def __init__(self, size: int, dim: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(size, width, padding_idx=PAD)
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.out = nn.Linear(width, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        counted = (tokens != PAD).unsqueeze(-1)
        mean = (self.words(tokens) * counted).sum(1) / counted.sum(1).clamp(min=1)
        embedding: Tensor = self.out(self.layers(mean))
        return embedding


class TextDecoder(nn.Module):
    """A GRU language model over tokens, with its initial state from a surface ``[B, cells]``."""

    def __init__(self, size: int, cells: int, width: int) -> None:
        super().__init__()
        self.start = nn.Sequential(nn.LayerNorm(cells), nn.Linear(cells, width), nn.Tanh())
        self.words = nn.Embedding(size, width, padding_idx=PAD)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, size)

    def forward(self, surface: Tensor, tokens: Tensor) -> Tensor:
        """Logits ``[B, length, vocabulary]`` of each of ``tokens [B, length]``, given the
        preceding ones."""
        begin = torch.full_like(tokens[:, :1], BEGIN)
        heard = self.words(torch.cat([begin, tokens[:, :-1]], 1))
        logits: Tensor = self.out(self.gru(heard, self.start(surface)[None].contiguous())[0])
        return logits

    @torch.no_grad()
    def greedy(self, surface: Tensor, length: int) -> Tensor:
        """Greedy decoding of the batch, int64 ``[B, length]``; padding after an end token."""
        state = self.start(surface)[None].contiguous()
        token = torch.full((len(surface), 1), BEGIN, device=surface.device)
        ended = torch.zeros_like(token, dtype=torch.bool)
        spoken = []
        for _ in range(length):
            said, state = self.gru(self.words(token), state)
            logits = self.out(said)
            logits[..., [PAD, BEGIN, UNKNOWN]] = -torch.inf
            token = logits.argmax(-1).masked_fill(ended, PAD)
            ended = ended | (token == END)
            spoken.append(token)
        return torch.cat(spoken, 1)


class TextBridge(nn.Module):
    """Encoder and decoder for a lattice with ``cells`` surface cells and embeddings of ``dim``.

    ``width`` is that of word vectors and GRU; texts are truncated to ``length`` tokens; ``seed``
    determines the weights.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        cells: int,
        *,
        width: int = 96,
        length: int = 24,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.vocabulary, self.length = vocabulary, length
        with rng.isolated("cpu", seed, "text"):
            self.encoder = TextEncoder(len(vocabulary), dim, width)
            self.decoder = TextDecoder(len(vocabulary), cells, width)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Unit embeddings ``[len(texts), dim]``."""
        device = self.encoder.out.weight.device
        tokens = self.vocabulary.encode(texts, self.length).to(device)
        return F.normalize(self.encoder(tokens))

    def decode(self, surface: Tensor) -> list[str]:
        """The texts of ``surface [B, cells]``, decoded greedily."""
        return self.vocabulary.decode(self.decoder.greedy(surface, self.length))

    def word_losses(self, surface: Tensor, tokens: Tensor) -> Tensor:
        """Mean cross-entropy per row, ``[B]`` in nats, without padding."""
        logits = self.decoder(surface, tokens)
        losses = F.cross_entropy(logits.transpose(1, 2), tokens, ignore_index=PAD, reduction="none")
        return losses.sum(1) / (tokens != PAD).sum(1).clamp(min=1)
