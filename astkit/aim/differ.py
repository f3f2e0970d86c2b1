"""Whether old rows differ from the target, and how much more frequent each is there.

The density ratio p_target(x, y) / p_old(x, y) is a product: p_target(y) / p_old(y), counted where
the targets are classes, times p_target(x | y) / p_old(x | y), estimated by a classifier that tells
old rows, weighted by the first factor, from rows of the target. A test comes before either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from astkit import rng
from astkit.aim.rows import CHUNK, TABLE, TEXTS, TOKENS, Matrix, Rows, stack
from astkit.aim.sides import OUTPUTS, Sides
from astkit.datasets.dependence import Array
from astkit.datasets.table import Table

LEVEL = 0.01  # probability of any false alarm in a run without a shift
TESTS = 3  # of a run: classes, inputs before training, inputs as the model sees them
TESTED = 4000  # rows of a test, at most; half of them of the target, where it has as many
FOLDS = 3
DRAWS = 2000  # permutations of a test
FLOOR = 0.01  # smallest ratio, as a share of the largest
LOWEST = 0.01  # smallest share of target-like rows that is believed
SHRINK = 0.06  # ridge penalty for each unit of weight, times features / rows of the target
SEPARATING = 0.98
"""AUC from which on a column alone tells old rows from the target: it does not shape weights."""
COMPARED = 5_000  # rows of each side for that, at most
BINS = 32  # of a column of numbers
TREES: dict[str, Any] = {
    "max_iter": 40,
    "learning_rate": 0.2,
    "max_leaf_nodes": 15,
    "max_bins": 64,
    "early_stopping": False,
    "random_state": 0,
}

WeightsOf = Callable[[Tensor, Tensor], Tensor]
"""``(rows of the target, old rows)``: weights of these, float64 ``[n]``, shaped by the former."""


class Difference(NamedTuple):
    """``auc`` of telling two kinds of rows apart, on rows that were not fitted; its p-value."""

    auc: float
    p: float


def find_shift(sides: Sides, unseen: Tensor | None = None) -> tuple[WeightsOf | None, Difference]:
    """Weights of old rows by class shares and inputs of the target, and the test of the inputs.

    ``None`` without a difference. ``unseen``: see `input_test`.
    """
    whole = torch.ones(len(sides.old), dtype=torch.float64)
    labels = sides.labels
    if labels is not None and class_test(sides) > LEVEL / TESTS:
        labels = None  # the classes are as frequent in both
    compared = compared_columns(sides)

    def factor_of(of_target: Tensor) -> Tensor:
        return whole if labels is None else class_factor(labels[0], labels[1][of_target])

    test = input_test(sides, factor_of(sides.everything), compared, unseen)
    inputs = test.p <= LEVEL / TESTS

    def weights_of(of_target: Tensor, rows: Tensor) -> Tensor:
        factor = factor_of(of_target)
        weights = factor[rows]
        if inputs:
            weights = weights * input_ratio(sides, factor, compared, of_target, rows)
        return weights / weights.mean()

    return weights_of if inputs or labels is not None else None, test


# --- columns that give the side away -----------------------------------------------------------


def column_aucs(old: Table, new: Table, seed: int = 0) -> tuple[dict[str, float], tuple[str, ...]]:
    """AUC of telling rows of two tables apart by each column alone, see `column_auc`.

    Also the columns that separate them: those of an AUC above `SEPARATING`, and dates.
    """
    import pandas as pd

    rows = [rng.permutation(len(each), seed, "columns").numpy()[:COMPARED] for each in (old, new)]
    found = {}
    for name in map(str, old.frame):
        parts = [each.frame[name].iloc[own] for each, own in zip((old, new), rows, strict=True)]
        words = isinstance(parts[0].dtype, pd.CategoricalDtype)
        both = pd.concat([part.astype(object) if words else part for part in parts])
        if words:
            values = both.factorize()[0].astype(np.float64)
        elif both.dtype.kind == "M":
            values = both.to_numpy("datetime64[s]").astype(np.float64)
            values[both.isna().to_numpy()] = np.nan
        else:
            values = both.to_numpy("float64")
        found[name] = column_auc(values, len(parts[0]), words, seed)
    kinds = old.columns
    return found, tuple(n for n in found if found[n] > SEPARATING or kinds[n].kind == "date")


def column_auc(values: Array, old: int, words: bool, seed: int) -> float:
    """AUC of telling the first ``old`` rows from the others by one column, float or codes ``[n]``.

    The target's share in each of `BINS` bins, or for each of the ``words``, in one half of the rows
    scores the other half. Missing values are a bin of their own.
    """
    known = ~np.isnan(values)
    place = np.zeros(len(values), np.int64)
    if words:
        place[known] = 1 + values[known].astype(np.int64)
    elif known.any():
        edges = np.unique(np.quantile(values[known], np.linspace(0, 1, BINS + 1)[1:-1]))
        place[known] = 1 + np.searchsorted(edges, values[known], side="right")
    kinds = np.arange(len(values)) >= old
    half = rng.permutation(len(values), seed, "column").numpy() % 2
    found = []
    for own in (0, 1):
        fitted, judged = half != own, half == own
        size = int(place.max()) + 1
        of_target = np.bincount(place[fitted & kinds], minlength=size) / max(1, kinds.sum())
        of_old = np.bincount(place[fitted & ~kinds], minlength=size) / max(1, old)
        share = (of_target + 1e-9) / (of_target + of_old + 2e-9)
        ranks = np.unique(share[place[judged]], return_inverse=True)[1]
        found.append(auc(ranks, kinds[judged], np.ones(int(judged.sum()))))
    return float(np.mean(found))


def compared_columns(sides: Sides) -> Array | None:
    """Which features shape weights, bool ``[d]``: of tables those that do not separate the sides.

    A date after all those of the old rows would make no old row like the target. ``None``: all.
    """
    old, new = sides.old, sides.target
    if old.kind != TABLE:
        return None
    if old.table is not None and new.table is not None:
        alone, names = column_aucs(old.table, new.table, sides.seed)
        # inputs have the name of their column and what they say of it, such as "day hour"
        own = [
            max((name for name in alone if f"{each} ".startswith(f"{name} ")), key=len, default="")
            for each in old.table.names
        ]
        kept = np.array([name not in names for name in own], bool)
    else:
        x, z = old.features(sides.sample)[:COMPARED], new.features(sides.everything)[:COMPARED]
        both = np.concatenate([x, z]).astype(np.float64)
        columns = (column_auc(column, len(x), False, sides.seed) for column in both.T)
        kept = np.array([each <= SEPARATING for each in columns], bool)
    return kept if kept.any() else None


# --- classes -----------------------------------------------------------------------------------


def class_test(sides: Sides) -> float:
    """P-value of equal class shares: Pearson's statistic, by permutation of whole units.

    Of units that hold the same classes it matters only how many are of the target.
    """
    assert sides.labels is not None
    rows = [sides.firsts(side, torch.arange(len(own))) for side, own in enumerate(sides.labels)]
    label = torch.cat([own[which] for own, which in zip(sides.labels, rows, strict=True)]).numpy()
    units = [own[which] for own, which in zip(sides.units, rows, strict=True)]
    old = 1 + int(units[0].max())
    unit = torch.cat([units[0], units[1] + old]).numpy()
    random = np.random.default_rng(rng.derive(sides.seed, "aim", "classes"))
    of_all = np.bincount(label)
    content = np.zeros(1 + unit.max(), np.int64)  # a hash of the classes in each unit
    np.add.at(content, unit, random.integers(2**62, size=len(of_all))[label])
    _, first, kind, count = np.unique(
        content, return_index=True, return_inverse=True, return_counts=True
    )
    one = np.isin(unit, first)  # rows of one unit of each kind
    classes = np.zeros((len(first), len(of_all)))
    np.add.at(classes, (kind[unit[one]], label[one]), 1)
    seen = np.bincount(kind[old:], minlength=len(first))
    drawn = random.multivariate_hypergeometric(count, seen.sum(), DRAWS, method="marginals")
    of_target = np.vstack([seen, drawn]) @ classes
    expected = of_target.sum(1, keepdims=True) * of_all / of_all.sum()
    statistic = ((of_target - expected) ** 2 / np.maximum(expected, 1e-12)).sum(1)
    return float((statistic >= statistic[0] * (1 - 1e-9)).mean())


def class_factor(old: Tensor, target: Tensor) -> Tensor:
    """p_target(y) / p_old(y) of each old row, float64 ``[N]``.

    A class that the target has no row of may be rare there: it counts as half a row.
    """
    size = 1 + max(int(old.max()), int(target.max()))
    in_old = old.bincount(minlength=size).double() / len(old)
    rows = target.bincount(minlength=size).double().clamp_min(0.5)
    return (rows / len(target) / in_old.clamp_min(1e-30))[old]


# --- inputs, given the class ---------------------------------------------------------------------


class Classifier:
    """Tells old rows from rows of the target; each kind has half of the weight.

    Of tables boosted trees on columns and targets and, in a regression, on how far each target is
    from what models of either side expect, so that another law is seen: models of one half of the
    rows judge the other half. Else linear models of features; of those of a model with the class
    label, since a loss that is usual for one class is not for another.

    Args:
        old, target: int64, the rows to fit.
        factor: float64 ``[N]``, weights of all old rows.
        compared: columns of a table, see `compared_columns`.
    """

    def __init__(
        self, sides: Sides, old: Tensor, target: Tensor, factor: Tensor, compared: Array | None
    ) -> None:
        self.sides, self.compared = sides, compared
        self.targets = sides.old.kind == TABLE and sides.has_targets
        self.experts: list[list[Regression]] = [[]]
        if self.targets and sides.labels is None and min(len(old), len(target)) > 1:
            halves = (slice(1, None, 2), slice(0, None, 2))
            self.experts = [self._fitted(old[half], target[half]) for half in halves]
        count = len(self.experts)
        parts = [(sides.old, old[n::count], self.experts[n]) for n in range(count)]
        parts += [(sides.target, target[n::count], self.experts[n]) for n in range(count)]
        x = stack([self._view(*part) for part in parts])
        kinds = np.repeat([0, 1], [len(old), len(target)])
        of_old = np.concatenate([factor[which].numpy() for _, which, _ in parts[:count]])
        weight = np.concatenate([of_old, np.full(len(target), of_old.sum() / len(target))])
        penalty = SHRINK * weight.sum() * x.shape[1] / len(target)
        self.model = classifier_for(sides.old.kind, penalty)
        if sides.old.kind == TABLE:
            self.edges = bin_edges(x)
            x = binned(x, self.edges)
        last = self.model.steps[-1][0]
        self.model.fit(x, kinds, **{f"{last}__sample_weight": weight})
        sides.flops += fit_flops(self.model.steps[-1][1], x)

    def scores(self, rows: Rows, which: Tensor) -> Array:
        """A number for each of the rows ``which``, int64 ``[n]``: higher, more like the target."""
        if not len(which):
            return np.empty(0)
        found = []
        for experts in self.experts:
            x = self._view(rows, which, experts)
            x = binned(x, self.edges) if rows.kind == TABLE else x
            known = hasattr(self.model, "predict_proba")
            found.append(self.model.predict_proba(x)[:, 1] if known else self.model.predict(x))
        return np.mean(np.asarray(found, np.float64), 0)

    def _fitted(self, old: Tensor, target: Tensor) -> list[Regression]:
        """Regressions of the targets of the rows of either side."""
        sides = ((self.sides.old, old), (self.sides.target, target))
        return [Regression(self._columns(*side), target_numbers(*side)) for side in sides]

    def _columns(self, rows: Rows, which: Tensor) -> Matrix:
        x = rows.features(which)
        return x if self.compared is None else x[:, self.compared]

    def _view(self, rows: Rows, which: Tensor, experts: Sequence[Regression]) -> Matrix:
        """What the classifier sees of the rows ``which``."""
        x, labels = self._columns(rows, which), self.sides.labels
        if rows.kind == TABLE:
            seen = [x]
            if self.targets and labels is not None:
                seen.append(labels[rows is self.sides.target][which].numpy()[:, None])
            elif self.targets:
                y = target_numbers(rows, which)
                seen += [y, *(np.abs(y - expert.predict(x)) for expert in experts)]
            return np.hstack(seen).astype(np.float32)
        if rows.of_model and labels is not None:
            classes = np.eye(1 + int(torch.cat(labels).max()), dtype=np.float32)
            return np.hstack([x, classes[labels[rows is self.sides.target][which].numpy()]])
        return x


class Regression:
    """Ridge regression of numbers ``y [n, outputs]``, and boosted trees on what it leaves."""

    def __init__(self, x: Array, y: Array) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.linear_model import Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        filled = np.nan_to_num(x, posinf=0.0, neginf=0.0)
        # the penalty is one of units of a column's deviation
        self.linear = make_pipeline(StandardScaler(), Ridge(1e-3 * len(x))).fit(filled, y)
        rest = y - self.linear.predict(filled).reshape(y.shape)
        self.edges = bin_edges(x)
        bins = binned(x, self.edges)
        self.trees = [HistGradientBoostingRegressor(**TREES).fit(bins, each) for each in rest.T]

    def predict(self, x: Array) -> Array:
        """Numbers ``[n, outputs]``."""
        filled, bins = np.nan_to_num(x, posinf=0.0, neginf=0.0), binned(x, self.edges)
        rest = np.stack([each.predict(bins) for each in self.trees], 1)
        return self.linear.predict(filled).reshape(rest.shape) + rest


def classifier_for(kind: str, penalty: float) -> Any:
    """A scikit-learn pipeline: boosted trees for tables, logistic regression for texts.

    For dense features, of which there are many, ridge regression of the kind, which has a closed
    form, with a ``penalty`` on standardised features.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if kind == TABLE:
        return make_pipeline(HistGradientBoostingClassifier(**TREES))
    if kind in (TEXTS, TOKENS):
        return make_pipeline(LogisticRegression(C=10.0, max_iter=200))
    return make_pipeline(StandardScaler(), Ridge(penalty))


