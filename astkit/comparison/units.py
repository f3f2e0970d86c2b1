"""What a run's test rows tell: one value a row, group or part of them, for intervals.

A metric that is a mean over rows has a value a row. Any other has pseudo-values: the metric is
computed again without each group of rows, or each of at most `PARTS` parts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astkit.datasets import BatchSource, Loader
from astkit.datasets.batch import Batch, join
from astkit.datasets.dependence import centred, sorted_by
from astkit.datasets.facts import row_groups
from astkit.datasets.table import Table
from astkit.trainers import Metric
from astkit.trainers.evaluation import Aggregate

PARTS = 200  # of the test rows, at most, of which each is left out once; see `jackknife`


def values_by_unit(values: Tensor, source: BatchSource, labels: Tensor | None) -> Tensor:
    """``values`` of the rows of ``source`` in the order of its data, or one for each group of them.

    Of rows that are sorted by ``labels`` the differences between classes are taken out, so that
    only neighbours that depend on each other seem to: intervals are for the given class shares.
    See `row_groups`, `by_group` and `sorted_by`.
    """
    order, groups = _order(source, len(values))
    values = values[order]
    if groups is not None:
        return by_group(values, groups)
    counted = values.isfinite()
    classes = torch.zeros(len(values)) if labels is None else labels[order]
    if sorted_by(classes[counted].numpy()):
        middle = centred(values[counted].double().numpy(), classes[counted].numpy())
        values[counted] = torch.from_numpy(middle).float()
    return values


def values_without(
    metric: Metric, batches: Sequence[tuple[Any, Any]], source: BatchSource
) -> Tensor:
    """Pseudo-values of a metric that is no mean over rows, for groups or parts of those of a pass.

    ``batches``: outputs and targets of the rows of ``source``.
    """
    outputs, targets = (join([pair[place] for pair in batches]) for place in (0, 1))
    whole = Batch(None, outputs, targets)
    order, groups = _order(source, whole.rows)

    def value(rows: Tensor) -> float:
        part, aggregate = whole.take(order[rows]), copy.deepcopy(metric.function)
        assert isinstance(aggregate, Aggregate)
        try:
            aggregate.update(part.x, part.y)
            return float(aggregate.compute())
        except (ValueError, RuntimeError, ZeroDivisionError):  # such as rows of one class
            return math.nan

    if groups is not None:
        return jackknife(value, parts_of_groups(groups))
    single = isinstance(targets, Tensor) and targets.reshape(whole.rows, -1).shape[1] == 1
    labels = targets.reshape(-1)[order].numpy() if single else np.zeros(whole.rows)
    return jackknife(value, parts_of_rows(whole.rows, dealt=sorted_by(labels)))


def _order(source: BatchSource, rows: int) -> tuple[Tensor, Tensor | None]:
    """Places of the rows that ``source`` yields in the order of its data, and groups in it.

    Rows of a `Table` with a date are taken in time, as neighbours may depend on each other.
    """
    if not isinstance(source, Loader):
        return torch.arange(rows), None
    loaded, groups = source.order(0)[:rows], row_groups(source)
    order, table = loaded.argsort(), source.data
    if groups is None and isinstance(table, Table) and table.date is not None:
        moments = table.frame[table.date].iloc[loaded[order].numpy()].to_numpy()
        order = order[torch.from_numpy(moments.argsort(kind="stable"))]
    return order, None if groups is None else groups[loaded[order]]


# --- pseudo-values ---


def pseudo_values(value: float, without: Tensor) -> Tensor:
    """Pseudo-values of a metric, ``[P]``, from its values ``without [P]`` each of P parts of rows.

    For the mean of parts of one size they are the means of the parts; for any smooth metric they
    vary as independent values of which ``value`` is the mean. Source: Tukey's jackknife; Efron and
    Tibshirani, An Introduction to the Bootstrap (1993), chapter 11.
    """
    count = len(without)
    if count < 2:
        return torch.full((count,), value, dtype=torch.float64)
    return count * value - (count - 1) * without.double()


def by_group(values: Tensor, groups: Tensor) -> Tensor:
    """Pseudo-values of the mean of ``values [R]``, one for each of ``groups``, int64 ``[R]``.

    Values that are not finite, as of rows without a label, do not count.
    """
    counted = values.isfinite()
    values = values[counted].double()
    groups = groups[counted].unique(return_inverse=True)[1]
    sums, sizes = groups.bincount(values), groups.bincount()
    return pseudo_values(float(values.mean()), (values.sum() - sums) / (len(values) - sizes))


def jackknife(value: Callable[[Tensor], float], parts: Tensor) -> Tensor:
    """Pseudo-values of a metric for ``parts`` of the rows, int64 ``[R]`` from 0.

    ``value``: of the metric on some rows, int64 ``[n]``; NaN where it has none.
    """
    count = 1 + int(parts.max())
    without = [
        value((parts != part).nonzero()[:, 0]) if count > 1 else 0.0 for part in range(count)
    ]
    return pseudo_values(value(torch.arange(len(parts))), torch.tensor(without))


def parts_of_rows(rows: int, dealt: bool = False) -> Tensor:
    """The part of each row, int64 ``[rows]``: at most `PARTS` parts of consecutive rows.

    Rows that are sorted by class are ``dealt`` out in turn, so that parts have equal class shares.
    """
    parts = min(rows, PARTS)
    return torch.arange(rows) % parts if dealt else torch.arange(rows) * parts // rows


def parts_of_groups(groups: Tensor) -> Tensor:
    """The part of each row, int64 ``[rows]``: at most `PARTS` parts of whole ``groups [rows]``."""
    groups = groups.unique(return_inverse=True)[1]
    count = 1 + int(groups.max())
    return groups * min(count, PARTS) // count
