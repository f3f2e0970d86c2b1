"""Training rows beside the rows of a target, and which of them depend on each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from astkit import rng
from astkit.aim.blocks import find_blocks
from astkit.aim.features import IMAGES, TABLE, Rows
from astkit.datasets.dependence import Array, block_numbers

FITTED = 12_000  # training rows to which an estimator is fitted, at most
COPIES = 0.01  # share of the rows that have copies, from which on these count


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
        """Independent rows that the target is worth; `find_blocks` gives both their blocks."""
        return find_blocks(self.train, self.target, self.labels)

    @property
    def sampled(self) -> int:
        """How many rows `sample` has, for whose number no feature has to be computed."""
        return min(FITTED, len(self.train))

    @cached_property
    def sample(self) -> Tensor:
        """At most `FITTED` training rows, unit by unit in random order.

        Of a table, columns that do not `overlap` are left out from here on.
        """
        _ = self.worth  # both parts know their blocks from here on
        rows = self.by_unit(torch.arange(len(self.train)))[: self.sampled]
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

    def total_flops(self) -> float:
        """FLOPs of features and estimators so far."""
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
