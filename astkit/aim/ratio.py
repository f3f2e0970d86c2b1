"""How much more frequent each training row is in the target: p_target(x, y) / p_training(x, y).

The ratio is a product: p_target(y) / p_training(y), counted where the targets are classes, times
p_target(x | y) / p_training(x | y), estimated by a classifier that tells training rows, weighted by
the first factor, from rows of the target. A test comes before either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from astkit import rng
from astkit.aim.blocks import OUTPUTS, worth
from astkit.aim.features import CHUNK, IMAGES, TABLE, TEXTS, TOKENS, Matrix, Rows, stacked
from astkit.datasets.dependence import block_numbers

Array = np.ndarray[Any, Any]

FITTED = 12_000  # training rows to which an estimator is fitted, at most
TESTED = 4000  # rows of a test, at most; half of them of the target, where it has as many
FOLDS = 3
DRAWS = 2000  # permutations of a test
SHRINK = 0.06  # ridge penalty for each unit of weight, times features / rows of the target
TREES: dict[str, Any] = {
    "max_iter": 40,
    "learning_rate": 0.2,
    "max_leaf_nodes": 15,
    "max_bins": 64,
    "early_stopping": False,
    "random_state": 0,
}
COPIES = 0.01  # share of the rows that have copies, from which on these count
FLOOR = 0.01  # smallest ratio, as a share of the largest
LOWEST = 0.01  # smallest share of target-like rows that is believed


class Difference(NamedTuple):
    """``auc`` of telling two kinds of rows apart, on rows that were not fitted; its p-value."""

    auc: float
    p: float


@dataclass
class Pair:
    """Training rows and target; ``flops`` counts the estimators fitted to them."""

    train: Rows
    target: Rows
    seed: int = 0
    flops: float = 0.0

    def __post_init__(self) -> None:
        if self.train.kind != self.target.kind:
            raise ValueError(
                f"the training data hold {self.train.kind} and the target {self.target.kind}: pass"
                " a target of the kind of the training data"
            )
        kind, same = self.train.kind, True
        (x, y), (z, w) = (part.read(torch.zeros(1).long()) for part in (self.train, self.target))
        if kind == IMAGES:
            same = x.shape[1] == z.shape[1]
        elif kind == TABLE:
            both = isinstance(y, Tensor) and isinstance(w, Tensor)
            same = x.shape[1:] == z.shape[1:] and (not both or y.numel() == w.numel())
        if not same:
            raise ValueError(
                f"a row of the training data has the shape {list(x.shape[1:])} and one of the"
                f" target {list(z.shape[1:])}, or other targets: pass a target with the columns or"
                " channels of the training data"
            )

    @cached_property
    def labels(self) -> tuple[Tensor, Tensor] | None:
        """Labels of the training rows and of the target, where the targets of both are classes.

        They are numbered anew from 0, without classes that neither has.
        A target of few rows may not show that its integers are classes; those of the training rows
        are then looked for. ``None`` where labels are negative, as of rows that do not count.
        """
        train, target = self.train.labels, self.target.labels
        if train is not None and target is None:
            target = self.target.targets(torch.arange(len(self.target)))
            if target is None or target.numel() > len(target) or target.is_floating_point():
                return None
            target = target.flatten().long()
            if int(target.max()) > int(train.max()):
                return None
        if train is None or target is None or min(int(train.min()), int(target.min())) < 0:
            return None
        place = torch.cat([train, target]).unique(return_inverse=True)[1]
        return place[: len(train)], place[len(train) :]

    @cached_property
    def worth(self) -> float:
        """Independent rows that the target is worth, see `worth`; both parts have blocks then."""
        return worth(self.train, self.target, self.labels)

    @cached_property
    def sample(self) -> Tensor:
        """At most `FITTED` training rows, unit by unit in random order.

        Of a table, columns that do not `overlap` are left out from here on.
        """
        assert self.worth  # blocks are known from here on
        rows = self.by_unit(torch.arange(len(self.train)))[:FITTED]
        everything = torch.arange(len(self.target))
        if self.train.kind == TABLE:
            shared = overlap(self.train.features(rows), self.target.features(everything))
            self.train.columns = self.target.columns = shared if shared.any() else None
        self.train.keep(rows)
        self.target.keep(everything)
        self.find_copies()
        return rows

    def find_copies(self) -> None:
        """Let rows of equal inputs be one unit, unless the other part has such rows as well.

        Where both have them, they are values that come often, as in a table of few columns.
        """
        of_train, of_target = self.train.hashes(), self.target.hashes()
        both = ((self.train, of_train, of_target), (self.target, of_target, of_train))
        for part, hashes, others in both:
            first, place, counts = distinct(hashes)
            copied = (counts[place] > 1) & (hashes != 0) & ~torch.isin(hashes, others)
            rows = torch.arange(len(hashes))
            _, unit, _ = distinct(torch.where(copied, first[place], rows))
            part.copies = unit if copied.double().mean() > COPIES else None

    def by_unit(self, rows: Tensor) -> Tensor:
        """The training ``rows``, int64 ``[n]``, unit by unit in random order."""
        own = units(self.train)
        place = rng.permutation(1 + int(own.max()), self.seed, "aim", "sample").argsort()
        return rows[place[own[rows]].argsort(stable=True)]

    def halves(self) -> tuple[Tensor, Tensor]:
        """Two random halves of the units of the target: their rows, each sorted."""
        fold = folds(self.target, 2, self.seed, "halves")
        return (fold == 0).nonzero().squeeze(1), (fold == 1).nonzero().squeeze(1)

    def least_fit(self) -> float:
        """FLOPs that fitting an estimator to the sample takes at least, before it is fitted.

        0 for texts and for the features of a model, of which it is not known.
        """
        if self.train.of_model or self.train.kind in (TEXTS, TOKENS):
            return 0.0
        columns = self.train.features(torch.zeros(1).long()).shape[1]
        trees = TREES["max_iter"] * math.log2(TREES["max_leaf_nodes"])
        per_column = trees if self.train.kind == TABLE else 2 * columns
        return min(FITTED, len(self.train)) * columns * per_column

    def booked(self) -> float:
        """FLOPs of everything so far."""
        return self.flops + self.train.flops + self.target.flops


def overlap(x: Array, of_target: Array) -> Array:
    """Which columns of ``x [n, d]`` and ``of_target [m, d]`` have a range in common, bool ``[d]``.

    Others, such as dates after all those of the training data, tell every row of one kind from
    every row of the other, so that no training row would be like the target. A column without
    values in either has none in common.
    """
    ranges = [(np.fmin.reduce(part), np.fmax.reduce(part)) for part in (x, of_target)]
    (low, high), (least, most) = ranges
    return (least <= high) & (low <= most)


def units(rows: Rows) -> Tensor:
    """The unit of each row, int64 ``[N]`` from 0; rows of one may depend on each other.

    The groups of the data; blocks of consecutive rows where `Pair.worth` found that these depend on
    each other; else single rows. Copies belong to the block of the first of them.
    """
    if rows.groups is not None:
        return rows.groups
    numbers = torch.from_numpy(block_numbers(len(rows), rows.block))
    if rows.copies is None:
        return numbers
    first, place, _ = distinct(rows.copies)
    return distinct(numbers[first[place]])[1]


def without_copies(rows: Rows, which: Tensor) -> tuple[Tensor, Tensor]:
    """The first of the copies among the rows ``which``, int64, and how many of each there are."""
    if rows.copies is None or rows.groups is not None:
        return which, torch.ones(len(which))
    first, _, counts = distinct(rows.copies[which])
    return which[first], counts


def distinct(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First row of each of ``values [n]``, in order, place of each row among these, and counts."""
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    rows = torch.arange(len(values))
    first = torch.full_like(counts, len(values)).scatter_reduce(0, place, rows, "amin")
    first, order = first.sort()
    return first, order.argsort()[place], counts[order]


