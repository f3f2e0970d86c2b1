"""Estimators of scikit-learn by kind of data: they tell rows apart, predict, and cost FLOPs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astkit.aim.blocks import OUTPUTS
from astkit.aim.features import TABLE, TEXTS, TOKENS, Matrix, Rows, stack
from astkit.aim.pair import Pair
from astkit.datasets.dependence import Array

SHRINK = 0.06  # ridge penalty for each unit of weight, times features / rows of the target
TREES: dict[str, Any] = {
    "max_iter": 40,
    "learning_rate": 0.2,
    "max_leaf_nodes": 15,
    "max_bins": 64,
    "early_stopping": False,
    "random_state": 0,
}


class Classifier:
    """Tells training rows from rows of the target; each kind has half of the weight.

    Linear models of features; of those of a model with the class label, since a loss that is usual
    for one class is not for another. For tables boosted trees on columns and targets and, in a
    regression, on how far each target is from what models of either kind expect, so that another
    law is seen: `Experts` of one half of the rows judge the other half.

    Args:
        train, target: int64, the rows to fit.
        factor: float64 ``[N]``, weights of all training rows.
    """

    def __init__(self, pair: Pair, train: Tensor, target: Tensor, factor: Tensor) -> None:
        self.pair = pair
        self.experts: list[Experts | None] = [None]
        known = (pair.train.targets(train[:1]), pair.target.targets(target[:1]))
        self.targets = pair.train.kind == TABLE and all(each is not None for each in known)
        if self.targets and pair.labels is None:
            halves = (slice(1, None, 2), slice(0, None, 2))
            self.experts = [Experts(pair, train[half], target[half]) for half in halves]
        self.classes = 0
        if pair.train.of_model and pair.labels is not None:
            self.classes = 1 + int(torch.cat(pair.labels).max())
        count = len(self.experts)
        parts = [(pair.train, train[n::count], self.experts[n]) for n in range(count)]
        parts += [(pair.target, target[n::count], self.experts[n]) for n in range(count)]
        x = stack([self._view(*part) for part in parts])
        kinds = np.repeat([0, 1], [len(train), len(target)])
        of_train = np.concatenate([factor[part].numpy() for _, part, _ in parts[:count]])
        weight = np.concatenate([of_train, np.full(len(target), of_train.sum() / len(target))])
        penalty = SHRINK * weight.sum() * x.shape[1] / len(target)
        x = for_trees(x) if pair.train.kind == TABLE else x
        self.model = classifier_for(pair.train.kind, penalty)
        last = self.model.steps[-1][0]
        self.model.fit(x, kinds, **{f"{last}__sample_weight": weight})
        pair.flops += fit_flops(self.model.steps[-1][1], x)

    def scores(self, rows: Rows, which: Tensor) -> Array:
        """A number for each of the rows ``which``, int64 ``[n]``: higher, more like the target."""
        if not len(which):
            return np.empty(0)
        views = [self._view(rows, which, each) for each in self.experts]
        predictions = [
            self.model.predict_proba(view)[:, 1]
            if hasattr(self.model, "predict_proba")
            else self.model.predict(view)
            for view in views
        ]
        return np.mean(np.asarray(predictions, np.float64), 0)

    def _view(self, rows: Rows, which: Tensor, experts: Experts | None) -> Matrix:
        """Columns that the classifier sees of the rows ``which``.

        Features, one for each class that the label may be, targets, and errors of ``experts``.
        """
        x = rows.features(which)
        if self.classes:
            assert self.pair.labels is not None
            labels = self.pair.labels[0 if rows is self.pair.train else 1]
            return np.hstack([x, np.eye(self.classes, dtype=np.float32)[labels[which].numpy()]])
        if not self.targets:
            return x
        y = numbers(rows, which)
        more = [] if experts is None else [experts.surprise(x, y)]
        return np.hstack([x, y, *more]).astype(np.float32)


class Experts:
    """Regressions of the targets of some rows of the training data and of the target, int64 each.

    `LinearThenTrees`, for each of at most `OUTPUTS` outputs.
    """

    def __init__(self, pair: Pair, train: Tensor, target: Tensor) -> None:
        self.models = []
        for rows, which in ((pair.train, train), (pair.target, target)):
            x, y = rows.features(which), numbers(rows, which)
            self.models += [LinearThenTrees().fit(x, each) for each in y.T[:OUTPUTS]]
        pair.flops += sum(fit_flops(model, x) for model in self.models)

    def surprise(self, x: Array, y: Array) -> Array:
        """Errors of each regression: float64 ``[n, models]``."""
        said = np.stack([model.predict(x) for model in self.models], 1)
        own = np.tile(y[:, :OUTPUTS], 2)  # models of the training data, then of the target
        return np.abs(own - said)


def numbers(rows: Rows, which: Tensor) -> Array:
    """Targets as numbers, ``[n, outputs]``."""
    targets = rows.targets(which)
    assert targets is not None
    return targets.reshape(len(which), -1).double().numpy()


def classifier_for(kind: str, penalty: float) -> Any:
    """A scikit-learn pipeline: boosted trees for tables, logistic regression for texts.

    For dense features, of which there are many, ridge regression of the kind, which has a closed
    form, with a ``penalty`` on standardised features.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if kind == TABLE:
        return make_pipeline(table_classifier())
    if kind in (TEXTS, TOKENS):
        return make_pipeline(LogisticRegression(C=10.0, max_iter=200))
    return make_pipeline(StandardScaler(), Ridge(penalty))


