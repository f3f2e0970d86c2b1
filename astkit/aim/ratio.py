"""How much more frequent each training row is in the target: p_target(x, y) / p_training(x, y).

The ratio is a product: p_target(y) / p_training(y), counted where the targets are classes, times
p_target(x | y) / p_training(x | y), estimated by a classifier that tells training rows, weighted by
the first factor, from rows of the target. A test comes before either.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from astkit import rng
from astkit.aim.estimators import Classifier
from astkit.aim.features import CHUNK
from astkit.aim.pair import Pair, distinct, folds, units, without_copies
from astkit.datasets.dependence import Array

TESTED = 4000  # rows of a test, at most; half of them of the target, where it has as many
FOLDS = 3
DRAWS = 2000  # permutations of a test
FLOOR = 0.01  # smallest ratio, as a share of the largest
LOWEST = 0.01  # smallest share of target-like rows that is believed


class Difference(NamedTuple):
    """``auc`` of telling two kinds of rows apart, on rows that were not fitted; its p-value."""

    auc: float
    p: float


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
    return torch.from_numpy(calibrate(scores, scores_of_target, factor[rows].numpy()))


def calibrate(scores: Array, of_target: Array, weights: Array) -> Array:
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