def folds(rows: Rows, count: int, *key: int | str) -> Tensor:
    """A random number below ``count`` for each row, int64 ``[N]``, the same within a unit.

    Each number has the same share of the units, to the nearest one.
    """
    own = units(rows)
    return (rng.permutation(1 + int(own.max()), *key) % count)[own]


# --- classes -----------------------------------------------------------------------------------


def class_test(pair: Pair) -> float:
    """P-value of equal class shares: Pearson's statistic, by permutation of rows or groups."""
    assert pair.labels is not None
    train_labels, target_labels = pair.labels
    random = np.random.default_rng(rng.derive(pair.seed, "aim", "classes"))
    pair.find_copies()
    if math.isinf(pair.worth) or pair.train.block > 1:
        return _grouped_class_test(pair, random)
    if pair.train.copies is not None or pair.target.copies is not None:
        return _copied_class_test(pair, random)
    counts = torch.cat([train_labels, target_labels]).bincount()
    of_target = target_labels.bincount(minlength=len(counts))[counts > 0].numpy()
    both = counts[counts > 0].numpy()
    expected = both * (of_target.sum() / both.sum())
    drawn = random.multivariate_hypergeometric(
        both, int(of_target.sum()), DRAWS, method="marginals"
    )
    statistic = ((of_target - expected) ** 2 / expected).sum()
    as_far = ((drawn - expected) ** 2 / expected).sum(1) >= statistic * (1 - 1e-9)
    return float((1 + as_far.sum()) / (1 + DRAWS))


