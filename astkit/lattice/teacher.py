"""The teacher: sentence embeddings without a download, from words that texts have in common.

Hashed words and pairs of words, weighted by TF-IDF, and the leading singular directions of the
training texts (latent semantic analysis: Deerwester et al., JASIS 41(6), 1990). It stands in for a
pretrained language model, which the original lattice used (LL1yt/EnergyFlowSwift, 7730fce).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import functional as F

from astkit.lattice.pairs import words

FEATURES = 8192


class Teacher:
    """Texts to vectors of length 1, by directions that were fitted to other texts.

    scikit-learn's `TfidfVectorizer` over hashed words and pairs of neighbouring words, then its
    `TruncatedSVD`. Fit it to the training part alone.

    Args:
        texts: to fit to.
        dim: directions to keep; those beyond the rank of the texts give 0.
        seed: of the decomposition's random start.

    Raises ``ValueError`` without a text, or for a ``dim`` beyond the number of features.
    """

    def __init__(self, texts: Sequence[str], dim: int = 768, seed: int = 0) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        if not texts:
            raise ValueError("texts is empty: give the texts of the training part")
        if not 1 <= dim <= FEATURES:
            raise ValueError(f"dim is {dim}: give 1 to {FEATURES}, the number of hashed features")
        self.dim = dim
        numbers = {str(number): number for number in range(FEATURES)}
        self._tfidf: Any = TfidfVectorizer(analyzer=hashed, vocabulary=numbers)
        weighted = self._tfidf.fit_transform(texts)
        rank = min(dim, len(texts))
        svd: Any = TruncatedSVD(rank, n_iter=2, n_oversamples=16, random_state=seed)
        self._svd = svd.fit(weighted)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Embeddings float32 ``[len(texts), dim]``; a text that shares nothing with those that the
        teacher was fitted to becomes 0."""
        found = torch.from_numpy(self._svd.transform(self._tfidf.transform(texts))).float()
        return F.normalize(F.pad(found, (0, self.dim - found.shape[1])))


def hashed(text: str) -> list[str]:
    """The words of ``text`` and its pairs of neighbouring words, by their CRC-32.

    Source: Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009;
    without signs.
    """
    single = words(text)
    double = [f"{a} {b}" for a, b in pairwise(single)]
    return [str(crc32(token.encode()) % FEATURES) for token in single + double]
