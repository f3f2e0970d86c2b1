"""What a table asks to predict: a number, or one of some classes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from astkit.datasets.table_readers import is_number
from astkit.datasets.table_sources import as_written

if TYPE_CHECKING:
    import pandas as pd

CLASSES = 20
"""Most distinct whole numbers of a label that are classes; words are always classes."""
MANY, NAMED = 100, 3
"""Most classes, and values that a message names."""
FINEST = 1e-5
"""Smallest deviation of a label, in units of its mean, which float32 resolves in 100 steps."""
TASKS = ("regression", "classes")


@dataclass(frozen=True)
class Label:
    """A column that is predicted.

    Attributes:
        name: of the column.
        task: "regression" or "classes".
        classes: names of the classes in order; none of a regression.
        mean, deviation: of the rows it was made from, in the label's unit.
    """

    name: str
    task: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0

    def __str__(self) -> str:
        kind = "regression" if self.task == "regression" else f"{len(self.classes)} classes"
        return f"{kind} of {self.name}"

    @classmethod
    def of(cls, column: pd.Series[Any], name: str, task: str | None = None) -> Self:
        """The label in ``column``.

        Words, and up to `CLASSES` distinct whole numbers, are classes unless ``task`` says
        otherwise. Raises ``ValueError`` for a column that cannot be predicted.
        """
        if task is not None and task not in TASKS:
            raise ValueError(f"task is {task!r}: give 'regression' or 'classes'")
        distinct = int(column.nunique())
        if distinct < 2:
            raise ValueError(f"label {name!r} has {distinct} different values: give another column")
        if column.dtype.kind == "M":
            raise ValueError(f"label {name!r} holds dates, which no model predicts: give numbers")
        words = column.dtype.kind != "f"
        if words and task == "regression":
            raise ValueError(f"task is 'regression', but label {name!r} holds words: give numbers")
        if task is None:
            few = distinct <= CLASSES and not words and bool((column.dropna() % 1 == 0).all())
            task = "classes" if words or few else "regression"
        if task == "regression":
            values = column.dropna().to_numpy("float64")
            mean, deviation = float(values.mean()), float(values.std())
            if deviation < FINEST * abs(mean):
                near = f"label {name!r} differs by {deviation:.3g} around {mean:.6g}"
                raise ValueError(f"{near}, which float32 does not resolve: subtract a constant")
            return cls(name, task, (), mean, deviation)
        names = [as_written(value) for value in column.dropna().unique()]
        if distinct > MANY:
            odd = ", ".join(islice((repr(each) for each in names if not is_number(each)), NAMED))
            many = f"label {name!r} has {distinct:,} different values, more than {MANY} classes"
            numbers = f"numbers{f' (no numbers: {odd})' * bool(odd)}"
            raise ValueError(f"{many}: give another column, or {numbers} and task='regression'")
        return cls(name, task, tuple(sorted(names, key=_key)))

    def known(self, column: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each cell holds a number, or one of the classes: bool ``[rows]``."""
        if self.task == "regression":
            return column.notna().to_numpy()
        return self._codes(column) >= 0

    def values(self, column: pd.Series[Any]) -> Tensor:
        """Numbers, float32 ``[rows]``, or classes, int64 ``[rows]``; 0 where it is not known."""
        if self.task == "regression":
            return torch.from_numpy(column.fillna(0.0).to_numpy("float32").copy())
        return torch.from_numpy(np.maximum(self._codes(column), 0))

    def _codes(self, column: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The class of each cell; -1 for others."""
        import pandas as pd

        codes, values = column.factorize()
        names = pd.Index([as_written(value) for value in values])
        places = pd.Index(self.classes).get_indexer(names)
        return np.append(places, -1)[codes]


def without(name: str, rows: int) -> str:
    """A note about rows that lack a cell."""
    return f"{rows:,} row{'s' if rows > 1 else ''} without {name!r}: left out"


def _key(name: str) -> tuple[float, str]:
    """Order of classes: numbers by size, then words."""
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name