def _grouped_class_test(pair: Pair, random: np.random.Generator) -> float:
    assert pair.labels is not None
    parts = pair.train, pair.target
    rows = [without_copies(part, torch.arange(len(part)))[0] for part in parts]
    own = [units(part)[which] for part, which in zip(parts, rows, strict=True)]
    sizes = [1 + int(each.max()) for each in own]
    labels = torch.cat([each[which] for each, which in zip(pair.labels, rows, strict=True)])
    unit = torch.cat([own[0], own[1] + sizes[0]])
    counts = np.zeros((sum(sizes), 1 + int(labels.max())))  # of rows by unit and class
    np.add.at(counts, (unit.numpy(), labels.numpy()), 1)
    of_all = counts.sum(0)

    def statistic(kinds: Array) -> float:
        of_target = kinds @ counts
        expected = of_all * (of_target.sum() / of_all.sum())
        return float(((of_target - expected) ** 2 / expected).sum())

    kinds = np.repeat([0.0, 1.0], sizes)
    observed = statistic(kinds) * (1 - 1e-9)
    as_far = sum(statistic(random.permutation(kinds)) >= observed for _ in range(DRAWS))
    return (1 + as_far) / (1 + DRAWS)


def _copied_class_test(pair: Pair, random: np.random.Generator) -> float:
    """The labels of whole units are permuted, each of which has a row of its own in one part."""
    assert pair.labels is not None
    sizes, labels = [], []
    for rows, own in zip((pair.train, pair.target), pair.labels, strict=True):
        first, _, counts = distinct(units(rows))
        sizes.append(counts.double().numpy())
        labels.append(own[first].numpy())
    size, label, in_train = np.concatenate(sizes), np.concatenate(labels), len(sizes[0])
    share = sizes[1].sum() / size.sum()

    def statistic(each: Array) -> float:
        of_all = np.bincount(each, size)
        of_target = np.bincount(each[in_train:], sizes[1], minlength=len(of_all))
        expected = of_all * share
        return float(((of_target - expected) ** 2 / np.maximum(expected, 1e-12)).sum())

    observed = statistic(label) * (1 - 1e-9)
    as_far = sum(statistic(random.permutation(label)) >= observed for _ in range(DRAWS))
    return (1 + as_far) / (1 + DRAWS)


def class_factor(train_labels: Tensor, target_labels: Tensor) -> Tensor:
    """p_target(y) / p_training(y) of each training row, float64 ``[N]``.

    A class that the target has no row of may be rare there: it counts as half a row.
    """
    size = 1 + max(int(train_labels.max()), int(target_labels.max()))
    in_train = train_labels.bincount(minlength=size).double() / len(train_labels)
    rows = target_labels.bincount(minlength=size).double().clamp_min(0.5)
    return (rows / len(target_labels) / in_train.clamp_min(1e-30))[train_labels]


# --- inputs, given the class ---------------------------------------------------------------------