def target_numbers(rows: Rows, which: Tensor) -> Array:
    """The first `OUTPUTS` targets of the rows ``which`` as numbers, ``[n, outputs]``."""
    targets = rows.targets(which)
    assert targets is not None
    return target_columns(targets)[:, :OUTPUTS]


def target_columns(targets: Tensor) -> Array:
    """Targets as numbers, ``[n, outputs]``."""
    return targets.reshape(len(targets), -1).double().numpy()


def bin_edges(x: Array) -> list[Array]:
    """Edges of at most 64 bins for each column of ``x [n, d]``.

    scikit-learn weighs the quantiles of weighted rows, which takes longer than its trees.
    """
    edges = []
    for column in x.T:
        known = column[~np.isnan(column)].astype(np.float64)
        values = np.unique(known)
        middle = (values[1:] + values[:-1]) / 2
        if len(values) > TREES["max_bins"]:
            middle = np.unique(np.quantile(known, np.linspace(0, 1, TREES["max_bins"] + 1)[1:-1]))
        edges.append(middle)
    return edges


def binned(x: Array, edges: list[Array]) -> Array:
    """Columns ``[n, d]`` as numbers of bins, which trees are fitted to; NaN where it is missing."""
    bins = np.empty(x.shape, np.float32)
    for place, own in enumerate(edges):
        bins[:, place] = np.searchsorted(own, x[:, place].astype(np.float64))
    bins[np.isnan(x)] = np.nan
    bins[:, np.isnan(x).all(0)] = 0  # trees fail at a column without a value
    return bins


