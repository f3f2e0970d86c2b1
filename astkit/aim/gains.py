"""What choosing by the target is expected to gain, from proxies that are fitted in seconds.

A proxy is fitted to training rows with their weights to the powers `POWERS`, and judged in the
task's own metric on rows of the target that did not shape the weights. Source of the powers:
Shimodaira, "Improving predictive inference under covariate shift", 2000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from astkit.aim.blocks import OUTPUTS
from astkit.aim.estimators import (
    LinearThenTrees,
    fill_missing,
    fit_flops,
    for_trees,
    numbers,
    table_classifier,
)
from astkit.aim.features import TABLE, TOKENS, Matrix, mix_bits
from astkit.aim.pair import Pair, units
from astkit.datasets.batch import IGNORED
from astkit.datasets.dependence import Array

POWERS = (0.0, 0.5, 1.0)
ERRORS = 2.0  # standard errors of a gain that is believed
CONTEXTS = 2**22  # buckets of the n-gram model
WIDE = 64  # outputs of a regression, at most
MOST_TOKENS = 4_000_000  # to which it is fitted
PRIOR = 2.0  # observations that the shorter context of the n-gram model counts as


class ExpectedGain(NamedTuple):
    """What weighting rows by the target is expected to gain over training on all of them.

    Attributes:
        gain: expected gain, in ``unit``; 0 where the training data and the target are alike.
        error: paired standard error of it over rows of the target.
        unit: "points" of accuracy, "% of the RMSE", "bits a token"; empty without targets.
        power: of the weights, one of `POWERS`; 0 is training on all rows, see `best_power`.
        reason: why nothing is expected, or why it cannot be foretold; else empty.
        seconds: how long it took.
        block: consecutive rows that were taken together, since they depend on each other; 1: none.
    """

    gain: float = 0.0
    error: float = 0.0
    unit: str = ""
    power: float = 0.0
    reason: str = ""
    seconds: float = 0.0
    block: int = 1

    @property
    def sentence(self) -> str:
        """One line."""
        took = f"rows in blocks of {self.block}; " * (self.block > 1) + f"{self.seconds:.0f} s"
        if self.reason:
            return f"forecast: {self.reason}; {took}"
        digits = 2 if self.unit.startswith("bits") else 1
        said = f"{self.gain:+.{digits}f} +- {ERRORS * self.error:.{digits}f} {self.unit}"
        if not self.power:
            return f"forecast: cannot tell, {said}; {took}"
        return f"forecast: {said} from choosing by the target; {took}"


def best_power(pair: Pair, weights_of: Callable[[Tensor, Tensor], Tensor]) -> ExpectedGain:
    """A forecast by proxies.

    ``weights_of(of_target, rows)``: weights of training rows, float64 ``[n]``, shaped by these rows
    of the target. Each half of the target shapes the weights of proxies that are judged on the
    other. The gain is that of the power 1, or of 0.5 if this is better by a paired standard error;
    if it is less than `ERRORS` of its errors, the power is 0. Without targets the power is 1, and
    with targets that no proxy knows it is 0; the unit is empty then.
    """
    fitted = pair.sample
    proxy = proxy_of(pair, fitted)
    if proxy is None:
        first = torch.zeros(1, dtype=torch.int64)
        if any(part.targets(first) is None for part in (pair.train, pair.target)):
            unknown = (
                "no gain can be foretold, the data have no targets; weights assume that these"
                " follow inputs as before"
            )
            return ExpectedGain(power=1.0, reason=unknown)
        unknown = (
            "cannot tell, no proxy knows such targets: give one class a row, as labels of the data,"
            f" or at most {WIDE} numbers"
        )
        return ExpectedGain(reason=unknown)
    losses: dict[float, list[Array]] = {power: [] for power in POWERS}
    plain = proxy.fit(np.ones(len(fitted)))
    halves = pair.halves()
    for shaping, judged in (halves, halves[::-1]):
        weights = weights_of(shaping, fitted).numpy()
        for power in POWERS:
            row_losses = proxy.fit(weights**power) if power else plain
            losses[power].append(row_losses[judged.numpy()])
    together = {power: np.concatenate(parts) for power, parts in losses.items()}
    own = units(pair.target)[torch.cat(halves[::-1])].numpy()  # as they were judged
    less, error = gain(together[1.0], together[0.5], proxy.unit, own)
    best = 0.5 if less > error else 1.0
    expected, error = gain(together[0.0], together[best], proxy.unit, own)
    sure = expected > ERRORS * error
    return ExpectedGain(expected, error, proxy.unit, best if sure else 0.0)


def gain(dense: Array, chosen: Array, unit: str, own: Array) -> tuple[float, float]:
    """Gain in ``unit`` and its standard error, from losses of the same rows, float64 ``[n]`` each.

    Of squared errors it is the reduction of their root mean in percent, with the error of the delta
    method; else the mean difference. ``own``: int ``[n]``, see `units`; infinite error for one.
    """
    if unit != "% of the RMSE":
        differences = dense - chosen
        return float(differences.mean()), _error(differences, own)
    if not dense.any():  # nothing is left to gain
        return 0.0, 0.0
    ratio = chosen.mean() / dense.mean()
    spread = _error(chosen - ratio * dense, own) / dense.mean()
    return float(100 * (1 - ratio**0.5)), float(100 * spread / (2 * max(ratio, 1e-12) ** 0.5))


def _error(values: Array, own: Array) -> float:
    """Standard error of the mean of ``values [n]``, which depend on each other within a unit.

    Source: Liang and Zeger, "Longitudinal data analysis using generalized linear models", 1986.
    """
    count = len(np.unique(own))
    if count < 2:
        return np.inf
    sums = np.bincount(own, values - values.mean())
    return float(np.sqrt((sums**2).sum() * count / (count - 1)) / len(values))


Fit = Callable[[Array], Array]
"""Fits a proxy with weights ``[fitted]``; returns its losses on the target, float64 ``[M]``."""


HEAD, TREES, NGRAMS = "head on features", "boosted trees", "n-gram model"
PROXIES = {HEAD: f"a {HEAD}", TREES: TREES, NGRAMS: f"an {NGRAMS}"}
"""Names of proxies as a sentence has them."""


class FeatureProxy(NamedTuple):
    """What fits a proxy, the unit of its gain, and its name, one of `PROXIES`."""

    fit: Fit
    unit: str
    name: str


def proxy_of(pair: Pair, fitted: Tensor) -> FeatureProxy | None:
    """A proxy that is fitted to the rows ``fitted`` with given weights.

    Rows of weight 0 leave no trace in it. ``None`` without targets, or for targets of other kinds.
    """
    train, target = pair.train, pair.target
    y = train.targets(fitted)
    if y is None or target.targets(torch.arange(1)) is None:
        return None
    x, own = train.read(fitted[:1])
    if train.kind == TOKENS and own.shape == x.shape and not y.is_floating_point():
        return FeatureProxy(_language_model(pair, fitted, y), "bits a token", NGRAMS)
    if pair.labels is not None:
        of_train, of_target = pair.labels
        return _classifier(pair, fitted, of_train[fitted].numpy(), of_target.numpy())
    if train.numeric(y) and y[0].numel() <= WIDE:
        return _regression(pair, fitted, y.reshape(len(y), -1).double().numpy())
    return None


def _classifier(pair: Pair, fitted: Tensor, y: Array, wanted: Array) -> FeatureProxy:
    """A linear head on the features; losses are 0 or 100.

    Trees for tables of two classes: with more, each would need trees of its own, which may take
    longer than a small network.
    """
    from sklearn.pipeline import make_pipeline

    train, target = pair.train, pair.target
    x = train.features(fitted)
    trees = train.kind == TABLE and len(np.unique(y)) <= 2
    of_target = target.features(torch.arange(len(target)))
    if trees:
        x = for_trees(x)
    elif train.kind == TABLE:
        x, of_target = fill_missing(x), fill_missing(of_target)

    def fit(weights: Array) -> Array:
        model = make_pipeline(table_classifier()) if trees else _head(x)
        last, used = model.steps[-1][0], weights > 0
        own = weights[used] / weights[used].mean()
        if len(np.unique(y[used])) == 1:
            return 100.0 * (y[used][0] != wanted)
        model.fit(x[used], y[used], **{f"{last}__sample_weight": own})
        pair.flops += fit_flops(model[-1], x[used])
        return 100.0 * (model.predict(of_target) != wanted)

    return FeatureProxy(fit, "points", TREES if trees else HEAD)


def _head(x: Matrix) -> Any:
    """A linear classifier of features ``x [n, d]``: ridge regression of the classes."""
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if isinstance(x, np.ndarray):
        return make_pipeline(StandardScaler(), RidgeClassifier(alpha=100.0, random_state=0))
    return make_pipeline(RidgeClassifier(alpha=1.0, random_state=0))


def _regression(pair: Pair, fitted: Tensor, y: Array) -> FeatureProxy:
    """Trees for each of few outputs of a table, else a linear model; losses are squared errors."""
    from sklearn.linear_model import Ridge

    train, target = pair.train, pair.target
    x = train.features(fitted)
    rows = torch.arange(len(target))
    of_target, wanted = target.features(rows), numbers(target, rows)
    trees = train.kind == TABLE and y.shape[1] <= OUTPUTS
    if train.kind == TABLE and not trees:
        x, of_target = fill_missing(x), fill_missing(of_target)

    def fit(weights: Array) -> Array:
        used = weights > 0
        own, columns = weights[used] / weights[used].mean(), y.T if trees else [y]
        predicted = []
        for column in columns:
            model: Any = LinearThenTrees() if trees else Ridge(random_state=0)
            model.fit(x[used], column[used], sample_weight=own)
            pair.flops += fit_flops(model, x[used])
            predicted.append(model.predict(of_target).reshape(len(rows), -1))
        errors: Array = ((np.hstack(predicted) - wanted) ** 2).mean(1)
        return errors

    return FeatureProxy(fit, "% of the RMSE", TREES if trees else HEAD)


def _language_model(pair: Pair, fitted: Tensor, y: Tensor) -> Fit:
    """An n-gram model of the next token from two, one and no tokens before; losses are in bits.

    Tokens whose target is `IGNORED` do not count. The estimate from a longer context is mixed with
    that of the shorter one, which counts as `PRIOR` observations (Witten-Bell smoothing with a
    constant); contexts share hashed buckets.
    """
    target, everything = pair.target, torch.arange(len(pair.target))
    values = target.targets(everything)
    assert values is not None
    vocabulary = 1 + max(int(y.max()), int(values.max()))
    kept = max(1, MOST_TOKENS // y.shape[1])
    x, y = _next_tokens(pair.train.inputs(fitted[:kept]), y[:kept])
    of_x, values = _next_tokens(target.inputs(everything), values)
    contexts, pairs = _hashed(x, y)
    of_target = _hashed(of_x, values)
    counted, judged = (y != IGNORED).numpy(), (values != IGNORED).numpy()

    def fit(weights: Array) -> Array:
        each = ((weights / weights.mean())[:kept, None] * counted).ravel()
        p = np.full(of_target[0].shape[::2], 1 / vocabulary)
        for order in range(contexts.shape[1]):
            seen, followed = (
                np.bincount(part[:, order].ravel(), each, minlength=CONTEXTS)
                for part in (contexts, pairs)
            )
            before, both = (part[:, order] for part in of_target)
            p = (followed[both] + PRIOR * p) / (seen[before] + PRIOR)
        pair.flops += 2.0 * contexts.size
        bits: Array = -(np.log2(p) * judged).sum(1) / np.maximum(judged.sum(1), 1)
        return bits

    return fit


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
