"""Conditions of training data, and what an oracle, which knows the truth, would choose under each.

A condition turns clean data into training data with a stated fault. Its validation data are the
target: right rows of the kind that the test data have. All of it depends on the seed alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from astkit import rng
from astkit.checks import PART, check_choice, check_count, check_number
from astkit.datasets.images import Images
from astkit.datasets.sources import stratified
from astkit.names import resolve

TARGET = 1000  # validation rows
DRIFTS = ("law", "columns", "inputs")
ROWS, TESTED, OLDER = 10_000, 4000, 0.7  # of a drift: training and test rows, share of older ones


@dataclass(frozen=True, eq=False)
class Condition:
    """Training data under a condition, the target, and the truth about each of N training rows.

    Attributes:
        description: one sentence, with sizes and sources.
        train: ``Images``, or a TensorDataset of inputs and targets.
        validation: the target, right rows of the kind of ``test``; with a target of 0 ``None``, or
            without rows where the data are made.
        test: as ``validation``.
        outputs: values that a model predicts for each row.
        rows: int64 ``[N]``, the row of the original. `None` if made.
        true_labels: int64 ``[N]``; `None` without classes.
        relevant: bool ``[N]``, whether a row is of the kind of ``test``; `None` if all are.
        class_shares: float64 ``[outputs]``, of ``test``, if the training data have other ones.
    """

    description: str
    train: Any
    validation: Any
    test: Any
    outputs: int
    rows: Tensor | None = None
    true_labels: Tensor | None = None
    relevant: Tensor | None = None
    class_shares: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """Int64 ``[N]``: the class labels of ``train``, which must be ``Images``."""
        return self.train.labels

    @property
    def wrong(self) -> Tensor:
        """Bool ``[N]``: whether the label is wrong."""
        if self.true_labels is None:
            return torch.zeros(len(self.train), dtype=torch.bool)
        return self.labels != self.true_labels

    @property
    def useful(self) -> Tensor:
        """Bool ``[N]``: whether a row is right and relevant."""
        return ~self.wrong if self.relevant is None else ~self.wrong & self.relevant

    @property
    def oracle(self) -> Tensor | None:
        """Weights with which an oracle draws rows, float64 ``[N]``, mean 1; `None` if all are 1.

        Rows that are not `useful` have weight 0; the others have one weight per class, so that
        classes are drawn as often as in ``test``.
        """
        weights = self.useful.double()
        if self.class_shares is not None:
            counts = self.labels[self.useful].bincount(minlength=self.outputs).double()
            weights *= (self.class_shares / counts.clamp_min(1))[self.labels]
        weights /= weights.mean()
        return None if bool((weights == 1).all()) else weights


class Change(NamedTuple):
    """What a condition of images makes of the training data: ``said`` in words.

    ``rows``: int64 ``[N]`` of the original; ``labels``: others than theirs; ``skewed``: whether the
    classes have other shares than in the test data.
    """

    said: str
    rows: Tensor
    labels: Tensor | None = None
    skewed: bool = False


def condition(
    name: str,
    train: Images | None = None,
    test: Images | None = None,
    seed: int = 0,
    *,
    target: int = TARGET,
    **options: Any,
) -> Condition:
    """The condition ``name`` of this module; deterministic for a ``seed``.

    Args:
        name: "clean", "wrong_labels" and "long_tail" are made from the images ``train``; "drift"
            brings its own data.
        test: images; those that the model is judged by are passed on.
        target: number of validation rows, which are taken out of ``train``; none with 0.
        options: arguments of the function ``name`` in this module.

    Raises ``ValueError`` for an unknown name and for values that are impossible with this data.
    """
    make: Callable[..., Any] = resolve("condition", name)
    names = list(inspect.signature(make).parameters)
    of_images = names[0] == "train"
    own = names[3:] if of_images else names[2:]
    for option in options:
        if option not in own:
            known = ", ".join(own) or "none"
            raise ValueError(f"condition {name!r} has no option {option!r}: choose of {known}")
    if of_images != (train is not None):
        remedy = "pass train= and test=" if of_images else "leave train and test out"
        kind = "made" if of_images else "not made"
        raise ValueError(f"condition {name!r} is {kind} of images: {remedy}")
    check_count("target", target, least=0)
    if train is None:
        return make(seed, target, **options)
    if target >= len(train):
        raise ValueError(f"target is {target} of {len(train)} rows: give less")
    validation, rows = None, torch.arange(len(train))
    if target:
        held, rows = stratified(train.labels, target / len(train), seed, "target")
        validation = train.subset(held)
    change: Change = make(train, rows, seed, **options)
    true = train.labels[change.rows]
    labels = true if change.labels is None else change.labels
    return Condition(
        f"{train.name}, {change.said}",
        Images(train.images[change.rows], labels, train.classes, train.name),
        validation,
        test,
        train.num_classes,
        change.rows,
        true,
        class_shares=class_shares(test or train) if change.skewed else None,
    )


# --- images: of ``rows``, int64, those that are trained on --------------------------------------


def clean(train: Images, rows: Tensor, seed: int) -> Change:
    """The data as they are, of which ``target`` rows are validation data."""
    return Change("as it is", rows)


def wrong_labels(train: Images, rows: Tensor, seed: int, share: float = 0.4) -> Change:
    """``round(share * N)`` random labels replaced, each by one of the other classes.

    Other classes are equally likely: symmetric noise that excludes the true class, so exactly
    ``share`` of the labels is wrong.
    """
    labels = mislabelled(train.labels[rows], share, seed)
    return Change(f"{share:.0%} wrong labels", rows, labels)


def long_tail(train: Images, rows: Tensor, seed: int, factor: float = 100.0) -> Change:
    """Random rows of each class, with geometrically decreasing class sizes, in order of labels.

    The first class is ``factor`` times as large as the last; sizes are the largest that the data
    allow. Source: Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", CVPR
    2019.
    """
    rows = rows[tail(train.labels[rows], factor, seed)]
    return Change(f"class sizes in a long tail of {factor:g}", rows, skewed=True)


def mislabelled(labels: Tensor, share: float, seed: int) -> Tensor:
    """Int64 ``[N]`` ``labels``, of which ``round(share * N)`` random ones are another class."""
    check_number("share", share, PART)
    classes, place = labels.unique(return_inverse=True)
    rows = rng.permutation(len(labels), seed, "wrong labels")[: round(share * len(labels))]
    if len(rows) and len(classes) < 2:
        raise ValueError("labels are of one class, so that none can be wrong: give two classes")
    drawn = rng.generator(seed, "wrong labels", "by")
    shift = torch.randint(1, len(classes), (len(rows),), generator=drawn)
    changed = labels.clone()
    changed[rows] = classes[(place[rows] + shift) % len(classes)]
    return changed


def tail(labels: Tensor, factor: float, seed: int) -> Tensor:
    """Rows of a long tail of int64 ``[N]`` ``labels``, sorted; see `long_tail`."""
    if not factor >= 1:
        raise ValueError(f"factor is {factor}: give 1 or more")
    classes, counts = labels.unique(return_counts=True)
    decay = factor ** (-torch.arange(len(classes)).double() / max(1, len(classes) - 1))
    sizes = (decay * (counts / decay).min()).round().long()
    if int(sizes.min()) < 1:
        raise ValueError(
            f"factor is {factor:g}, which leaves class {int(classes[sizes.argmin()])} without a"
            f" row: give at most {int(counts.min())}"
        )
    kept = []
    for label, size in zip(classes.tolist(), sizes.tolist(), strict=True):
        of_class = (labels == label).nonzero().squeeze(1)
        kept.append(of_class[rng.permutation(len(of_class), seed, "long tail", label)[:size]])
    return torch.cat(kept).sort().values


def class_shares(data: Images) -> Tensor:
    """The share of each class in ``data``: float64 ``[classes]``."""
    return data.labels.bincount(minlength=data.num_classes).double() / len(data)


# --- tables ----------------------------------------------------------------------------------


def drift(seed: int, target: int = TARGET, kind: str = "law", data: Any = "table") -> Condition:
    """A regression whose rows are in order of time, and the older `OLDER` of them are different.

    ``kind``: "law", the older targets depend on the inputs in another way; "columns", two columns
    of the older inputs are swapped; "inputs", the older inputs are others but the law is the same,
    so that all rows are relevant. ``data``: "table", see `friedman_table`, or a function like it.
    """
    make = friedman_table if data == "table" else data
    if not callable(make):
        raise ValueError(f"data is {data!r}: give table, or a function that makes rows")
    data = data if data == "table" else make.__name__
    check_choice("kind", kind, DRIFTS)
    older = torch.arange(ROWS + target + TESTED) < OLDER * ROWS
    x, y = make(older, kind, rng.generator(seed, "drift", data, kind))
    train, validation, test = (
        TensorDataset(*part)
        for part in zip(*(each.split([ROWS, target, TESTED]) for each in (x, y)), strict=True)
    )
    said = f"{data} of {ROWS} rows in order of time, other {kind} in the older {100 * OLDER:.0f} %"
    relevant = None if kind == "inputs" else ~older[:ROWS]
    return Condition(said, train, validation, test, y.shape[1], relevant=relevant)


def friedman_table(older: Tensor, kind: str, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs float32 ``[N, 10]`` in 0..1 and targets ``[N, 1]`` with noise of deviation 1.

    The law is Friedman's first (Multivariate Adaptive Regression Splines, 1991, 4.3); for the
    "law" of the ``older`` rows, the last five columns count instead of the first.
    """

    def law(x: Tensor) -> Tensor:
        curved = 10 * (math.pi * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5).square()
        return curved + 10 * x[:, 3] + 5 * x[:, 4]

    x = torch.rand(len(older), 10, generator=random)
    if kind == "inputs":
        x[older] = x[older].square()
    y = law(x)
    if kind == "law":
        y[older] = law(x[older].flip(1))
    if kind == "columns":
        x[:, [2, 3]] = torch.where(older[:, None], x[:, [3, 2]], x[:, [2, 3]])
    return x, (y + torch.randn(len(older), generator=random))[:, None]