def input_test(pair: Pair, factor: Tensor, rows: Tensor | None = None) -> Difference:
    """Whether training rows, weighted by ``factor [N]``, differ from the target given their class.

    A classifier is fitted to a half of the target and other training rows, and judged on the rest,
    at most `TESTED` rows; its AUC is compared with those of permuted kinds of whole `units`, within
    classes. ``rows``: int64, the training rows to use, in random order; by default any.
    Random transforms of either alone would be such a difference: the AUC is NaN then, and p 1.
    """
    if pair.train.varies != pair.target.varies:
        return Difference(math.nan, 1.0)
    if rows is None:
        rows = pair.sample
    else:
        pair.find_copies()
    fit, judge = pair.halves()
    judge = judge[: TESTED // 2]
    blocks = pair.train.block > 1
    apart = blocks or pair.train.groups is not None or pair.target.groups is not None
    if apart or pair.train.copies is not None:
        rows = pair.by_unit(rows)  # so that rows of one are not both fitted and judged
    count = min(TESTED - len(judge), len(rows) // 2)
    held, fitted = rows[:count], rows[count:]
    held, times = without_copies(pair.train, held)
    judge, _ = without_copies(pair.target, judge)
    classifier = Classifier(pair, fitted, fit, factor)
    scores = np.concatenate(
        [classifier.scores(pair.train, held), classifier.scores(pair.target, judge)]
    )
    kinds = np.repeat([False, True], [len(held), len(judge)])
    weights, strata = np.ones(len(kinds)), np.zeros(len(kinds), np.int64)
    if not apart:
        weights[: len(held)] = times.numpy()
    if pair.labels is not None:
        of_held = pair.labels[0][held]
        strata = torch.cat([of_held, pair.labels[1][judge]]).numpy()
        of_class = np.ones(strata.max() + 1)
        of_class[of_held.numpy()] = factor[held].numpy()
        weights *= of_class[strata]
    own = np.arange(len(kinds))
    if apart:
        parts = units(pair.train)[held], -1 - units(pair.target)[judge]
        own = torch.cat(parts).numpy()
    if blocks and bool((factor == factor[0]).all()):  # blocks hold several classes
        strata = np.zeros_like(strata)
    random = np.random.default_rng(rng.derive(pair.seed, "aim", "permutations"))
    return permutation_test(scores, kinds, weights, strata, own, random)


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


def input_ratio(pair: Pair, factor: Tensor, of_target: Tensor, rows: Tensor) -> Tensor:
    """p_target(x | y) / p_training(x | y) of the training ``rows``, int64: float64 ``[n]``.

    By classifiers fitted to two of `FOLDS` parts of the rows ``of_target`` and of the sample of
    training rows, weighted by ``factor [N]``; each scores the third part of ``rows``. The scores
    are calibrated together; the ratio is at most 1 / the share of target-like rows, and at least
    `FLOOR` of that.
    """
    seed = pair.seed
    in_train = folds(pair.train, FOLDS, seed, "aim", "folds of training rows")
    in_target = folds(pair.target, FOLDS, seed, "aim", "folds of the target")[of_target]
    scores, scores_of_target = np.zeros(len(rows)), np.zeros(len(of_target))
    for fold in range(FOLDS):
        fitted = pair.sample[in_train[pair.sample] != fold]
        classifier = Classifier(pair, fitted, of_target[in_target != fold], factor)
        for part in (in_train[rows] == fold).nonzero().squeeze(1).split(CHUNK):
            # a tensor of one number would be taken for an integer
            scores[part.numpy()] = classifier.scores(pair.train, rows[part])
        held = in_target == fold
        scores_of_target[held.numpy()] = classifier.scores(pair.target, of_target[held])
    return torch.from_numpy(calibrated(scores, scores_of_target, factor[rows].numpy()))


def calibrated(scores: Array, of_target: Array, weights: Array) -> Array:
    """Ratios of two densities of scores, float64 ``[n]``, at those of the training rows.

    ``scores [n]`` of training rows count with their ``weights``, scores ``of_target [m]`` with n/m
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
    """Share of the training rows that are like the target, in [`LOWEST`, 1]: best-bin estimation.

    The smallest ratio of both kinds' shares above a score, where a bound on its error is best.
    Source: Garg et al., "Mixture proportion estimation and PU learning", NeurIPS 2021, algorithm 1,
    with their gamma = 0.01 and delta = 0.1; ``weights [n]`` count the training rows.
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


# --- estimators ----------------------------------------------------------------------------------


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
        x = stacked([self._view(*part) for part in parts])
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
        y = _columns(rows, which)
        more = [] if experts is None else [experts.surprise(x, y)]
        return np.hstack([x, y, *more]).astype(np.float32)


class Experts:
    """Regressions of the targets of some rows of the training data and of the target, int64 each.

    `LinearThenTrees`, for each of at most `OUTPUTS` outputs.
    """

    def __init__(self, pair: Pair, train: Tensor, target: Tensor) -> None:
        self.models = []
        for rows, which in ((pair.train, train), (pair.target, target)):
            x, y = rows.features(which), _columns(rows, which)
            self.models += [LinearThenTrees().fit(x, each) for each in y.T[:OUTPUTS]]
        pair.flops += sum(fit_flops(model, x) for model in self.models)

    def surprise(self, x: Array, y: Array) -> Array:
        """Errors of each regression: float64 ``[n, models]``."""
        said = np.stack([model.predict(x) for model in self.models], 1)
        own = np.tile(y[:, :OUTPUTS], 2)  # models of the training data, then of the target
        return np.abs(own - said)


def _columns(rows: Rows, which: Tensor) -> Array:
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

        filled = finite(x)
        self.linear = Ridge(1e-3 * len(x)).fit(filled, y, sample_weight)
        self.trees = HistGradientBoostingRegressor(**TREES)
        self.trees.fit(for_trees(x), y - self.linear.predict(filled), sample_weight)
        self.n_iter_, self.max_leaf_nodes = self.trees.n_iter_, self.trees.max_leaf_nodes
        return self

    def predict(self, x: Array) -> Array:
        """Values ``[n]``."""
        predicted: Array = self.linear.predict(finite(x)) + self.trees.predict(x)
        return predicted


def for_trees(x: Array) -> Array:
    """``x [n, d]`` to fit trees to, which fail at a column without a value and warn of infinity."""
    return np.clip(np.where(np.isnan(x).all(0), 0, x), -1e30, 1e30)


def finite(x: Array) -> Array:
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
