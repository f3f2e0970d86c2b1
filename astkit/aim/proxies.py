"""Quick models that stand for the one to be trained: trees, a head on features, n-grams.

A proxy is fitted to weighted rows of both sides, and judged on rows of the target in the task's own
metric. They know old rows of the sample, followed by those of the target.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from astkit.aim.differ import TREES as OF_KINDS
from astkit.aim.differ import bin_edges, binned, fit_flops, target_columns
from astkit.aim.rows import TABLE, TOKENS, Matrix, mix_bits, stack
from astkit.aim.sides import OUTPUTS, Sides
from astkit.datasets.batch import IGNORED
from astkit.datasets.dependence import Array

TREES = {**OF_KINDS, "max_iter": 60, "learning_rate": 0.15, "max_leaf_nodes": 31}
MOST_TREES = 500
"""Columns times classes or outputs of a table, up to which trees of many of these are fitted."""
FAR = 10.0  # deviations at which the columns of a linear model are cut off
HEAD = 100.0  # penalty of a head on features of images
WIDE = 64  # outputs of a regression, at most
CONTEXTS = 2**22  # buckets of the n-gram model
MOST_TOKENS = 4_000_000  # to which it is fitted
PRIOR = 2.0  # observations that the shorter context of the n-gram model counts as
POINTS, RMSE, BITS = "points", "% of the RMSE", "bits a token"
"""Units of gains: of accuracy, of the root mean squared error, of the cross-entropy."""


def proxy_of(sides: Sides) -> Proxy | None:
    """The proxy for the kind of the data; ``None`` without targets, or for those of other kinds."""
    old, target = sides.old, sides.target
    own, more = old.targets(sides.sample), target.targets(sides.everything)
    if own is None or more is None:
        return None
    x, first = old.read(sides.sample[:1])
    if old.kind == TOKENS and first.shape == x.shape and not own.is_floating_point():
        return NGrams(sides, own, more)
    if sides.labels is not None:
        y = torch.cat([sides.labels[0][sides.sample], sides.labels[1]]).numpy()
    elif old.numeric(own) and own[0].numel() <= WIDE:
        y = np.concatenate([target_columns(own), target_columns(more)])
    else:
        return None
    x = stack([old.features(sides.sample), target.features(sides.everything)])
    models = y.shape[1] if y.ndim > 1 else len(np.unique(y))  # of two classes one would do
    few = models <= OUTPUTS or x.shape[1] * models <= MOST_TREES
    return Trees(sides, x, y) if old.kind == TABLE and few else Linear(sides, x, y)


class _Fitted:
    """A model of features ``x [n, d]`` and classes, int ``[n]``, or numbers ``[n, outputs]``.

    Its ``name`` is as a sentence has it, ``unit`` that of its gains.
    """

    name = ""

    def __init__(self, sides: Sides, x: Matrix, y: Array) -> None:
        self.sides, self.x, self.y = sides, x, y
        self.classes = y.ndim == 1
        self.unit = POINTS if self.classes else RMSE

    def losses(self, weights: Array, judged: Array) -> Array:
        """Of the target's rows ``judged``, int64 ``[n]``: 100 for a wrong class, or squared errors.

        The model is fitted with ``weights``, float64 ``[sample + M]``; rows of weight 0 leave no
        trace in it.
        """
        return self.losses_of(self.x, self.y, weights, judged + len(self.sides.sample))

    def losses_of(self, x: Matrix, y: Array, weights: Array, judged: Array) -> Array:
        """The same of any rows, for ``weights [n]`` and rows ``judged`` of ``x`` and ``y``."""
        used = np.flatnonzero(weights > 0)
        own = weights[used] / weights[used].mean()
        fitted, wanted = y[used], y[judged]
        if self.classes and len(np.unique(fitted)) == 1:
            return 100.0 * (fitted[0] != wanted)
        said = self.predict(x[used], fitted, own, x[judged])
        if self.classes:
            return 100.0 * (said != wanted)
        return ((said.reshape(len(judged), -1) - wanted) ** 2).mean(1)

    def predict(self, x: Matrix, y: Array, weights: Array, others: Matrix) -> Array:
        """What a model fitted to ``x`` and ``y`` says of ``others``."""
        raise NotImplementedError


class Trees(_Fitted):
    """Boosted trees, of a regression for each output."""

    name = "boosted trees"

    def predict(self, x: Matrix, y: Array, weights: Array, others: Matrix) -> Array:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        kind = HistGradientBoostingClassifier if self.classes else HistGradientBoostingRegressor
        settings = {**TREES, "min_samples_leaf": min(20, max(1, len(y) // 20))}
        edges = bin_edges(x)
        x, others = binned(x, edges), binned(others, edges)
        said = [
            kind(**settings).fit(x, column, sample_weight=weights).predict(others)
            for column in ([y] if self.classes else y.T)
        ]
        return said[0] if self.classes else np.stack(said, 1)


class Linear(_Fitted):
    """Ridge regression of numbers or classes, by standardised columns or features.

    Its penalty is large for features of images, so that a head cannot learn two domains at once.
    """

    def __init__(self, sides: Sides, x: Matrix, y: Array) -> None:
        super().__init__(sides, x, y)
        table = sides.old.kind == TABLE
        self.name = "a linear model" if table else "a head on features"
        self.penalty = 1.0 if table or not self.classes else HEAD

    def predict(self, x: Matrix, y: Array, weights: Array, others: Matrix) -> Array:
        from sklearn.linear_model import Ridge, RidgeClassifier

        penalty = 1.0
        if isinstance(x, np.ndarray):  # hashed words are counts of one scale
            penalty = self.penalty
            known = ~np.isnan(x).all(0)
            x, others = x[:, known], others[:, known]
            mean, deviation = np.nanmean(x, 0), np.nanstd(x, 0)
            scale = np.where(deviation > 0, deviation, 1)
            x, others = (
                np.nan_to_num((part - mean) / scale).clip(-FAR, FAR) for part in (x, others)
            )
        kind = RidgeClassifier if self.classes else Ridge
        solver = "auto" if isinstance(x, np.ndarray) else "lsqr"  # which counts its iterations
        model = kind(alpha=penalty, solver=solver, random_state=0)
        model.fit(x, y, sample_weight=weights)
        self.sides.flops += 0.0 if self.sides.old.kind == TABLE else fit_flops(model, x)
        return model.predict(others)


class NGrams:
    """Next tokens from two, one and no tokens before; losses are in bits.

    Tokens whose target is `IGNORED` do not count. The estimate from a longer context is mixed with
    that of the shorter one, which counts as `PRIOR` observations (Witten-Bell smoothing with a
    constant); contexts share hashed buckets.
    """

    name, unit = "an n-gram model", BITS

    def __init__(self, sides: Sides, old: Tensor, target: Tensor) -> None:
        self.sides = sides
        self.vocabulary = 1 + max(int(old.max()), int(target.max()))
        self.kept = max(1, MOST_TOKENS // old.shape[1])  # old rows that it reads
        inputs = (
            sides.old.inputs(sides.sample[: self.kept]),
            sides.target.inputs(sides.everything),
        )
        parts = [
            _next_tokens(x, y) for x, y in zip(inputs, (old[: self.kept], target), strict=True)
        ]
        self.counted = [(y != IGNORED).numpy() for _, y in parts]
        self.hashed = [_hashed(x, y) for x, y in parts]

    def losses(self, weights: Array, judged: Array) -> Array:
        weights = weights / weights[weights > 0].mean()
        count = len(self.sides.sample)
        each = [
            (own[:, None] * counted).ravel()
            for own, counted in zip(
                (weights[:count][: self.kept], weights[count:]), self.counted, strict=True
            )
        ]
        before, both = (part[judged] for part in self.hashed[1])
        p = np.full(before.shape[::2], 1 / self.vocabulary)
        for order in range(before.shape[1]):
            seen, followed = np.zeros(CONTEXTS), np.zeros(CONTEXTS)
            for weight, (contexts, pairs) in zip(each, self.hashed, strict=True):
                if weight.any():
                    seen += np.bincount(contexts[:, order].ravel(), weight, minlength=CONTEXTS)
                    followed += np.bincount(pairs[:, order].ravel(), weight, minlength=CONTEXTS)
            p = (followed[both[:, order]] + PRIOR * p) / (seen[before[:, order]] + PRIOR)
        self.sides.flops += 2.0 * sum(contexts.size for contexts, _ in self.hashed)
        counted = self.counted[1][judged]
        return -(np.log2(p) * counted).sum(1) / np.maximum(counted.sum(1), 1)


def _next_tokens(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and those that follow, ``[n, T]`` each; labels of transformers are the tokens."""
    y = y[:, : x.shape[1]]  # of the longest of more rows
    labels = bool(((y == x) | (y == IGNORED) | (x < 0)).all())
    return (x[:, :-1], y[:, 1:]) if labels else (x, y)


def _hashed(x: Tensor, y: Tensor) -> tuple[Array, Array]:
    """Buckets of the contexts of 0, 1 and 2 tokens, and with what follows: int32 ``[n, 3, T]``."""
    tokens = x.numpy().astype(np.uint64)
    context = np.zeros_like(tokens)
    contexts, pairs = [], []
    for order in range(3):
        if order:
            earlier = np.pad(tokens, ((0, 0), (order - 1, 0)))[:, : tokens.shape[1]]
            context = mix_bits(context + earlier + np.uint64(order))
        contexts.append(context % CONTEXTS)
        pairs.append(mix_bits(context + y.numpy().astype(np.uint64) + np.uint64(7)) % CONTEXTS)
    return np.stack(contexts, 1).astype(np.int32), np.stack(pairs, 1).astype(np.int32)


Proxy = Trees | Linear | NGrams