def fit_flops(estimator: Any, x: Matrix) -> float:
    """FLOPs of fitting a scikit-learn ``estimator`` to ``x [n, d]``, by its main loop.

    Of a linear model two products of ``x`` with a vector for each iteration, or the normal
    equations. 0 for trees, which are timed.
    """
    if hasattr(estimator, "max_leaf_nodes"):
        return 0.0
    entries = x.nnz if hasattr(x, "nnz") else x.size
    iterations = float(np.max(getattr(estimator, "n_iter_", None) or 0))
    return 4 * entries * iterations if iterations else 2 * entries * x.shape[1]


def input_test(
    sides: Sides, factor: Tensor, compared: Array | None = None, rows: Tensor | None = None
) -> Difference:
    """Whether old rows, weighted by ``factor [N]``, differ from the target given their class.

    A classifier is fitted to a half of the target and other old rows, and judged on the rest, at
    most `TESTED` rows; its AUC is compared with those of permuted kinds of whole units, within
    classes. ``rows``: int64, the old rows to use, in random order; by default any. Random
    transforms of either alone would be such a difference: the AUC is NaN then, and p 1.
    """
    if sides.old.varies != sides.target.varies:
        return Difference(math.nan, 1.0)
    rows = sides.by_unit(sides.sample if rows is None else rows)  # so that no unit is on both sides
    half = sides.folds(1, 2, "halves")
    fit, judge = (half == 0).nonzero().squeeze(1), (half == 1).nonzero().squeeze(1)
    judge = judge[: TESTED // 2]
    count = min(TESTED - len(judge), len(rows) // 2)
    held, fitted = sides.firsts(0, rows[:count]), rows[count:]
    judge = sides.firsts(1, judge)
    classifier = Classifier(sides, fitted, fit, factor, compared)
    scores = np.concatenate(
        [classifier.scores(sides.old, held), classifier.scores(sides.target, judge)]
    )
    kinds = np.repeat([False, True], [len(held), len(judge)])
    weights, strata = np.ones(len(kinds)), np.zeros(len(kinds), np.int64)
    if sides.labels is not None:
        of_held = sides.labels[0][held]
        strata = torch.cat([of_held, sides.labels[1][judge]]).numpy()
        of_class = np.ones(strata.max() + 1)
        of_class[of_held.numpy()] = factor[held].numpy()
        weights = of_class[strata]
    units = torch.cat([sides.units[0][held], -1 - sides.units[1][judge]]).numpy()
    blocks = sides.apart and sides.old.groups is None
    if blocks and bool((factor == factor[0]).all()):  # they hold several classes
        strata = np.zeros_like(strata)
    random = np.random.default_rng(rng.derive(sides.seed, "aim", "permutations"))
    return permutation_test(scores, kinds, weights, strata, units, random)


def permutation_test(
    scores: Array,
    kinds: Array,
    weights: Array,
    strata: Array,
    blocks: Array,
    random: np.random.Generator,
) -> Difference:
    """AUC of ``scores [n]`` for bool ``kinds [n]``, and the share of permutations that reach it.

    A row of the kind False counts with its ``weights``. Permuted are the kinds of whole ``blocks``,
    within ``strata``, those of a block's first row; weights of single rows go with their kinds.
    """
    _, first, unit = np.unique(blocks, return_index=True, return_inverse=True)
    grouped = np.lexsort((np.arange(len(first)), strata[first]))
    single = len(first) == len(blocks)
    _, place = np.unique(scores, return_inverse=True)
    observed, reached = auc(place, kinds, weights), 0
    for _ in range(DRAWS):
        source = np.empty_like(grouped)
        source[np.argsort(strata[first] + random.random(len(first)))] = first[grouped]
        moved = weights[source[unit]] if single else weights
        reached += auc(place, kinds[source[unit]], moved) >= observed - 1e-12
    return Difference(observed, (1 + reached) / (1 + DRAWS))


def auc(place: Array, kinds: Array, weights: Array) -> float:
    """Share of pairs of kinds (True, False) in which the former has the higher place, ties half.

    ``place``: ranks of scores from 0, int ``[n]``. A row of the kind False counts with its
    ``weights [n]``, one of the kind True with 1.
    """
    size = int(place.max()) + 1
    ones = np.bincount(place[kinds], minlength=size)
    others = np.bincount(place[~kinds], weights[~kinds], minlength=size)
    below = np.cumsum(others) - 0.5 * others
    return float((ones * below).sum() / max(ones.sum() * others.sum(), 1e-300))


def input_ratio(
    sides: Sides, factor: Tensor, compared: Array | None, of_target: Tensor, rows: Tensor
) -> Tensor:
    """p_target(x | y) / p_old(x | y) of the old ``rows``, int64: float64 ``[n]``.

    By classifiers fitted to two of `FOLDS` parts of the rows ``of_target`` and of the sample of old
    rows, weighted by ``factor [N]``; each scores the third part of ``rows``. The scores are
    calibrated together; the ratio is at most 1 / the share of target-like rows, and at least
    `FLOOR` of that.
    """
    in_old = sides.folds(0, FOLDS, "aim", "folds of old rows")
    in_target = sides.folds(1, FOLDS, "aim", "folds of the target")[of_target]
    if len(in_target.unique()) < FOLDS:  # of a few units: parts need rows of the target
        in_target = torch.arange(len(of_target)) % FOLDS
    scores, scores_of_target = np.zeros(len(rows)), np.zeros(len(of_target))
    for fold in range(FOLDS):
        fitted = sides.sample[in_old[sides.sample] != fold]
        classifier = Classifier(sides, fitted, of_target[in_target != fold], factor, compared)
        for part in (in_old[rows] == fold).nonzero().squeeze(1).split(CHUNK):
            # a tensor of one number would be taken for an integer
            scores[part.numpy()] = classifier.scores(sides.old, rows[part])
        held = in_target == fold
        scores_of_target[held.numpy()] = classifier.scores(sides.target, of_target[held])
    return torch.from_numpy(calibrate(scores, scores_of_target, factor[rows].numpy()))


def calibrate(scores: Array, of_target: Array, weights: Array) -> Array:
    """Ratios of two densities of scores, float64 ``[n]``, at those of the old rows.

    ``scores [n]`` of old rows count with their ``weights``, scores ``of_target [m]`` with n/m
    each: isotonic regression gives the probability of the target at each score. Ratios are at most
    1 / `target_share`, and at least `FLOOR` of that.
    """
    from sklearn.isotonic import IsotonicRegression

    both = np.concatenate([scores, of_target])
    kinds = np.repeat([0.0, 1.0], [len(scores), len(of_target)])
    weight = np.concatenate(
        [weights, np.full(len(of_target), weights.sum() / max(1, len(of_target)))]
    )
    curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    curve.fit(both, kinds, weight)
    odds = curve.predict(scores)
    most = 1 / target_share(scores, of_target, weights)
    return np.clip(odds / np.maximum(1 - odds, 1e-12), FLOOR * most, most)


def target_share(scores: Array, of_target: Array, weights: Array) -> float:
    """Share of the old rows that are like the target, in [`LOWEST`, 1]: best-bin estimation.

    The smallest ratio of both kinds' shares above a score, where a bound on its error is best.
    Source: Garg et al., "Mixture proportion estimation and PU learning", NeurIPS 2021, algorithm 1,
    with their gamma = 0.01 and delta = 0.1; ``weights [n]`` count the old rows.
    """
    order = np.argsort(-scores, kind="stable")
    above = np.concatenate([[0.0], np.cumsum(weights[order])]) / weights.sum()
    cuts = np.sort(of_target)[::-1]
    wanted = np.arange(1, len(cuts) + 1) / len(cuts)
    share = above[np.searchsorted(-scores[order], -cuts, side="right")]
    rows = weights.sum() ** 2 / (weights**2).sum()  # of equal weight that are as uncertain
    error = sum(np.sqrt(np.log(4 / 0.1) / (2 * n)) for n in (rows, len(cuts)))
    best = np.argmin((share + 1.01 * error) / wanted)
    return float(np.clip(share[best] / wanted[best], LOWEST, 1.0))
