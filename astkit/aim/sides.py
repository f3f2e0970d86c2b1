"""Old rows beside the rows of a target, and which of them depend on each other."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astkit import rng
from astkit.aim.rows import IMAGES, TABLE, FeaturesOf, Matrix, Rows
from astkit.datasets.dependence import (
    Array,
    autocorrelation_time,
    block_length,
    block_numbers,
    centred,
    sorted_by,
)
from astkit.datasets.facts import paired_groups, read_alike

FITTED, OF_TABLES = 12_000, 8_000
"""Old rows that estimators are fitted to, at most, also of tables; each then stands for several."""
TRACED = 4000  # rows of which it is asked whether neighbours depend on each other, at most
STRETCHES = 3  # of old rows, as long as the target, of which the same is asked
COLUMNS = 32  # of features that are looked at for it; of more a quarter as many components
OUTPUTS = 4  # of a target, at most, that are looked at


class Sides:
    """Old rows and target rows as estimators read them.

    Args:
        old, target: rows of one kind.

    Attributes:
        units: of both, int64 ``[N]`` and ``[M]`` from 0: rows of one unit may depend on each other,
            and are in one fold. Groups of the data, dates, blocks of consecutive rows where
            neighbours depend on each other, and rows of equal inputs, unless the other side has
            such rows as well: then they are values that come often, as in a table of few columns.
        judged: units of the target in folds, int64 ``[M]``: the same, but blocks are as long as
            targets depend on each other, where inputs do so for longer.
        apart: whether units are more than rows of equal inputs.
        forward: whether the target's rows are in order, so that folds go forward.
        worth: independent rows that the target is worth.
        notes: what was found of this, as parts of a sentence.
        flops: of estimators fitted so far.

    Raises ``ValueError`` for data of different kinds, shapes or classes.
    """

    def __init__(self, old: Rows, target: Rows, seed: int = 0) -> None:
        self.old, self.target, self.seed = old, target, seed
        self.flops, self.forward = 0.0, False
        self.notes: list[str] = []
        self.everything = torch.arange(len(target))
        self._check()

    def find_units(self, in_order: bool | None = None, date: str | None = None) -> None:
        """Read the rows that estimators see, and find which of them depend on each other.

        Args:
            in_order: whether the target's rows are in order of time; ``None``: if neighbouring
                rows are found to depend on each other.
            date: the column of a `Table` that orders them; rows of one value stay together.
        """
        old, target = self.old, self.target
        target.keep(self.everything)
        worth: float = len(target)
        self.apart, self.forward, grouped = True, bool(in_order), False
        if date is not None:
            self.forward = True
            self.units = _moments(old, date, "old rows"), _moments(target, date, "target")
            self.judged = self.units[1]
            assert target.table is not None
            if undated := int(target.table.frame[date].isna().sum()):
                self.notes.append(f"{undated:,} target rows without {date!r} are not judged")
            targets = target.targets(self.judged.argsort(stable=True))  # in time
            assert targets is not None
            worth /= autocorrelation_time(targets.double().numpy())
        elif old.groups is not None and target.groups is not None:
            self.units, self.judged, grouped = (old.groups, target.groups), target.groups, True
            worth = 1 + int(target.groups.max())
        else:
            time = of_targets = 1.0
            if in_order is not False:
                of_targets = self._autocorrelation_time(inputs=False)
                time = max(of_targets, self._autocorrelation_time())
            worth /= of_targets
            block = block_length(time, len(target))
            self.apart = block > 1
            if self.apart and in_order is None:
                self.forward = True
                self.notes.append("rows seem to be in an order (in_order=False if not)")
            sizes = ((len(old), block), (len(target), block))
            numbers = [torch.from_numpy(block_numbers(*each)) for each in sizes]
            self.units = numbers[0], numbers[1]
            length = block_length(of_targets, len(target))
            self.judged = torch.from_numpy(block_numbers(len(target), length))
        if not old.of_model:  # whose features take passes, which a test of other rows may spare
            _ = self.sample
        self.worth = worth if grouped else worth * self._unite_equal()

    def _check(self) -> None:
        old, target = self.old, self.target
        if old.kind != target.kind:
            raise ValueError(
                f"the training data hold {old.kind} and the target {target.kind}: pass a target of"
                " the kind of the training data"
            )
        (x, y), (z, w) = (side.read(torch.zeros(1).long()) for side in (old, target))
        same = True
        if old.kind == IMAGES:
            same = x.shape[1] == z.shape[1]
        elif old.kind == TABLE:
            both = isinstance(y, Tensor) and isinstance(w, Tensor)
            same = x.shape[1:] == z.shape[1:] and (not both or y.numel() == w.numel())
        if not same:
            raise ValueError(
                f"a row of the training data has the shape {list(x.shape[1:])} and one of the"
                f" target {list(z.shape[1:])}, or other targets: pass a target with the columns or"
                " channels of the training data"
            )
        if self.labels is not None and not torch.isin(*self.labels).any():
            raise ValueError(
                "no training row has a class of the target: pass a target of the classes of the"
                " training data"
            )

    @cached_property
    def labels(self) -> tuple[Tensor, Tensor] | None:
        """Labels of the old rows and of the target, where the targets of both are classes.

        They are numbered anew from 0, without classes that neither has. A target of few rows may
        not show that its integers are classes; those of the old rows are then looked for. ``None``
        where labels are negative, as of rows that do not count.
        """
        old, target = self.old.labels, self.target.labels
        if old is not None and target is None:
            target = self.target.targets(torch.arange(len(self.target)))
            if target is None or target.numel() > len(target) or target.is_floating_point():
                return None
            target = target.flatten().long()
            if int(target.max()) > int(old.max()):
                return None
        if old is None or target is None or min(int(old.min()), int(target.min())) < 0:
            return None
        place = torch.cat([old, target]).unique(return_inverse=True)[1]
        return place[: len(old)], place[len(old) :]

    @cached_property
    def has_targets(self) -> bool:
        """Whether the rows of both sides have targets."""
        first = torch.zeros(1, dtype=torch.int64)
        return all(rows.targets(first) is not None for rows in (self.old, self.target))

    @cached_property
    def sample(self) -> Tensor:
        """The old rows that estimators are fitted to, unit by unit in random order; read once."""
        rows = self.by_unit(torch.arange(len(self.old)))[: self.sampled]
        self.old.keep(rows)
        return rows

    @property
    def sampled(self) -> int:
        """How many old rows estimators are fitted to."""
        return min(OF_TABLES if self.old.kind == TABLE else FITTED, len(self.old))

    def total_flops(self) -> float:
        """FLOPs of features and estimators so far."""
        return self.flops + self.old.flops + self.target.flops

    def by_unit(self, rows: Tensor) -> Tensor:
        """The old ``rows``, int64 ``[n]``, unit by unit in random order."""
        own = self.units[0]
        place = rng.permutation(1 + int(own.max()), self.seed, "aim", "sample").argsort()
        return rows[place[own[rows]].argsort(stable=True)]

    def folds(self, side: int, count: int, *key: int | str) -> Tensor:
        """A random number below ``count`` for each row of a side, the same within a unit."""
        own = self.units[side]
        return (rng.permutation(1 + int(own.max()), self.seed, *key) % count)[own]

    def firsts(self, side: int, rows: Tensor) -> Tensor:
        """The first of each unit among ``rows``, where units are rows of equal inputs alone."""
        return rows if self.apart else rows[distinct(self.units[side][rows])[0]]

    # --- which rows depend on each other ------------------------------------------------------

    def _autocorrelation_time(self, inputs: bool = True) -> float:
        """Rows of the target that are worth an independent one, by their inputs and targets.

        Or the median of stretches of old rows of the same length, if that is longer: a change
        within the old rows is not in most of them.
        """
        length = min(len(self.target), TRACED)
        time = autocorrelation_time(self._columns(1, 0, length, inputs))
        if time > 1 and not self.old.of_model:
            length = min(length, len(self.old))
            starts = np.linspace(0, len(self.old) - length, STRETCHES).astype(int).tolist()
            parts = [self._columns(0, start, length, inputs) for start in starts]
            time = max(time, float(np.median([autocorrelation_time(part) for part in parts])))
        return time

    def _columns(
        self, side: int, start: int = 0, length: int | None = None, inputs: bool = False
    ) -> Array:
        """What is known of consecutive rows of a side, ``[length, d]``.

        Targets and, with ``inputs``, features, or their principal components where they are many;
        without columns that only rise or fall, such as counters, which say how rows are sorted.
        """
        rows = self.target if side else self.old
        which = start + torch.arange(len(rows) if length is None else length)
        x = y = np.empty((len(which), 0))
        if inputs:
            x = principal(rows.features(which))
        labels = None if self.labels is None else self.labels[side]
        if labels is None:
            targets = rows.targets(which)
            if targets is not None and targets[0].numel() <= OUTPUTS:
                y = targets.reshape(len(which), -1).double().numpy()
        elif sorted_by(labels.numpy()):
            x = centred(x, labels[which].numpy())
        else:
            y = labels[which].numpy()[:, None] == np.unique(labels[which])
        columns = np.hstack([x, y])
        steps = np.diff(columns, axis=0)
        return columns[:, (steps > 0).any(0) & (steps < 0).any(0)]

    def _unite_equal(self) -> float:
        """Let rows of equal inputs be one unit; returns the share of units left of the target.

        Rows belong to the block of the first of them.
        """
        hashes = self.old.hashes(), self.target.hashes()
        parts = (self.units[0], 0), (self.units[1], 1), (self.judged, 1)
        units = []
        for own, side in parts:
            first, place, counts = distinct(hashes[side])
            known = (hashes[side] != 0) & ~torch.isin(hashes[side], hashes[1 - side])
            united = torch.where(known & (counts[place] > 1), own[first][place], own)
            units.append(united.unique(return_inverse=True)[1])  # dates stay in their order
        share = (1 + int(units[2].max())) / (1 + int(self.judged.max()))
        self.units, self.judged = (units[0], units[1]), units[2]
        if not self.apart and share < 0.5:
            rows = len(self.target)
            self.notes.append(f"{rows:,} rows have {round(share * rows):,} different inputs")
        return share


def sides_of(
    old: Any,
    target: Any,
    features: FeaturesOf | None = None,
    classes: bool | None = None,
    seed: int = 0,
) -> Sides:
    """Both sides of data sets; the old rows are transformed as the target's."""
    if target is None:
        raise ValueError(
            "aim draws what the target needs, but there is no target: pass validation data like"
            " those that the model is meant for, validation=..."
        )
    paired_groups(old, target)
    rows = Rows(read_alike(old, target), features, classes=classes)
    return Sides(rows, Rows(target, features, classes=classes), seed)