def table_classifier() -> Any:
    """Boosted trees."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(**TREES)


class LinearThenTrees:
    """A regression: ridge regression, and boosted trees on what it leaves."""

    def fit(self, x: Array, y: Array, sample_weight: Array | None = None) -> LinearThenTrees:
        """Fit to ``x [n, d]`` and ``y [n]``."""
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.linear_model import Ridge

        filled = fill_missing(x)
        self.linear = Ridge(1e-3 * len(x)).fit(filled, y, sample_weight)
        self.trees = HistGradientBoostingRegressor(**TREES)
        self.trees.fit(for_trees(x), y - self.linear.predict(filled), sample_weight)
        self.n_iter_, self.max_leaf_nodes = self.trees.n_iter_, self.trees.max_leaf_nodes
        return self

    def predict(self, x: Array) -> Array:
        """Values ``[n]``."""
        predicted: Array = self.linear.predict(fill_missing(x)) + self.trees.predict(x)
        return predicted


def for_trees(x: Array) -> Array:
    """``x [n, d]`` to fit trees to, which fail at a column without a value and warn of infinity."""
    return np.clip(np.where(np.isnan(x).all(0), 0, x), -1e30, 1e30)


def fill_missing(x: Array) -> Array:
    """``x`` with 0 for missing and infinite values, which trees know."""
    return np.nan_to_num(x, posinf=0.0, neginf=0.0)


def fit_flops(estimator: Any, x: Matrix) -> float:
    """FLOPs of fitting a scikit-learn ``estimator`` to ``x [n, d]``, by its main loop.

    Of trees one addition for each value, level and tree; of a linear model two products of
    ``x`` with a vector for each iteration; else the normal equations.
    """
    entries = x.nnz if hasattr(x, "nnz") else x.size
    iterations = float(np.max(getattr(estimator, "n_iter_", None) or 0))
    if hasattr(estimator, "max_leaf_nodes"):
        trees = iterations * getattr(estimator, "n_trees_per_iteration_", 1)
        return entries * trees * float(np.log2(estimator.max_leaf_nodes))
    return 4 * entries * iterations if iterations else 2 * entries * x.shape[1]


def least_fit(pair: Pair) -> float:
    """FLOPs that fitting an estimator to the sample takes at least, before it is fitted.

    0 for texts and for the features of a model, of which it is not known.
    """
    train = pair.train
    if train.of_model or train.kind in (TEXTS, TOKENS):
        return 0.0
    columns = train.features(torch.zeros(1).long()).shape[1]
    trees = TREES["max_iter"] * math.log2(TREES["max_leaf_nodes"])
    per_column = trees if train.kind == TABLE else 2 * columns
    return pair.sampled * columns * per_column
