"""Conditions of the training data: wrong labels, duplicates, long tail, few samples."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from astkit import rng
from astkit.datasets.images import Images
from astkit.datasets.splits import stratified
from astkit.gating.sampler import class_labels
from astkit.names import resolve


@dataclass(frozen=True, eq=False)
class Condition:
    """A training set derived from another one.

    Each of its N rows is a separate sample, even if two rows contain the same image.

    Attributes:
        data: the derived training set; ``Images`` if derived from ``Images``.
        labels: int64 ``[N]``, the labels in ``data``.
        true_labels: int64 ``[N]``, the labels of the original.
        rows: int64 ``[N]``, each sample's row in the original.
    """

    data: Any
    labels: Tensor
    true_labels: Tensor
    rows: Tensor

    @property
    def wrong(self) -> Tensor:
        """Bool ``[N]``: whether the label was replaced."""
        return self.labels != self.true_labels


class Relabelled(Dataset[Any]):
    """The ``rows`` of a dataset of pairs (input, label), with other labels."""

    def __init__(self, data: Any, rows: Tensor, labels: Tensor) -> None:
        self.data, self.rows, self.labels = data, rows, labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        inputs, _ = self.data[int(self.rows[row])]
        return inputs, int(self.labels[row])


def condition(name: str, data: Any, seed: int = 0, **options: Any) -> Condition:
    """``data`` under the condition ``name``; deterministic for a ``seed``.

    Args:
        name: "clean", "wrong_labels", "duplicates", "long_tail" or "small".
        data: ``Images``, or a map-style dataset of pairs (input, label) with class
            numbers in its attribute ``labels`` or ``targets``.
        options: arguments of the function ``name`` in this module.

    Raises ``ValueError`` for an unknown name or option, for data without class labels, and for
    values that are impossible with this data.
    """
    make = resolve("condition", name)
    known = list(inspect.signature(make).parameters)[2:]
    if unknown := sorted(options.keys() - set(known)):
        choice = f"choose from {', '.join(known)}" if known else "it takes none"
        raise ValueError(f"condition {name!r} has no option {', '.join(unknown)}: {choice}")
    labels = class_labels(data, len(data))
    if labels is None or not len(labels) or int(labels.min()) < 0:
        raise ValueError(
            f"condition {name!r} needs class labels: pass Images, or a data set with an attribute"
            " labels or targets of one class number of 0 or more for each row"
        )
    rows, given = make(labels, seed, **options)
    true = labels[rows]
    changed = true if given is None else given
    whole = torch.equal(rows, torch.arange(len(labels)))
    if not isinstance(data, Images):
        made: Any = data if whole and given is None else Relabelled(data, rows, changed)
    else:
        made = data if whole else data.subset(rows)
        made = made if given is None else replace(made, labels=given.to(data.labels.device))
    return Condition(made, changed, true, rows)


Made = tuple[Tensor, Tensor | None]
"""Rows of the original, int64 ``[N]``, and their labels if they differ from the original's."""


def clean(labels: Tensor, seed: int) -> Made:
    """The unchanged data."""
    return torch.arange(len(labels)), None


def wrong_labels(labels: Tensor, seed: int, share: float = 0.4) -> Made:
    """``round(share * N)`` random labels replaced, each by one of the other classes.

    Other classes are equally likely: symmetric noise that excludes the true class, so exactly
    ``share`` of the labels is wrong.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}: give a number from 0 to 1")
    classes, place = labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError("all labels are of one class, so none can be replaced: add a class")
    rows = rng.permutation(len(labels), seed, "wrong labels")[: round(share * len(labels))]
    drawn = rng.generator(seed, "wrong labels", "by")
    shift = torch.randint(1, len(classes), (len(rows),), generator=drawn)
    given = labels.clone()
    given[rows] = classes[(place[rows] + shift) % len(classes)]
    return torch.arange(len(labels)), given


def duplicates(
    labels: Tensor,
    seed: int,
    copies: int = 4,
    repeated: int | None = None,
    single: int | None = None,
) -> Made:
    """``repeated`` random rows ``copies`` times each, and ``single`` other rows once.

    By default, equally many of both, keeping the size of the data: 10,000 each of 50,000 rows.
    """
    if copies < 1:
        raise ValueError(f"copies is {copies}: give 1 or more")
    each = len(labels) // (copies + 1)
    first, second = (each if count is None else count for count in (repeated, single))
    if min(first, second) < 0 or not 0 < first + second <= len(labels):
        raise ValueError(
            f"repeated is {first} and single {second}: give numbers of 0 or more that add up to"
            f" between 1 and the {len(labels)} rows of the data"
        )
    order = rng.permutation(len(labels), seed, "duplicates")
    return torch.cat([order[:first].repeat(copies), order[first : first + second]]), None


def long_tail(labels: Tensor, seed: int, factor: float = 100.0) -> Made:
    """Random rows of each class, with geometrically decreasing class sizes, in order of labels.

    The first class is ``factor`` times as large as the last; sizes are the largest that the data
    allow. Source: Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", CVPR
    2019.
    """
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
    return torch.cat(kept).sort().values, None


def small(labels: Tensor, seed: int, rows: int = 8000) -> Made:
    """About ``rows`` random rows, the same share of each class."""
    if not 0 < rows < len(labels):
        raise ValueError(f"rows is {rows}: give between 1 and {len(labels) - 1}, not all of them")
    return stratified(labels, rows / len(labels), seed, "small")[0], None


def class_scores(recalls: Tensor, train_labels: Tensor) -> dict[str, float]:
    """Accuracies on a balanced test set and on one with the training data's distribution.

    Args:
        recalls: per-class recall on the test set, ``[C]``.
        train_labels: int64 ``[N]``, the true labels of the training data.

    Returns ``balanced``, the mean over classes; ``natural``, the mean weighted by the classes'
    shares of the training data; ``worst``, the lowest recall of a class.
    """
    recalls = recalls.double()
    shares = train_labels.bincount(minlength=len(recalls)).double() / len(train_labels)
    return {
        "balanced": float(recalls.mean()),
        "natural": float((recalls * shares).sum()),
        "worst": float(recalls.min()),
    }
