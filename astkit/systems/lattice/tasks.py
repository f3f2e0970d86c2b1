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
    """Rows (int64 ``[K]``) of all sources ``x`` and targets ``y``, ``[N, dim]``, as a dataset.

    ``x`` and ``y`` may be memory-mapped. An item is ``(x, y)``; with ``tokens`` of sources and
    targets, int64 ``[N, length]`` each, it is ``(x, (y, tokens of y, x, tokens of x))``.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    tokens: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, index: list[int]) -> list[Any]:
        x, y = self.fetch(torch.tensor(index))
        if not self.tokens:
            return list(zip(x, y, strict=True))
        source, target = (side[self.rows[index]] for side in self.tokens)
        return list(zip(x, zip(y, target, x, source, strict=True), strict=True))

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Sources and targets of pairs ``index`` (int64 ``[B]``), float32 ``[B, dim]`` each."""
        rows = self.rows[index]
        return self.x.index_select(0, rows).float(), self.y.index_select(0, rows).float()

    def whole(self) -> tuple[Tensor, Tensor]:
        """All sources and all targets, in the format of `fetch`."""
        return self.fetch(torch.arange(len(self)))


@dataclass(frozen=True, eq=False)
class LatticeTask:
    """Pairs for training and validation, parts of the same arrays.

    ``texts``: the text pair of each row of the arrays; empty if there are none.
    """

    name: str
    train: Pairs
    validation: Pairs
    texts: Sequence[TextPair] = ()

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.train.x.shape[1]

    def texts_of(self, part: Pairs) -> list[TextPair]:
        """The texts of ``part``; raises ``ValueError`` for a task without texts."""
        if not self.texts:
            raise ValueError(f"the task {self.name!r} has no texts: create it with text_task")
        return [self.texts[row] for row in part.rows.tolist()]


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
    held = torch.tensor([in_validation(pair.source) for pair in pairs], dtype=torch.bool)
    sides = [side.nonzero().squeeze(1) for side in (~held, held)]
    if not all(map(len, sides)):
        raise ValueError(
            f"of {len(held)} pairs of {name!r}, {len(sides[0])} are for training and"
            f" {len(sides[1])} for validation: give more pairs with different sources"
        )
    train = [pairs[row] for row in sides[0].tolist()]
    embed = lsa([pair.source for pair in train] + [pair.target for pair in train], dim)
    x, y = embed([pair.source for pair in pairs]), embed([pair.target for pair in pairs])
    return LatticeTask(name, Pairs(x, y, sides[0]), Pairs(x, y, sides[1]), tuple(pairs))


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
    x, y = (side.double().numpy() for side in train.whole())
    return RidgeCV(LAMBDAS, scoring=mrr, cv=[split]).fit(x, y)


def baselines(task: LatticeTask) -> dict[str, dict[str, float]]:
    """Validation metrics of the mean training target, a copy of the source, and `ridge`."""
    x, y = task.validation.whole()
    mean = task.train.whole()[1].double().mean(0)
    predicted = torch.from_numpy(ridge(task.train).predict(x.double().numpy()))
    return {
        "train mean": retrieval(mean.expand_as(y), y),
        "copy input": retrieval(x, y),
        "ridge": retrieval(predicted, y),
    }