def times_of(rows: Rows, date: str, side: str = "target") -> Array:
    """The ``date`` of each row, in days if it is one: float64 ``[rows]``, NaN where it lacks."""
    assert rows.table is not None
    if date not in rows.table.frame:
        raise ValueError(
            f"date is {date!r}, which is no column with values of the {side}: give one that is"
        )
    moments = rows.table.frame[date].to_numpy()
    if moments.dtype.kind not in "fiM":
        raise ValueError(f"date is {date!r}, a column of words: give one of dates or numbers")
    if moments.dtype.kind != "M":
        return moments.astype(np.float64)
    days = moments.astype("datetime64[D]").astype("int64").astype(np.float64)
    return np.where(np.isnat(moments), np.nan, days)


def _moments(rows: Rows, date: str, side: str) -> Tensor:
    """The place in time of each row by its ``date``, int64 ``[rows]``; rows of a day have one.

    Rows without one come before all others, so that no other row is judged by their models alone.
    """
    times = times_of(rows, date, side)
    places = np.unique(np.nan_to_num(times, nan=-np.inf), return_inverse=True)[1]
    return torch.from_numpy(places)


def distinct(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First row of each of ``values [n]``, in order, place of each row among these, and counts."""
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    rows = torch.arange(len(values))
    first = torch.full_like(counts, len(values)).scatter_reduce(0, place, rows, "amin")
    first, order = first.sort()
    return first, order.argsort()[place], counts[order]


def principal(x: Matrix) -> Array:
    """``x [n, d]`` itself, if it has at most `COLUMNS` columns; else its principal components."""
    if x.shape[1] <= COLUMNS:
        return np.nan_to_num(np.asarray(x, np.float64), posinf=0.0, neginf=0.0)
    from sklearn.decomposition import TruncatedSVD

    if isinstance(x, np.ndarray):
        x = np.nan_to_num(x, posinf=0.0, neginf=0.0)
        x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-12)
    count = min(COLUMNS // 4, *(size - 1 for size in x.shape))
    return TruncatedSVD(max(1, count), random_state=0).fit_transform(x)
