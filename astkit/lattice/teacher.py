"""The teacher: sentence embeddings without a download, from words that texts have in common.

Hashed words and pairs of words, weighted by TF-IDF, and the leading singular directions of the
training texts (latent semantic analysis: Deerwester et al., JASIS 41(6), 1990). It stands in for a
pretrained language model, which the origin of the lattice used (LL1yt/EnergyFlowSwift, 7730fce).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import functional as F

from astkit import rng
from astkit.lattice.pairs import words

FEATURES = 8192
OVERSAMPLING = 16  # directions to look for beyond those wanted: Halko et al., SIAM Review 53(2)


class Teacher:
    """Texts to vectors of length 1, by directions that were fitted to other texts.

    Attributes:
        idf: weight of each hashed feature, float32 ``[features]``.
        basis: the directions, float32 ``[features, dim]``; columns beyond the rank of the texts
            that they were fitted to are 0.
        energy: share of the squared length of those texts' vectors that the directions keep.
    """

    def __init__(self, idf: Tensor, basis: Tensor, energy: float) -> None:
        self.idf, self.basis, self.energy = idf, basis, energy

    @classmethod
    def fit(
        cls, texts: Sequence[str], dim: int = 768, features: int = FEATURES, seed: int = 0
    ) -> Teacher:
        """A teacher for texts like ``texts``; fit it to the training part alone.

        Weights: ``ln((1 + n) / (1 + df)) + 1`` for a feature in ``df`` of ``n`` texts, as
        scikit-learn's TfidfTransformer. Directions: `torch.svd_lowrank`, whose random start is
        keyed by ``seed``. Raises ``ValueError`` without a text or for ``dim > features``.
        """
        if not texts:
            raise ValueError("texts is empty: give the texts of the training part")
        if not 1 <= dim <= features:
            raise ValueError(f"dim is {dim}: give 1 to {features}, the number of hashed features")
        counts = hashed_counts(texts, features)
        frequency = torch.bincount(counts.indices()[1], minlength=features)
        idf = ((1 + len(texts)) / (1 + frequency)).log() + 1
        weighted = _weighted(counts, idf)
        rank = min(dim, len(texts))
        with rng.isolated("cpu", seed, "teacher"):
            found = min(rank + OVERSAMPLING, len(texts), features)
            _, kept, basis = torch.svd_lowrank(weighted, q=found, niter=2)
        kept, basis = kept[:rank], basis[:, :rank]
        # a direction and its negative are the same: the largest entry is made positive
        largest = basis.gather(0, basis.abs().argmax(0, keepdim=True))
        basis = F.pad(basis * largest.sign() * (kept > 1e-5 * kept[0]), (0, dim - rank))
        energy = float(kept.square().sum() / weighted.values().square().sum())
        return cls(idf, basis, energy)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Embeddings float32 ``[len(texts), dim]``; a text that shares nothing with those that the
        teacher was fitted to becomes 0."""
        counts = hashed_counts(texts, len(self.idf))
        return F.normalize(torch.sparse.mm(_weighted(counts, self.idf), self.basis))


def hashed_counts(texts: Sequence[str], features: int) -> Tensor:
    """How often each hashed feature occurs: sparse float32 ``[len(texts), features]``.

    Features are the words of a text and its pairs of neighbouring words, numbered by their CRC-32
    modulo ``features`` (Weinberger et al., "Feature hashing", ICML 2009, without signs).
    """
    rows: list[int] = []
    columns: list[int] = []
    values: list[int] = []
    for row, text in enumerate(texts):
        single = words(text)
        double = [f"{a} {b}" for a, b in pairwise(single)]
        counts = Counter(crc32(token.encode()) % features for token in single + double)
        rows += [row] * len(counts)
        columns += counts.keys()
        values += counts.values()
    size = (len(texts), features)
    places = torch.tensor([rows, columns], dtype=torch.int64)
    counted = torch.tensor(values, dtype=torch.float32)
    return torch.sparse_coo_tensor(places, counted, size, check_invariants=True).coalesce()


def _weighted(counts: Tensor, idf: Tensor) -> Tensor:
    """Rows of counts times weights, scaled to length 1."""
    row, column = counts.indices()
    values = counts.values() * idf[column]
    squares = torch.zeros(len(counts)).index_add_(0, row, values.square())
    values = values / squares.sqrt()[row]
    return torch.sparse_coo_tensor(
        counts.indices(), values, counts.shape, is_coalesced=True, check_invariants=True
    )
