"""Models of tables that are fitted in seconds: they judge decisions, and weigh old rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from astkit import rng
from astkit.aim.estimators import TREES as SMALL_TREES
from astkit.aim.ratio import calibrate
from astkit.datasets.dependence import Array

TREES = {**SMALL_TREES, "max_iter": 60, "learning_rate": 0.15, "max_leaf_nodes": 31}
BINS: int = TREES["max_bins"]


def trees(x: Array, y: Array, weights: Array, others: Array) -> Array:
    """Predictions of boosted trees: of a regression, or of classes where ``y`` are integers."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    classes = y.dtype.kind == "i"
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    if classes and len(np.unique(y)) == 1:
        return np.full(len(others), y[0])
    least = min(20, max(1, len(y) // 20))
    x, others = binned(x, others)
    model = kind(**TREES, min_samples_leaf=least).fit(x, y, sample_weight=weights)
    predicted: Array = model.predict(others)
    return predicted


def binned(x: Array, others: Array) -> tuple[Array, Array]:
    """Columns ``[n, d]`` and ``[m, d]`` as numbers of the bins of ``x``; empty ones are left out.

    scikit-learn weighs the quantiles of weighted rows, which takes longer than its trees.
    """
    seen = np.flatnonzero(~np.isnan(x).all(0))
    parts = [each[:, seen].copy() for each in (x, others)]
    for place in range(len(seen)):
        values = parts[0][:, place]
        values = values[~np.isnan(values)]
        distinct = np.unique(values)
        edges = (distinct[1:] + distinct[:-1]) / 2
        if len(distinct) > BINS:
            edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
        for part in parts:
            known = ~np.isnan(part[:, place])
            part[known, place] = np.searchsorted(edges, part[known, place])
    return parts[0], parts[1]


def linear(x: Array, y: Array, weights: Array, others: Array) -> Array:
    """Predictions of ridge regression, or of classes; for scaled inputs without missing values."""
    from sklearn.linear_model import Ridge, RidgeClassifier

    classes = y.dtype.kind == "i"
    if classes and len(np.unique(y)) == 1:
        return np.full(len(others), y[0])
    model = RidgeClassifier(random_state=0) if classes else Ridge(random_state=0)
    predicted: Array = model.fit(x, y, sample_weight=weights).predict(others)
    return predicted


def squared(predictions: Array, labels: Array) -> Array:
    """Squared errors."""
    errors: Array = (predictions - labels) ** 2
    return errors


def wrong(predictions: Array, labels: Array) -> Array:
    """100 for a wrong class: points of accuracy."""
    return 100.0 * (predictions != labels)


def ratio_by_trees(
    old: tuple[Array, Array], target: tuple[Array, Array], kept: Array, seed: int
) -> Callable[[Array], Array]:
    """Weights of old rows by a classifier that tells them from target rows, by inputs and label."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    count = len(old[1])
    half = rng.permutation(count, seed, "ratio").numpy() % 2
    views = [np.column_stack([x[:, kept], y]) for x, y in (old, target)]
    settings = {**TREES, "max_iter": 40, "max_leaf_nodes": 15}

    def ratio(fit: Array) -> Array:
        rows = np.concatenate([views[0], views[1][fit]])
        kinds = np.repeat([0, 1], [count, len(fit)])
        part = np.concatenate([half, np.arange(len(fit)) % 2])
        scores = np.zeros(len(rows))
        for own in (0, 1):
            judged = part == own
            x, others = binned(rows[~judged], rows[judged])
            of_old, of_target = np.bincount(kinds[~judged], minlength=2)
            weight = np.where(kinds[~judged], of_old / max(1, of_target), 1.0)
            model = HistGradientBoostingClassifier(**settings)
            model.fit(x, kinds[~judged], sample_weight=weight)
            scores[judged] = model.predict_proba(others)[:, 1]
        weights = calibrate(scores[:count], scores[count:], np.ones(count))
        scaled: Array = weights / weights.mean()
        return scaled

    return ratio
