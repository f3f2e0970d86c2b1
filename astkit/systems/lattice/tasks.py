"""Tasks of a lattice: from embedding to embedding, how predictions are judged, simple baselines.

Text embeddings need no download: hashed words and word pairs, weighted by TF-IDF, projected on
the leading singular directions of the training texts (latent semantic analysis: Deerwester et al.,
JASIS 41(6), 1990). They replace the original's pretrained language model
(LL1yt/EnergyFlowSwift, 7730fce).

A prediction is judged by the rank of its own target among all targets of the validation part,
ordered by their cosine to the prediction.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from astkit import rng
from astkit.checks import check_count
from astkit.datasets.pairs import TextPair, docs_pairs, in_validation, read_pairs, words

FEATURES = 8192
LAMBDAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
HELD_OUT = 0.15  # share of the training part used to choose lambda


@dataclass(frozen=True, eq=False)
class Pairs(Dataset[Any]):
    """Sources ``x`` and targets ``y``, float32 ``[N, dim]`` each, as a dataset of ``(x, y)``.

    ``texts``: the text pair of each row; empty if there are none.
    """

    x: Tensor
    y: Tensor
    texts: Sequence[TextPair] = ()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int | Tensor) -> tuple[Tensor, Tensor]:
        """Sources and targets of one pair, or of several (int64 ``[B]``)."""
        return self.x[index], self.y[index]

    fetch = __getitem__


@dataclass(frozen=True, eq=False)
class LatticeTask:
    """Pairs for training and validation."""

    name: str
    train: Pairs
    validation: Pairs

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.train.x.shape[1]


def docs_task(count: int | None = None) -> LatticeTask:
    """The stored documentation pairs (see `docs_pairs`), or a fixed random ``count`` of them."""
    pairs = docs_pairs()
    if count is not None:
        drawn = rng.permutation(len(pairs), 0, "docs_task")[: check_count("count", count)]
        pairs = [pairs[row] for row in sorted(drawn.tolist())]
    return text_task(pairs, name="docs")


def text_task(
    pairs: Sequence[TextPair] | str | os.PathLike[str], dim: int = 768, name: str = "texts"
) -> LatticeTask:
    """A task from text pairs, or from a JSONL file of them (see `read_pairs`).

    The embedding is fitted to both sides of the training part. Raises ``ValueError`` if a part is
    empty, or the file cannot be read.
    """
    if isinstance(pairs, str | os.PathLike):
        pairs = read_pairs(pairs)
    train = [pair for pair in pairs if not in_validation(pair.source)]
    held = [pair for pair in pairs if in_validation(pair.source)]
    if not train or not held:
        raise ValueError(
            f"of {len(pairs)} pairs of {name!r}, {len(train)} are for training and"
            f" {len(held)} for validation: give more pairs with different sources"
        )
    embed = lsa([pair.source for pair in train] + [pair.target for pair in train], dim)

    def embedded(part: list[TextPair]) -> Pairs:
        x, y = embed([pair.source for pair in part]), embed([pair.target for pair in part])
        return Pairs(x, y, part)

    return LatticeTask(name, embedded(train), embedded(held))


def lsa(texts: Sequence[str], dim: int) -> Callable[[Sequence[str]], Tensor]:
    """A function from n texts to unit vectors float32 ``[n, dim]``, fitted to ``texts``.

    scikit-learn's `TfidfVectorizer` on hashed words and bigrams, followed by `TruncatedSVD`. Texts
    without words in common with ``texts`` map to 0, as do directions beyond the rank of ``texts``.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    numbers = {str(number): number for number in range(FEATURES)}
    tfidf: Any = TfidfVectorizer(analyzer=hash_features, vocabulary=numbers)
    svd: Any = TruncatedSVD(min(dim, len(texts)), n_iter=2, n_oversamples=16, random_state=0)
    svd.fit(tfidf.fit_transform(texts))
    rank = int((svd.singular_values_ > 1e-9 * svd.singular_values_[0]).sum())  # others are noise

    def embed(texts: Sequence[str]) -> Tensor:
        projected = torch.from_numpy(svd.transform(tfidf.transform(texts))[:, :rank]).float()
        return F.normalize(F.pad(projected, (0, dim - projected.shape[1])))

    return embed


def hash_features(text: str) -> list[str]:
    """CRC-32 of the words and bigrams of ``text``.

    Source: Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009;
    without signs.
    """
    single = words(text)
    double = [f"{a} {b}" for a, b in pairwise(single)]
    return [str(crc32(token.encode()) % FEATURES) for token in single + double]


def retrieval(predicted: Tensor, targets: Tensor) -> dict[str, float]:
    """Metrics of ``predicted [N, dim]`` against ``targets [N, dim]``, row by row.

    ``cosine``: mean cosine of a prediction and its target; ``top1``, ``top5``: share of predictions
    whose target ranks first, or among the first five; ``mrr``: mean reciprocal rank (Voorhees,
    TREC-8, 1999); ties share their mean rank. Raises ``ValueError`` for other shapes, no rows, and
    values that are not finite.
    """
    if predicted.ndim != 2 or predicted.shape != targets.shape or not len(targets):
        raise ValueError(
            f"predicted has shape {list(predicted.shape)} and targets {list(targets.shape)}: give"
            " [N, dim] for both, with N of 1 or more"
        )
    if not bool(predicted.isfinite().all()):
        raise ValueError("predicted contains a value that is not finite: the model has diverged")
    if not bool(targets.isfinite().all()):
        raise ValueError("targets contains a value that is not finite: leave these rows out")
    similar = F.normalize(predicted.float()) @ F.normalize(targets.float()).T
    cosine = similar.diagonal()
    above, equal = (similar > cosine[:, None]).sum(1), (similar == cosine[:, None]).sum(1)
    rank = above + (equal + 1) / 2
    values = {"mrr": 1 / rank, "cosine": cosine, "top1": rank <= 1, "top5": rank <= 5}
    # float64 on the CPU, since MPS has none
    return {name: float(each.cpu().double().mean()) for name, each in values.items()}


def ridge(train: Pairs) -> Any:
    """Ridge regression in float64, its lambda (``alpha_``) chosen by MRR on a part of ``train``."""
    from sklearn.linear_model import RidgeCV

    def mrr(fitted: Any, x: Any, y: Any) -> float:
        return retrieval(torch.from_numpy(fitted.predict(x)), torch.from_numpy(y))["mrr"]

    order = rng.permutation(len(train), 0, "ridge").numpy()
    held_out = max(1, int(HELD_OUT * len(train)))
    split = (order[held_out:], order[:held_out])
    x, y = train.x.double().numpy(), train.y.double().numpy()
    return RidgeCV(LAMBDAS, scoring=mrr, cv=[split]).fit(x, y)


def baselines(task: LatticeTask) -> dict[str, dict[str, float]]:
    """Validation metrics of the mean training target, a copy of the source, and `ridge`."""
    x, y = task.validation.x, task.validation.y
    mean = task.train.y.double().mean(0)
    predicted = torch.from_numpy(ridge(task.train).predict(x.double().numpy()))
    return {
        "train mean": retrieval(mean.expand_as(y), y),
        "copy input": retrieval(x, y),
        "ridge": retrieval(predicted, y),
    }
