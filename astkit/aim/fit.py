"""`Forecast.fit`: boosted trees of a table, fitted as a decision says, with their reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline
from torch import Tensor

from astkit.aim.decisions import Decision
from astkit.datasets.dependence import Array
from astkit.datasets.table import Table
from astkit.datasets.table_parts import read_inputs
from astkit.progress import warn


class Reading(TransformerMixin, BaseEstimator):
    """Reads rows as a training `Table`, for trees: as they are, and NaN where they are missing.

    Args:
        table: what says how, of which the rows are not kept.
        known: bool ``[inputs]``, those that have a value, which alone are given.
    """

    def __init__(self, table: Table, known: Array) -> None:
        self.table, self.known = table, known

    def fit(self, rows: Any, y: Any = None) -> Self:
        """Nothing is fitted anew."""
        return self

    def transform(self, rows: Any) -> Array:
        """Inputs of all ``rows``: a file, a DataFrame or a `Table` like the training one."""
        table = rows if isinstance(rows, Table) else read_inputs(rows, self.table)
        if table is not rows:
            for note in table.notes:
                warn(note)
        return table.matrix(scaled=False)[:, self.known]

    def __sklearn_is_fitted__(self) -> bool:
        return True


def fitted(parts: Sequence[Table], decision: Decision, weights: Tensor | None) -> Pipeline:
    """Trees fitted to the rows of ``parts``, old ones and perhaps target ones, by ``weights``.

    ``weights``: see `Forecast`; ``None``: each old row once. Rows of weight 0 leave no trace.
    """
    first, rows = parts[0], sum(map(len, parts))
    each = np.ones(len(first)) if weights is None else weights.numpy()
    each = np.pad(each, (0, rows - len(each)))
    used = each > 0
    each = each[used] / (each[used].mean() if decision.weighted else each[used].min())
    x = np.concatenate([part.matrix(scaled=False) for part in parts])[used]
    y = np.concatenate([part.values.numpy() for part in parts])[used]
    known = ~np.isnan(x).all(0)  # the trees of scikit-learn fail on columns without a value
    kind = HistGradientBoostingRegressor
    if first.classes is not None:
        kind, y = HistGradientBoostingClassifier, np.array(first.classes)[y]
    trees = kind(early_stopping=False, random_state=0)
    trees.fit(x[:, known], y, sample_weight=each)
    return Pipeline([("read", Reading(without_rows(first), known)), ("trees", trees)])


def without_rows(table: Table) -> Table:
    """What reads further rows as those of ``table``."""
    empty = table.take(torch.arange(0))
    empty.frame = pd.DataFrame(columns=list(table.frame))  # categories would keep all words
    empty.vectors, empty.notes = [], []
    return empty
